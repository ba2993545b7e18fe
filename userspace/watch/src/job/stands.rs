//! Ranks that are waited for: the alert of the job, and, where tenants share it, those of each of them alone.
//!
//! A tenant can forge ranks of a job, and a hang of them. So what is open of some tenants' ranks holds nothing of one
//! whose ranks go on: it is judged alone meanwhile, by its own processes.

use std::time::Duration;

use super::{Job, StandingAlert, Steps, Turn, by_counters, known, of_comm};
use crate::{
    communicator::CommState,
    event::{AlertKind, EventBody},
    look::Look,
    reading::GpuState,
    standing::{Outcome, Standing},
};

/// What stands, and the alert on it.
#[derive(Debug, Default)]
pub(super) struct Stands {
    pub(super) standing: Standing,
    pub(super) alert: Option<StandingAlert>,
    /// When the last alert began.
    last: Option<Duration>,
}

impl Stands {
    pub(super) fn is_open(&self) -> bool {
        self.standing.open().is_some()
    }
}

impl Job {
    /// Returns all that can stand.
    pub(super) fn stands(&self) -> impl Iterator<Item = &Stands> {
        std::iter::once(&self.whole).chain(self.alone.values())
    }

    fn stands_of(&mut self, of: Option<&str>) -> Option<&mut Stands> {
        match of {
            Some(whose) => self.alone.get_mut(whose),
            None => Some(&mut self.whole),
        }
    }

    /// Tells whether something is open that this tenant's ranks stand in.
    pub(super) fn is_told(&self, whose: &str, comms: &[&CommState]) -> bool {
        self.whole.standing.is_of(whose, comms) || self.alone.get(whose).is_some_and(Stands::is_open)
    }

    /// Takes a reading.
    pub(super) fn step_standings(&mut self, gpus: &[GpuState], turn: &mut Turn<'_>, steps: &mut Steps) {
        let is_open_alone = self.alone.values().any(Stands::is_open);
        if self.whole.is_open() || !is_open_alone {
            let may_begin = self.may_stand(None, turn);
            let outcome = self.whole.standing.step(turn.comms, gpus, turn.settings, may_begin, turn.now);
            self.apply(None, outcome, turn, steps);
        }
        let tenants: Vec<String> = self.tenants().into_iter().map(str::to_owned).collect();
        let left: Vec<String> = self.alone.keys().filter(|whose| !tenants.contains(whose)).cloned().collect();
        for whose in left {
            self.end_standing(Some(&whose), turn, "its processes have ended", steps);
            self.alone.remove(&whose);
        }
        let is_shared = turn.comms.iter().any(|comm| comm.is_shared());
        if !(is_open_alone || is_shared && self.whole.is_open()) {
            return;
        }
        for whose in tenants {
            self.step_alone(&whose, gpus, turn, steps);
        }
    }

    /// Takes a reading of one tenant's ranks, where something is open in which they do not stand.
    fn step_alone(&mut self, whose: &str, gpus: &[GpuState], turn: &mut Turn<'_>, steps: &mut Steps) {
        let is_open = self.alone.get(whose).is_some_and(Stands::is_open);
        if !is_open && self.is_told(whose, turn.comms) {
            self.alone.remove(whose);
            return;
        }
        let own: Vec<CommState> = turn.comms.iter().filter_map(|state| state.of_tenant(whose)).collect();
        let comms: Vec<&CommState> = own.iter().collect();
        let may_begin = self.may_stand(Some(whose), turn);
        let Turn { settings, now, .. } = *turn;
        let stands = self.alone.entry(whose.to_owned()).or_default();
        let outcome = stands.standing.step(&comms, gpus, settings, may_begin, now);
        let mut turn = Turn { comms: &comms, settings, now, numbers: &mut *turn.numbers };
        self.apply(Some(whose), outcome, &mut turn, steps);
    }

    /// Takes the verdict of a dump: of the job, or of a tenant alone.
    pub(super) fn looked_at_standing(
        &mut self,
        of: Option<&str>,
        look: Result<Look, String>,
        turn: &mut Turn<'_>,
        steps: &mut Steps,
    ) {
        let own = |whose| turn.comms.iter().filter_map(|state| state.of_tenant(whose)).collect::<Vec<_>>();
        let own: Option<Vec<CommState>> = of.map(own);
        let own: Option<Vec<&CommState>> = own.as_ref().map(|own| own.iter().collect());
        let may_begin = self.may_stand(of, turn);
        let Turn { settings, now, .. } = *turn;
        let comms = own.as_deref().unwrap_or(turn.comms);
        let mut turn = Turn { comms, settings, now, numbers: &mut *turn.numbers };
        let Some(stands) = self.stands_of(of) else { return };
        let was_open = stands.is_open();
        let outcome = stands.standing.looked(look, comms, settings, may_begin, now);
        // What was waiting is a hang now.
        if let (Outcome::Begins(..), true) = (&outcome, was_open) {
            self.end_standing(of, &turn, "it has become a hang", steps);
        }
        self.apply(of, outcome, &mut turn, steps);
    }

    /// Ends all that is open: the job has no process left.
    pub(super) fn end_standings(&mut self, turn: &Turn<'_>, steps: &mut Steps) {
        let tenants: Vec<Option<String>> = self.alone.keys().cloned().map(Some).chain([None]).collect();
        for of in tenants {
            self.end_standing(of.as_deref(), turn, "the job has ended", steps);
        }
    }

    /// Tells whether an alert on ranks that are waited for may begin. Where tenants share the job, alerts of others, and
    /// failures that one of them forges, do not hold it back.
    fn may_stand(&self, of: Option<&str>, turn: &Turn<'_>) -> bool {
        let is_shared = turn.comms.iter().any(|comm| comm.is_shared());
        match of {
            Some(whose) => turn.is_long_since(self.alone.get(whose).and_then(|own| own.last)),
            None if is_shared => turn.is_long_since(self.whole.last),
            None => self.may_begin(None, turn),
        }
    }

    fn apply(&mut self, of: Option<&str>, outcome: Outcome, turn: &mut Turn<'_>, steps: &mut Steps) {
        let (comms, now) = (turn.comms, turn.now);
        match outcome {
            Outcome::Nothing => {}
            Outcome::Look => match of {
                Some(whose) => steps.looks_of.push(whose.to_owned()),
                None => steps.look = true,
            },
            Outcome::Ends(_) => self.end_standing(of, turn, "it moves again", steps),
            Outcome::Begins(kind, key, look) => {
                let state = comms.iter().find(|state| state.key == key);
                let stands = state.map_or(Duration::ZERO, |state| now.saturating_sub(state.still_since()));
                let communicator = of_comm(&key, state.and_then(|state| state.name.clone()));
                let mut event = self.begun(kind, None, turn);
                event.job = Some(self.described_of(of, comms.len()));
                event.communicator = Some(communicator.clone());
                event.seconds = Some(stands.as_secs_f64());
                match look {
                    Some(look) => tell_look(&mut event, *look, state.copied()),
                    None => by_counters(&mut event, state.copied()),
                }
                let waited_for = event.culprits.iter().map(|culprit| culprit.rank).collect();
                let alert = event.alert.map(|alert| StandingAlert {
                    alert,
                    kind,
                    begun: now,
                    communicator,
                    waited_for,
                });
                if let Some(stands) = self.stands_of(of) {
                    stands.alert = alert;
                    if matches!(kind, AlertKind::Hang | AlertKind::Gone) {
                        stands.last = Some(now);
                    }
                }
                steps.events.push(event);
            }
        }
    }

    fn end_standing(&mut self, of: Option<&str>, turn: &Turn<'_>, why: &str, steps: &mut Steps) {
        let alert = self.stands_of(of).and_then(|stands| stands.alert.take());
        let Some(StandingAlert { alert, kind, begun, communicator, .. }) = alert else { return };
        let event = self.ended(kind, alert, begun, turn.now, turn.comms.len(), why);
        let job = Some(self.described_of(of, turn.comms.len()));
        steps.events.push(EventBody { communicator: Some(communicator), job, ..event });
    }
}

/// Tells what a dump says.
pub(super) fn tell_look(event: &mut EventBody, look: Look, state: Option<&CommState>) {
    let Look { kind, sentence, next, culprits, waiting, .. } = look;
    (event.verdict, event.next) = (kind, next);
    let culprits = culprits.into_iter().map(|culprit| known(culprit, state));
    (event.sentence, event.waiting) = (sentence, waiting);
    event.culprits = culprits.collect();
    if let Some(phase) = event.culprits.first().and_then(|culprit| culprit.phase) {
        let rank = event.culprits.first().map_or(0, |culprit| culprit.rank);
        event.sentence = format!("{} Rank {rank} {}.", event.sentence, phase.described());
    }
}
