//! Hosts that gave no answer, and why.

use std::collections::BTreeMap;

use super::children::{End, Outcome};
use dump::HostNotRead;
use flow::text::{cut_right, nanoseconds, plain};

/// Most characters of a reason: it is somebody else's text.
const MAX_REASON: usize = 240;

/// Hosts that gave no answer, in the order of their names.
#[derive(Debug, Default)]
pub struct HostsNotRead(BTreeMap<String, String>);

impl HostsNotRead {
    pub(super) fn add(&mut self, host: &str, why: impl AsRef<str>) {
        self.0.insert(host.to_owned(), cut_right(&plain(why.as_ref().trim()), Some(MAX_REASON)));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn into_reports(self) -> Vec<HostNotRead> {
        self.0.into_iter().map(|(host, why)| HostNotRead { host, why }).collect()
    }
}

/// Says why a program gave nothing. `program`: what was run.
pub(super) fn reason(outcome: &Outcome, program: &str) -> String {
    match &outcome.end {
        End::TimedOut(limit) => format!("no answer within {}", seconds(*limit)),
        End::NoTimeLeft => "not asked: the time for all hosts was over".to_owned(),
        End::TooLong => "its answer is too long".to_owned(),
        End::NotStarted(error) => format!("`{program}` cannot be run: {error}"),
        End::Exited(status) => {
            let said = outcome.messages.reason();
            let said = said.unwrap_or_else(|| format!("{program} gave no answer ({status})"));
            // A shell's code for a program that is not there.
            if status.code() == Some(127) { format!("{said}; --remote says where ncclflow is") } else { said }
        }
    }
}

fn seconds(time: std::time::Duration) -> String {
    nanoseconds(time.as_secs_f64() * 1e9)
}
