//! How fast a job goes, and who makes it slow.

use super::{
    HostState, Job, StandingAlert, Steps, Turn, of_comm, of_rank,
    stands::{Stands, tell_look},
};
use crate::{
    communicator::CommState,
    event::AlertKind,
    look::Look,
    slow::{Blame, SlowChange},
    slower::Change,
};

/// What is added where counters name nobody.
const NOBODY: &str = " No GPU and no host stands out: all ranks are slower together.";
const NEXT: &str = "see who is slow: ncclflow record -d 10, then ncclflow check";

impl Job {
    pub(super) fn watch_pace(&mut self, collectives: u64, turn: &mut Turn<'_>, steps: &mut Steps) {
        let (comms, now) = (turn.comms, turn.now);
        let usual = comms.iter().filter_map(|state| state.rhythm.usual()).max();
        let stands = self.stands().any(Stands::is_open);
        let change = self.pace.note(collectives, now, stands, usual);
        // One that comes too soon after another alert begins later, while it lasts.
        let change = change.or_else(|| self.pace.lasts().filter(|_| self.slower.is_none() && !stands));
        match change {
            Some(Change::Begins { now: pace, before }) if self.may_begin(None, turn) => {
                let mut event = self.begun(AlertKind::Slower, None, turn);
                event.sentence = format!(
                    "Iterations take {:.1} times as long as in the ten minutes before: {pace:.1} collectives a second \
                     in the last minute, {before:.1} before.",
                    before / pace
                );
                if self.slowness.is_nobody() {
                    event.sentence.push_str(NOBODY);
                }
                event.next = Some(NEXT.to_owned());
                self.slower = event.alert.map(|alert| (alert, now));
                steps.events.push(event);
            }
            Some(change @ (Change::Mended | Change::Usual)) => {
                if let Some((alert, begun)) = self.slower.take() {
                    let why = if change == Change::Mended {
                        "it is as fast as before"
                    } else {
                        "this has become its usual pace"
                    };
                    steps.events.push(self.ended(AlertKind::Slower, alert, begun, now, comms.len(), why));
                }
            }
            Some(Change::Begins { .. }) | None => {}
        }
        // A dump on ranks that stand tells of both.
        let is_quiet = !stands && self.slower.is_none() && !self.whole.standing.is_looking();
        steps.look |= self.crawl.wants_look(is_quiet && self.pace.crawls().is_some(), now);
    }

    /// Begins the alert on a job that moves, and of which dumps say that ranks wait for one that does not come.
    pub(super) fn tell_crawl(&mut self, look: Look, turn: &mut Turn<'_>, steps: &mut Steps) {
        let Some((before, pace)) = self.pace.crawls().filter(|_| self.may_begin(None, turn)) else { return };
        let is_root = |state: &&&CommState| {
            look.root
                .as_ref()
                .is_some_and(|(hash, n_ranks)| (hash, *n_ranks) == (&state.key.hash, state.key.n_ranks))
        };
        let state = turn.comms.iter().find(is_root).copied();
        let mut event = self.begun(AlertKind::Slower, None, turn);
        event.communicator = state.map(|state| of_comm(&state.key, state.name.clone()));
        tell_look(&mut event, look, state);
        event.sentence = format!(
            "It moves, and iterations take {:.0} times as long as before: {pace:.1} collectives a second in the last half \
             minute, {before:.1} before. Dumps say: {}",
            before / pace,
            event.sentence
        );
        self.pace.open(before);
        self.slower = event.alert.map(|alert| (alert, turn.now));
        steps.events.push(event);
    }

    pub(super) fn watch_slowness(&mut self, host: &HostState<'_>, turn: &mut Turn<'_>, steps: &mut Steps) {
        let (comms, now) = (turn.comms, turn.now);
        let stands = self.stands().any(Stands::is_open);
        let change = self.slowness.note(comms, host.gpus, host.processors, stands, self.pace.slower(), now);
        match change {
            // One that comes too soon after another alert begins later, while it lasts.
            Some(SlowChange::Named(Blame { comm, ranks, text }))
                if self.slow.is_none() && self.may_begin(None, turn) =>
            {
                let mut event = self.begun(AlertKind::Slow, None, turn);
                let state = comms.iter().find(|state| state.key == comm);
                let communicator = of_comm(&comm, state.and_then(|state| state.name.clone()));
                event.communicator = Some(communicator.clone());
                let here = || state.into_iter().flat_map(|state| state.here());
                event.culprits = here().filter(|rank| ranks.contains(&rank.info.rank)).map(of_rank).collect();
                event.waiting =
                    here().map(|rank| rank.info.rank).filter(|rank| !ranks.contains(rank)).collect();
                event.sentence = text;
                event.next = Some(NEXT.to_owned());
                self.slow = event.alert.map(|alert| StandingAlert {
                    alert,
                    kind: AlertKind::Slow,
                    begun: now,
                    communicator,
                    waited_for: ranks,
                });
                steps.events.push(event);
            }
            Some(SlowChange::Over) => {
                if let Some(StandingAlert { alert, begun, .. }) = self.slow.take() {
                    let why = "its counters are like those of the others";
                    steps.events.push(self.ended(AlertKind::Slow, alert, begun, now, comms.len(), why));
                }
            }
            Some(SlowChange::Named(_)) | None => {}
        }
    }
}
