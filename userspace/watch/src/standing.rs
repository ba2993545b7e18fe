//! Judges whether a job stands, and for whom it waits: a state machine fed with counters, verdicts of dumps
//! and the time as a value. Pure.
//!
//! Counters are cheap and say little: that a communicator stands and that a rank waits in it. So they only
//! raise a suspicion; a dump of the job, which looks at threads, GPUs and Python stacks, then says whether it
//! is a hang. A suspicion that a dump does not confirm is looked at again after a pause that doubles.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use dump::{Kind, State};

use crate::{
    communicator::{CommState, Waits},
    event::AlertKind,
    look::Look,
    reading::{CommKey, GpuState},
    settings::Settings,
};

/// Time for which a communicator stands before it is looked at where a rank's process has ended.
const GONE_AFTER: Duration = Duration::from_secs(3);
/// Time by which a dump is asked for before its word can begin an alert: it takes at least two readings, half a
/// second apart, and their end.
pub(crate) const LOOK_AHEAD: Duration = Duration::from_secs(1);
/// Time for which it stands where nothing tells whether a rank waits.
const UNKNOWN_AFTER: Duration = Duration::from_mins(1);
/// So many times its last pause a job moves without a rest before its next rest is looked at at once again: of a
/// job that often rests not each rest is.
const MOVES_FOR: u32 = 10;
/// First and longest pause after a dump that says that all is well.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_mins(15);
/// The same where tenants share a communicator: what one of them makes stand does not put off looks at the others.
const LONGEST_SHARED_PAUSE: Duration = Duration::from_mins(1);
/// Pause between two dumps of a job that waits.
const WAITING_PAUSE: Duration = Duration::from_secs(30);
/// Time for which a job moves again before an alert ends.
const MENDED_AFTER: Duration = Duration::from_secs(3);
/// Time after which a job that has moved stands again, and is not mended.
const STANDS_AGAIN: Duration = Duration::from_secs(5);
/// Time within which a dump comes back.
const LOOK_TAKES: Duration = Duration::from_secs(90);

/// A communicator that stands too long.
#[derive(Clone, Debug)]
pub(crate) struct Suspect {
    key: Arc<CommKey>,
    waits: Waits,
    stands: Duration,
    /// Its counters were read for so long meanwhile.
    is_known: bool,
    is_gone: bool,
    /// Counters know of nobody who waits: ranks can be in a call that all must make, as `ncclCommSplit`, or, where
    /// nothing was ever launched, wait before they launch the first operation.
    is_quiet: bool,
}

#[derive(Debug)]
struct Open {
    kind: AlertKind,
    begun: Duration,
    comms: BTreeSet<Arc<CommKey>>,
    /// Until when they stood.
    still: Duration,
    /// Since when all communicators have moved again.
    mended: Option<Duration>,
}

/// Outcome of a step, or of a dump.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Nothing,
    /// A dump of the job is wanted.
    Look,
    /// Something begins: its kind, the communicator, and the dump that tells, or `None` where only counters
    /// do.
    Begins(AlertKind, Arc<CommKey>, Option<Box<Look>>),
    Ends(AlertKind),
}

/// The state machine of one job.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    open: Option<Open>,
    /// When a dump was asked for, and the communicators that it is about.
    looking: Option<(Duration, Vec<Suspect>)>,
    next_look: Duration,
    pause: Duration,
    /// The same for those that are quiet, which may stay so.
    next_look_at_quiet: Duration,
    quiet_pause: Duration,
    /// Since when no communicator stands.
    moves_since: Option<Duration>,
    /// Dumps in a row that could not tell, or did not come back.
    blind: u32,
    /// Dumps that have not confirmed what counters say, while something stands.
    looks_in_vain: usize,
    /// Tenants share a communicator of the job.
    is_shared: bool,
}

impl Standing {
    /// Returns the kind that is open, and when it began.
    pub(crate) fn open(&self) -> Option<(AlertKind, Duration)> {
        self.open.as_ref().map(|open| (open.kind, open.begun))
    }

    /// Tells whether what is open is about ranks of this tenant, which stand since.
    pub(crate) fn is_of(&self, whose: &str, comms: &[&CommState]) -> bool {
        let Some(open) = &self.open else { return false };
        let of_open = comms.iter().filter(|state| open.comms.contains(&state.key));
        of_open.into_iter().any(|state| state.stands_of_since(whose, open.still))
    }

    pub(crate) fn is_looking(&self) -> bool {
        self.looking.is_some()
    }

    pub(crate) fn looks_in_vain(&self) -> usize {
        self.looks_in_vain
    }

    fn longest_pause(&self) -> Duration {
        if self.is_shared { LONGEST_SHARED_PAUSE } else { LONGEST_PAUSE }
    }

    /// Takes a reading of the job's communicators. `may_begin`: the last alert of the job is long enough ago.
    pub(crate) fn step(
        &mut self,
        comms: &[&CommState],
        gpus: &[GpuState],
        settings: &Settings,
        may_begin: bool,
        now: Duration,
    ) -> Outcome {
        if let Some(open) = &mut self.open
            && open.is_over(comms, gpus, now)
        {
            let kind = open.kind;
            *self = Self::default();
            return Outcome::Ends(kind);
        }
        self.is_shared = comms.iter().any(|state| state.is_shared());
        let suspects = suspects(comms, gpus, settings, now);
        if let Some((asked, _)) = self.looking {
            if now.saturating_sub(asked) > LOOK_TAKES {
                return self.without_a_look(may_begin, now);
            }
            return Outcome::Nothing;
        }
        let are_quiet = suspects.iter().all(|suspect| suspect.is_quiet);
        if are_quiet && self.open.is_none() {
            (self.pause, self.blind, self.next_look) = (Duration::ZERO, 0, Duration::ZERO);
        }
        if suspects.is_empty() {
            self.looks_in_vain = 0;
            let since = *self.moves_since.get_or_insert(now);
            if now.saturating_sub(since) >= self.quiet_pause.saturating_mul(MOVES_FOR) {
                (self.quiet_pause, self.next_look_at_quiet) = (Duration::ZERO, Duration::ZERO);
            }
            return Outcome::Nothing;
        }
        self.moves_since = None;
        // A hang stays one until it ends.
        let is_settled = self.open.as_ref().is_some_and(|open| open.kind.is_alert());
        let next = if are_quiet { self.next_look_at_quiet } else { self.next_look };
        if is_settled || !may_begin || now < next {
            return Outcome::Nothing;
        }
        if are_quiet {
            self.quiet_pause = (self.quiet_pause * 2).clamp(FIRST_PAUSE, self.longest_pause());
            self.next_look_at_quiet = now + self.quiet_pause;
        }
        self.looking = Some((now, suspects));
        Outcome::Look
    }

    /// Takes the verdict of the dump that was asked for; an error says why there is none.
    pub(crate) fn looked(
        &mut self,
        look: Result<Look, String>,
        comms: &[&CommState],
        settings: &Settings,
        may_begin: bool,
        now: Duration,
    ) -> Outcome {
        let Some((asked, suspects)) = self.looking.take() else { return Outcome::Nothing };
        let still: Vec<Suspect> = suspects
            .into_iter()
            .filter(|suspect| {
                let state = comms.iter().find(|state| state.key == suspect.key);
                state.is_some_and(|state| state.still_since() <= asked)
            })
            .collect();
        if still.is_empty() {
            return Outcome::Nothing;
        }
        let Ok(look) = look else {
            self.looking = Some((asked, still));
            return self.without_a_look(may_begin, now);
        };
        let key = still.iter().find(|suspect| look.root.as_ref().is_some_and(|root| is_of(suspect, root)));
        let key = key.or_else(|| still.iter().find(|suspect| look.has(&suspect.key)));
        let phase = look.phase();
        let too_long =
            still.iter().any(|suspect| suspect.stands + now.saturating_sub(asked) >= settings.waiting_limit);
        // What is not known of another communicator, as of one with ranks on other hosts, says nothing of these.
        let are_healthy = still.iter().all(|suspect| look.is_healthy(&suspect.key));
        match (look.state, key) {
            (State::Healthy, _) => self.is_well(now),
            (State::Unknown, _) if are_healthy => self.is_well(now),
            (State::Stuck | State::Waiting, Some(suspect)) => {
                self.blind = 0;
                let is_gone = matches!(look.kind, Some(Kind::Gone | Kind::Dying)) || suspect.is_gone;
                let kind = match look.state {
                    State::Stuck if is_gone => AlertKind::Gone,
                    State::Stuck if phase.is_none() => AlertKind::Hang,
                    _ if too_long => AlertKind::Hang,
                    _ => AlertKind::Waiting,
                };
                self.next_look = now + WAITING_PAUSE;
                let key = Arc::clone(&suspect.key);
                let comms = still.iter().filter(|suspect| look.has(&suspect.key) || suspect.key == key);
                let comms = comms.map(|suspect| Arc::clone(&suspect.key)).collect();
                self.begin(kind, key, comms, Some(Box::new(look)), may_begin, now)
            }
            (State::Unknown, _) | (State::Stuck | State::Waiting, None) => {
                self.looking = Some((asked, still));
                self.without_a_look(may_begin, now)
            }
        }
    }

    fn is_well(&mut self, now: Duration) -> Outcome {
        self.blind = 0;
        self.put_off(now);
        Outcome::Nothing
    }

    /// Goes on without a verdict. Where counters alone are enough, the second time in a row is an alert.
    fn without_a_look(&mut self, may_begin: bool, now: Duration) -> Outcome {
        let Some((_, suspects)) = self.looking.take() else { return Outcome::Nothing };
        self.blind += 1;
        self.put_off(now);
        let Some(suspect) = worst(&suspects).filter(|_| self.blind > 1) else { return Outcome::Nothing };
        let kind = if suspect.is_gone { AlertKind::Gone } else { AlertKind::Hang };
        let key = Arc::clone(&suspect.key);
        let comms = [Arc::clone(&key)].into();
        self.begin(kind, key, comms, None, may_begin, now)
    }

    fn begin(
        &mut self,
        kind: AlertKind,
        key: Arc<CommKey>,
        comms: BTreeSet<Arc<CommKey>>,
        look: Option<Box<Look>>,
        may_begin: bool,
        now: Duration,
    ) -> Outcome {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) || (kind.is_alert() && !may_begin) {
            return Outcome::Nothing;
        }
        self.open = Some(Open { kind, begun: now, comms, still: now, mended: None });
        Outcome::Begins(kind, key, look)
    }

    fn put_off(&mut self, now: Duration) {
        self.looks_in_vain += 1;
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, self.longest_pause());
        self.next_look = now + self.pause;
    }
}

impl Open {
    /// Tells whether all communicators move again, or are gone. One step is not enough: a communicator moves
    /// on, or nobody waits in it any more.
    fn is_over(&mut self, comms: &[&CommState], gpus: &[GpuState], now: Duration) -> bool {
        let state = |key: &Arc<CommKey>| comms.iter().find(|state| state.key == *key && !state.is_over());
        let mut left = self.comms.iter().filter_map(state);
        if left.clone().any(|state| state.still_since() <= self.still) {
            self.mended = None;
            return false;
        }
        let mended = *self.mended.get_or_insert(now);
        let waits = |state: &&CommState| state.waits(gpus) != Waits::No;
        let stands = |state: &CommState| now.saturating_sub(state.still_since());
        if left.clone().any(|state| waits(state) && stands(state) >= STANDS_AGAIN) {
            (self.still, self.mended) = (now, None);
            return false;
        }
        now.saturating_sub(mended) >= MENDED_AFTER
            && left.all(|state| state.still_since() > mended || !waits(state))
    }
}

fn is_of(suspect: &Suspect, (hash, n_ranks): &(String, u32)) -> bool {
    suspect.key.hash == *hash && suspect.key.n_ranks == *n_ranks
}

/// Returns the suspect that stands longest of those of which counters alone tell enough: that somebody waits.
fn worst(suspects: &[Suspect]) -> Option<&Suspect> {
    let told = suspects.iter().filter(|suspect| suspect.waits == Waits::Yes && suspect.is_known);
    told.max_by_key(|suspect| suspect.stands)
}

/// Returns the communicators that stand longer than is usual for them, while a rank may wait in them; all of a job of
/// which nothing moves.
fn suspects(comms: &[&CommState], gpus: &[GpuState], settings: &Settings, now: Duration) -> Vec<Suspect> {
    // What other tenants' communicators do says nothing of a job that is shared.
    let is_shared = comms.iter().any(|state| state.is_shared());
    let of_job = comms.iter().filter(|_| !is_shared).filter_map(|state| state.usual()).max();
    let stands_for = |state: &CommState| now.saturating_sub(state.still_since());
    let rests_for = comms.iter().filter(|state| !state.is_over()).map(|state| stands_for(state)).min();
    let rests_for = rests_for.filter(|_| !is_shared);
    let suspect = |state: &&CommState| {
        let stands = stands_for(state);
        // What is being made, or ended, has a call that all ranks must make.
        let is_called = state.is_coming() || state.here().any(|rank| rank.counts.is_ending);
        let is_unused = !state.has_moved && !is_called;
        let waits = if is_unused { Waits::Likely } else { state.waits(gpus) };
        let is_quiet = is_unused || waits == Waits::No;
        let is_gone = !state.gone().is_empty();
        let stands = if waits == Waits::No { rests_for.unwrap_or(stands) } else { stands };
        let limit = match waits {
            Waits::Yes if is_gone => GONE_AFTER,
            Waits::No | Waits::Yes | Waits::Likely => {
                settings.limit(state.usual().or(of_job)).saturating_sub(LOOK_AHEAD)
            }
            Waits::Unknown => settings.limit(state.usual().or(of_job)).max(UNKNOWN_AFTER),
        };
        let is_suspect = stands >= limit && !state.is_over();
        is_suspect.then(|| {
            let is_known = state.known_to_stand() >= limit;
            Suspect { key: Arc::clone(&state.key), waits, stands, is_known, is_gone, is_quiet }
        })
    };
    comms.iter().filter_map(suspect).collect()
}
