//! How much of the node `--all` may look at. A process that may not be looked at cannot be told from one
//! without NCCL: so a tracer without the right sees nothing, and would take that for a node without jobs.

use inspect::process::Visibility;

use super::Follower;
use crate::record::{options::Notice, recorder::Recording};

/// What was last said of what is not seen.
#[derive(Debug, Default)]
pub(super) struct Sight {
    noted: Visibility,
    was_said: bool,
}

impl Follower<'_> {
    /// Notes in the report, and in the session's health, how much may not be looked at. It is said once.
    pub(super) fn say_what_is_not_seen(&mut self, recording: &mut Recording<'_>) {
        // While processes still wait, those that were looked at stand for nothing.
        if self.is_behind() {
            return;
        }
        let now = self.census.visibility();
        let blind = now.problem().filter(|_| now.is_blind() && self.traced_pids().is_empty());
        recording.options.health.set_sight(now.denied, blind);
        if (now.denied, now.is_hidden) != (self.sight.noted.denied, self.sight.noted.is_hidden) {
            recording.report.processes_denied = now.denied as u64;
            recording.report.processes_hidden = now.is_hidden;
            recording.is_outdated = true;
        }
        self.sight.noted = now;
        if let Some(problem) = now.problem().filter(|_| !self.sight.was_said) {
            self.sight.was_said = true;
            (recording.notice)(Notice::NotSeen(&problem));
        }
    }
}
