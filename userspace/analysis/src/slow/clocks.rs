//! Clocks of hosts against each other, by messages between them: none is there before it was sent.
//!
//! A message from a host to another bounds by how much the other's clock can be ahead; so do several over
//! hosts between, and those on the way back bound it from below. So the error is known, and nothing is
//! assumed of the network.

use std::collections::{BTreeMap, BTreeSet, HashMap};

pub(crate) use crate::sources::Offset;

use super::{
    gathered::Gathered,
    launches::median,
    sets::Sets,
    transits::{Both, End, Place, join},
};

/// Length of a window whose bounds are put together, and most windows.
const WINDOW_NS: u64 = 1_000_000_000;
const MAX_WINDOWS: usize = 4096;

/// Drift of two clocks against each other within a window, at most: 100 ppm, which is more than crystals have.
const DRIFT_NS: i64 = 100_000;

/// Time by which a proxy can note a moment too late: what it notes has happened before.
const NOTED_LATE_NS: i64 = 10_000;

/// Clocks of folders, each of one host.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks(Vec<Clock>);

/// The clock of a folder, against that of the first folder with which messages connect it in both directions.
#[derive(Clone, Debug, Default)]
struct Clock {
    against: usize,
    /// How far it is ahead at the beginning, which the windows are counted by.
    at_first_ns: i64,
    /// How far it is ahead, beside that, by window; none of the first folder itself.
    ahead: Vec<(u64, Offset)>,
}

/// Messages from a folder to another: wall times of sender and receiver.
type Messages = BTreeMap<(usize, usize), Vec<(u64, u64)>>;

/// By how much the clock of the second of two folders can be ahead of the first one's at most, by window.
#[derive(Clone, Debug, Default)]
struct Bounds(BTreeMap<(usize, usize), BTreeMap<u64, i64>>);

/// A message from a host to another, each given by its folder; by wall times of their own.
pub(super) type Between = (Place, Both<usize>);

/// Returns the messages of each communicator of which two folders have one end each.
pub(super) fn between(folders: &[Gathered]) -> BTreeMap<&str, Vec<Between>> {
    let mut found: BTreeMap<&str, Vec<Between>> = BTreeMap::new();
    let mut ends: HashMap<(&str, Place), (usize, End)> = HashMap::new();
    for (folder, gathered) in folders.iter().enumerate().filter(|_| folders.len() > 1) {
        for (name, rows) in gathered.communicators.iter().filter(|_| gathered.has_clock()) {
            for (place, end) in rows.transits.unmatched() {
                let end = end.by(|ns| gathered.wall_ns(ns));
                if let Some(both) = join(&mut ends, (name.as_str(), place), folder, end) {
                    found.entry(name).or_default().push((place, both));
                }
            }
        }
    }
    found
}

/// How far the clock of a folder is ahead of that of another folder, in all of its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockOffset {
    pub(crate) against: usize,
    pub(crate) ahead: Offset,
}

/// Returns how far the clocks of folders are ahead.
pub(crate) fn clock_offsets(folders: &[Gathered]) -> Vec<ClockOffset> {
    let clocks = Clocks::of(&between(folders), folders.len());
    let of_folder = |folder| ClockOffset {
        against: clocks.against(folder),
        ahead: clocks.whole(folder).unwrap_or_default(),
    };
    (0..folders.len()).map(of_folder).collect()
}

impl Clocks {
    /// Compares the clocks of so many folders.
    pub(super) fn of(between: &BTreeMap<&str, Vec<Between>>, folders: usize) -> Self {
        let mut messages = Messages::new();
        for (_, both) in between.values().flatten() {
            messages.entry((both.from, both.to)).or_default().push((both.sent_ns, both.arrived_ns));
        }
        Self::by(&messages, folders)
    }

    fn by(messages: &Messages, folders: usize) -> Self {
        let mut at_first = Bounds::default();
        for (pair, messages) in messages {
            let begin = messages.iter().map(|(sent, _)| *sent).min().unwrap_or(0);
            let first = messages.iter().filter(|(sent, _)| sent - begin < WINDOW_NS);
            first.for_each(|(sent, arrived)| at_first.add(*pair, 0, (*sent, *arrived)));
        }
        let at_first = at_first.clocks(folders);
        let mut bounds = Bounds::default();
        for ((from, to), messages) in messages {
            for (sent, arrived) in messages {
                let [sent, arrived] = [(*from, *sent), (*to, *arrived)].map(|(folder, wall_ns)| {
                    wall_ns.saturating_add_signed(at_first.ahead(folder, 0).ahead_ns.saturating_neg())
                });
                bounds.add((*from, *to), sent / WINDOW_NS, (sent, arrived));
            }
        }
        let mut clocks = bounds.clocks(folders);
        for (folder, clock) in clocks.0.iter_mut().enumerate() {
            clock.at_first_ns = at_first.ahead(folder, 0).ahead_ns;
        }
        clocks
    }

    /// Returns the folder whose clock is that with which this one's is compared: one for all that are
    /// connected.
    pub(super) fn against(&self, folder: usize) -> usize {
        self.0.get(folder).map_or(folder, |clock| clock.against)
    }

    /// Tells whether the clock of a folder is compared with that of another one.
    pub(super) fn is_compared(&self, folder: usize) -> bool {
        self.0.get(folder).is_some_and(|clock| !clock.ahead.is_empty())
    }

    /// Returns how far the clock of a folder is ahead of that with which it is compared.
    pub(super) fn ahead(&self, folder: usize, wall_ns: u64) -> Offset {
        let Some(clock) = self.0.get(folder) else { return Offset::default() };
        let by_first = wall_ns.saturating_add_signed(clock.at_first_ns.saturating_neg());
        let ahead = clock.ahead_at(by_first / WINDOW_NS).unwrap_or_default();
        Offset { ahead_ns: ahead.ahead_ns.saturating_add(clock.at_first_ns), ..ahead }
    }

    /// Returns how far the clock of a folder is ahead in the middle of what was recorded. `None`: the others
    /// are compared with it.
    pub(super) fn middle(&self, folder: usize) -> Option<Offset> {
        let clock = self.0.get(folder)?;
        let (_, ahead) = clock.ahead.get(clock.ahead.len() / 2)?;
        Some(Offset { ahead_ns: ahead.ahead_ns.saturating_add(clock.at_first_ns), ..*ahead })
    }

    /// Returns how far the clock of a folder is ahead over all of its time: by one number, with an error that
    /// covers drift. `None`: the others are compared with it, or nothing is known.
    fn whole(&self, folder: usize) -> Option<Offset> {
        let clock = self.0.get(folder)?;
        let ends = |offset: &Offset| {
            let error_ns = i64::try_from(offset.error_ns).unwrap_or(i64::MAX);
            (offset.ahead_ns.saturating_sub(error_ns), offset.ahead_ns.saturating_add(error_ns))
        };
        let all = clock.ahead.iter().map(|(_, offset)| ends(offset));
        let (least, most) = all.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))?;
        let whole = Offset::between(least, most);
        Some(Offset { ahead_ns: whole.ahead_ns.saturating_add(clock.at_first_ns), ..whole })
    }

    /// Returns the wall time of a folder's clock at a time of the clock with which it is compared.
    pub(super) fn own_ns(&self, folder: usize, common_ns: u64) -> u64 {
        let at_first_ns = self.0.get(folder).map_or(0, |clock| clock.at_first_ns);
        let about = common_ns.saturating_add_signed(at_first_ns);
        common_ns.saturating_add_signed(self.ahead(folder, about).ahead_ns)
    }

    /// Returns a wall time by the clock with which all connected ones are compared.
    pub(super) fn common_ns(&self, folder: usize, wall_ns: u64) -> u64 {
        wall_ns.saturating_add_signed(self.ahead(folder, wall_ns).ahead_ns.saturating_neg())
    }

    /// Returns the usual error of that.
    pub(super) fn error_ns(&self, folder: usize) -> u64 {
        self.0.get(folder).map_or(0, Clock::error_ns)
    }
}

impl Clock {
    /// Returns what the nearest window says.
    fn ahead_at(&self, window: u64) -> Option<Offset> {
        let next = self.ahead.partition_point(|(other, _)| *other < window);
        let near = [next.checked_sub(1), Some(next)].into_iter().flatten();
        let nearest = near.filter_map(|at| self.ahead.get(at)).min_by_key(|(at, _)| at.abs_diff(window));
        nearest.map(|(_, offset)| *offset)
    }

    fn error_ns(&self) -> u64 {
        median(self.ahead.iter().map(|(_, offset)| offset.error_ns).collect())
    }
}

impl Bounds {
    /// Takes a message: when it was sent, and was there.
    fn add(&mut self, pair: (usize, usize), window: u64, (sent_ns, arrived_ns): (u64, u64)) {
        let differs = i64::try_from(i128::from(arrived_ns) - i128::from(sent_ns));
        let Some(differs) = differs.ok().filter(|ns| ns.abs() < i64::MAX / 4) else { return };
        let bounds = self.0.entry(pair).or_default();
        let is_full = bounds.len() >= MAX_WINDOWS && !bounds.contains_key(&window);
        let nearest = bounds.range(..window).next_back().map(|(window, _)| *window);
        let most_ns = bounds.entry(nearest.filter(|_| is_full).unwrap_or(window)).or_insert(i64::MAX);
        *most_ns = (*most_ns).min(differs.saturating_add(NOTED_LATE_NS));
    }

    fn clocks(self, folders: usize) -> Clocks {
        let mut clocks: Vec<Option<Clock>> = vec![None; folders];
        self.connected().into_iter().for_each(|connected| connected.add_clocks(&mut clocks));
        let alone = |folder| Clock { against: folder, ..Clock::default() };
        let all = clocks.into_iter().enumerate();
        Clocks(all.map(|(folder, clock)| clock.unwrap_or_else(|| alone(folder))).collect())
    }

    /// Tells the folders apart that no messages connect, as those of windows of other times: what is known of one clock
    /// says nothing of another one later, and each has bounds of its own.
    fn connected(self) -> Vec<Self> {
        let mut sets = Sets::default();
        self.0.keys().for_each(|(from, to)| sets.join(*from, *to));
        let numbered = sets.sets().into_iter().enumerate();
        let of_set =
            |(number, folders): (usize, Vec<usize>)| folders.into_iter().map(move |one| (one, number));
        let numbers: HashMap<usize, usize> = numbered.flat_map(of_set).collect();
        let mut parts: BTreeMap<Option<usize>, Self> = BTreeMap::new();
        for (pair, bounds) in self.0 {
            let part = parts.entry(numbers.get(&pair.0).copied()).or_default();
            part.0.insert(pair, bounds);
        }
        parts.into_values().collect()
    }

    /// Adds the clocks of folders that messages connect.
    fn add_clocks(mut self, clocks: &mut [Option<Clock>]) {
        let windows: BTreeSet<u64> = self.0.values().flat_map(|bounds| bounds.keys().copied()).collect();
        let windows: Vec<u64> = windows.into_iter().take(MAX_WINDOWS).collect();
        for bounds in self.0.values_mut() {
            carry(bounds, windows.iter());
            carry(bounds, windows.iter().rev());
        }
        let folders: BTreeSet<usize> = self.0.keys().flat_map(|(from, to)| [*from, *to]).collect();
        for first in folders {
            let Some(clock) = clocks.get_mut(first).filter(|clock| clock.is_none()) else { continue };
            *clock = Some(Clock { against: first, ..Clock::default() });
            for window in &windows {
                let [most, least] = [false, true].map(|is_back| self.from(first, *window, is_back));
                for (folder, most_ns) in most {
                    let (Some(clock), Some(least_ns)) = (clocks.get_mut(folder), least.get(&folder)) else {
                        continue;
                    };
                    let known = clock.get_or_insert_with(|| Clock { against: first, ..Clock::default() });
                    if known.against == first {
                        known.ahead.push((*window, Offset::between(least_ns.saturating_neg(), most_ns)));
                    }
                }
            }
        }
    }

    /// Returns by how much the clocks of other folders can be ahead of that of `first` at most, over any
    /// folders between; `is_back`: by how much it can be ahead of theirs.
    fn from(&self, first: usize, window: u64, is_back: bool) -> BTreeMap<usize, i64> {
        let mut next: BTreeMap<usize, Vec<(usize, i64)>> = BTreeMap::new();
        for ((from, to), bounds) in &self.0 {
            let Some(most_ns) = bounds.get(&window) else { continue };
            let (near, far) = if is_back { (to, from) } else { (from, to) };
            next.entry(*near).or_default().push((*far, *most_ns));
        }
        let mut found = BTreeMap::from([(first, 0)]);
        let mut changed = BTreeSet::from([first]);
        // No way has more steps than there are folders. Bounds that contradict each other would go on.
        for _ in 0..next.len() {
            for near in std::mem::take(&mut changed) {
                let so_far = found.get(&near).copied().unwrap_or(0);
                for (far, most_ns) in next.get(&near).into_iter().flatten() {
                    let by_here = most_ns.saturating_add(so_far);
                    if *far != first && found.get(far).is_none_or(|known| by_here < *known) {
                        found.insert(*far, by_here);
                        changed.insert(*far);
                    }
                }
            }
        }
        found.remove(&first);
        found
    }
}

/// Takes what was known in the window before, as far as drift allows.
fn carry<'a>(bounds: &mut BTreeMap<u64, i64>, windows: impl Iterator<Item = &'a u64>) {
    let mut last: Option<(u64, i64)> = None;
    for window in windows {
        if let Some((before, most_ns)) = last {
            let drift = DRIFT_NS.saturating_mul(i64::try_from(window.abs_diff(before)).unwrap_or(i64::MAX));
            let own = bounds.entry(*window).or_insert(i64::MAX);
            *own = (*own).min(most_ns.saturating_add(drift));
        }
        last = bounds.get(window).map(|most_ns| (*window, *most_ns));
    }
}

impl Offset {
    fn between(least_ns: i64, most_ns: i64) -> Self {
        Self { ahead_ns: least_ns.midpoint(most_ns), error_ns: most_ns.abs_diff(least_ns) / 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;
    const BEGIN: u64 = 1_700_000_000_000_000_000;

    /// Messages around a ring of so many hosts, over some seconds. `ahead`: by how much the clock of a host is
    /// ahead after so many milliseconds; `transit`: time of a message from a host.
    fn ring(hosts: usize, ahead: impl Fn(usize, i64) -> i64, transit: impl Fn(usize, i64) -> i64) -> Clocks {
        let mut messages = Messages::new();
        for (ms, from) in (0..4000).flat_map(|ms| (0..hosts).map(move |from| (ms, from))) {
            let (to, at) = ((from + 1) % hosts, BEGIN.saturating_add_signed(ms * MS));
            let by = |host, ns| at.saturating_add_signed(ahead(host, ms) + ns);
            messages.entry((from, to)).or_default().push((by(from, 0), by(to, transit(from, ms))));
        }
        Clocks::by(&messages, hosts)
    }

    #[test]
    fn clocks_that_are_wrong_and_drift_are_known_within_the_error_that_is_told() {
        for hosts in [2, 3, 8] {
            let ahead = |host: usize, ms| i64::try_from(host).unwrap() * (37_000 * MS + ms * 10);
            // Every tenth message is fast, the others wait for up to 2 ms.
            let clocks =
                ring(hosts, ahead, |from, ms| if from == 0 { 30_000 + ms % 10 * 200_000 } else { 50_000 });
            for host in 1..hosts {
                assert_eq!(clocks.against(host), 0);
                for ms in [500, 1500, 3500] {
                    let found = clocks.ahead(host, BEGIN.saturating_add_signed(ms * MS));
                    let error = i64::try_from(found.error_ns).unwrap();
                    assert!(
                        (found.ahead_ns - ahead(host, ms)).abs() <= error && error < 500_000,
                        "{host} of {hosts}: {found:?}, not {}",
                        ahead(host, ms)
                    );
                }
            }
        }
    }

    #[test]
    fn a_network_that_is_slow_in_one_direction_widens_the_error_by_half_of_that() {
        let ahead = |host, _| if host == 1 { -5 * MS } else { 0 };
        let clocks = ring(2, ahead, |from, _| if from == 0 { 3 * MS } else { 50_000 });
        let found = clocks.middle(1).unwrap();
        assert!((found.ahead_ns + 5 * MS).unsigned_abs() <= found.error_ns);
        assert!((1_500_000..1_600_000).contains(&found.error_ns), "{found:?}");
        let wall = BEGIN + 100;
        assert!(clocks.common_ns(1, wall).abs_diff(wall + 5_000_000) <= clocks.error_ns(1));
    }

    /// Windows of a day: what is said of one is of its own time, however many there were before.
    #[test]
    fn clocks_of_recordings_of_other_times_are_known_by_their_own_messages() {
        let mut messages = Messages::new();
        // An hour and a half, and ten seconds later.
        for (pair, seconds) in [([0, 1], 0..5400), ([2, 3], 6000..6010)] {
            for second in seconds {
                let at = BEGIN + second * 1_000_000_000;
                let [here, there] = pair;
                let by_there = |ns: u64| ns + 37_000_000_000;
                messages.entry((here, there)).or_default().push((at, by_there(at + 50_000)));
                messages.entry((there, here)).or_default().push((by_there(at + 60_000), at + 110_000));
            }
        }
        let clocks = Clocks::by(&messages, 5);
        assert_eq!([0, 1, 2, 3, 4].map(|folder| clocks.against(folder)), [0, 0, 2, 2, 4]);
        for folder in [1, 3] {
            let whole = clocks.whole(folder).unwrap();
            assert!(
                whole.ahead_ns.abs_diff(37_000_000_000) <= whole.error_ns && whole.error_ns < 1_000_000,
                "{whole:?}"
            );
        }
    }

    #[test]
    fn clocks_without_messages_back_are_not_known() {
        let messages = [(0, 1), (2, 3), (3, 2)].map(|pair| (pair, vec![(BEGIN, BEGIN)]));
        let clocks = Clocks::by(&messages.into(), 4);
        assert_eq!([0, 1, 2, 3].map(|folder| clocks.against(folder)), [0, 1, 2, 2]);
        assert_eq!((clocks.middle(1), clocks.ahead(1, BEGIN)), (None, Offset::default()));
    }
}
