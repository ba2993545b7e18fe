//! Many hosts asked by one command: ncclflow runs on each, through ssh, srun or kubectl, and its JSON comes
//! back.
//!
//! [`Whom`] knows the programs and their words, [`children`] runs them side by side, [`output`] takes what
//! they say. An answer is somebody else's: it is bounded in size and time, read as a document of one host
//! ([`documents`], [`OfHost`]), and whoever gives none is named with the reason ([`HostsNotRead`]). The rest
//! is judged by the same code that judges this host (`dump::merge`).

mod children;
mod documents;
mod host_names;
mod not_read;
mod output;
mod way;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

pub use documents::documents;
pub use host_names::{NameError, hosts, hosts_of_file};
pub use not_read::HostsNotRead;
pub use way::{Selector, Whom, slurm_job};

use children::{End, Limits, Outcome};
use documents::{weight, without_greeting};
use dump::{HostNotRead, OfHost};
use host_names::is_host;
use output::{Answer, Sink};

/// Most bytes that the answers of all hosts take in memory. Those of a thousand hosts with eight ranks each take
/// half of that.
const MAX_WEIGHT: usize = 4 << 30;

/// Hosts, and how they are asked.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub whom: Whom,
    /// Program and first words in place of `ssh`, `srun` or `kubectl`.
    pub via: Option<Vec<String>>,
    /// ncclflow on the other hosts, with the words before it (`sudo -n`).
    pub remote: Vec<String>,
    /// Most programs that run at once; `None`: what suits the program.
    pub at_once: Option<usize>,
    /// Time for each host, and for all.
    pub each: Duration,
    pub all: Duration,
}

/// How far the asking is.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    pub hosts: usize,
    pub answered: usize,
    pub failed: usize,
    pub begun: Instant,
}

/// What the hosts answered.
#[derive(Debug)]
pub struct Gathered<T> {
    /// One answer of each host, in the order in which the hosts were named.
    pub answers: Vec<T>,
    pub not_read: Vec<HostNotRead>,
}

impl Fleet {
    /// Has every host run ncclflow with these words, which make it print a `T`.
    ///
    /// # Errors
    /// Nobody says which hosts there are, or none of them answered.
    pub fn ask<T: OfHost>(&self, words: &[String], progress: &mut dyn FnMut(&Asking)) -> Result<Gathered<T>> {
        let words: Vec<String> = self.remote.iter().chain(words).cloned().collect();
        let mut answers = Answers::<T>::new(MAX_WEIGHT);
        let calls = self.whom.calls(self.via.as_deref(), &words, self.each, &mut answers.not_read)?;
        let (hosts, program) = (calls.hosts, calls.program.name().to_owned());
        let limits =
            Limits { at_once: self.at_once.unwrap_or(calls.at_once), each: self.each, all: self.all };
        let mut asking = Asking { hosts: hosts.len(), answered: 0, failed: 0, begun: Instant::now() };
        // Both closures of the run tell the progress.
        let told = std::cell::Cell::new((0, 0));
        let take = |outcome: Outcome| {
            answers.take(&outcome, &program, &hosts);
            told.set((answers.known.len(), answers.not_read.len()));
            Ok(())
        };
        children::run(calls.calls, limits, take, |_| {
            (asking.answered, asking.failed) = told.get();
            progress(&asking);
        })?;
        answers.gathered(&hosts)
    }
}

/// Answers by the names under which the hosts were asked.
struct Answers<T> {
    known: BTreeMap<String, Held<T>>,
    not_read: HostsNotRead,
    /// Bytes that all take, and most that they may.
    weight: usize,
    most: usize,
}

/// An answer, and the bytes that it takes.
struct Held<T> {
    answer: T,
    weight: usize,
}

impl<T: OfHost> Answers<T> {
    fn new(most: usize) -> Self {
        Self { known: BTreeMap::new(), not_read: HostsNotRead::default(), weight: 0, most }
    }

    /// Keeps an answer. Of too many bytes the largest answers go, so that a host that says much costs no other.
    fn keep(&mut self, host: &str, answer: T, weight: usize) {
        let before = self.known.insert(host.to_owned(), Held { answer, weight });
        self.weight = self.weight.saturating_sub(before.map_or(0, |held| held.weight)).saturating_add(weight);
        while self.weight > self.most
            && let Some(host) =
                self.known.iter().max_by_key(|(_, held)| held.weight).map(|(host, _)| host.clone())
        {
            self.weight -= self.known.remove(&host).map_or(0, |held| held.weight);
            self.not_read
                .add(&host, "its answer is not kept: it is the largest, and all take too much memory");
        }
    }

    fn take(&mut self, outcome: &Outcome, program: &str, hosts: &[String]) {
        match &outcome.said {
            Sink::Host(answer) => {
                let silent = || not_read::reason(outcome, program);
                let is_late = !matches!(outcome.end, End::Exited(_));
                self.add(&outcome.host, answer, is_late, silent);
            }
            Sink::Tasks(said) => {
                let reasons = outcome.messages.reasons_of_tasks();
                let (mut seen, all) = (BTreeSet::new(), not_read::reason(outcome, program));
                let is_late = !matches!(outcome.end, End::Exited(_));
                for (number, task) in &said.tasks {
                    let name = String::from_utf8_lossy(&task.host);
                    let name = if is_host(&name) { name.into_owned() } else { format!("task {number}") };
                    let own = reasons.get(&Some(*number));
                    self.add(&name, &task.answer, is_late, || own.unwrap_or(&all).clone());
                    seen.insert(name);
                }
                for host in hosts.iter().filter(|host| !seen.contains(*host)) {
                    self.not_read.add(host, &all);
                }
                if seen.is_empty() && hosts.is_empty() {
                    self.not_read.add(&outcome.host, all);
                }
            }
        }
    }

    /// Adds what a host said. `silent` says why it may have said nothing; `is_late`: that is also why it is
    /// not whole.
    fn add(&mut self, host: &str, answer: &Answer, is_late: bool, silent: impl Fn() -> String) {
        if answer.is_too_long {
            return self.not_read.add(host, "its answer is too long");
        }
        let text = without_greeting(&answer.bytes);
        match documents::<T>(text, T::COMMAND, T::SCHEMA) {
            Ok(mut all) if all.len() == 1 && all.first().is_some_and(|one| one.host().is_some()) => {
                if let Some(one) = all.pop() {
                    self.keep(host, one, weight(text));
                }
            }
            Ok(all) if all.is_empty() => self.not_read.add(host, silent()),
            Ok(_) => self.not_read.add(host, "its answer is of several hosts"),
            Err(_) if is_late => self.not_read.add(host, silent()),
            Err(error) => self.not_read.add(host, format!("its answer cannot be read: {error:#}")),
        }
    }

    /// Puts the answers into the order of the hosts. Where several say that they are one host, that one
    /// counts that was asked by this name.
    fn gathered(mut self, hosts: &[String]) -> Result<Gathered<T>> {
        let short = |name: &str| name.rsplit('@').next().unwrap_or(name).split('.').next().map(str::to_owned);
        let mut named: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let places: BTreeMap<&String, usize> =
            hosts.iter().enumerate().map(|(at, host)| (host, at)).collect();
        for (asked, held) in &self.known {
            named.entry(held.answer.host().unwrap_or_default().to_owned()).or_default().push(asked.clone());
        }
        for (host, mut asked) in named {
            asked.sort_by_key(|name| (short(name) != short(&host), places.get(name).copied(), name.clone()));
            let first = asked.remove(0);
            for other in asked {
                self.known.remove(&other);
                let why = format!("it says that it is {host}, as {first} does: one host, or two of one name");
                self.not_read.add(&other, why);
            }
        }
        let not_read = self.not_read.into_reports();
        if self.known.is_empty() {
            let why: Vec<String> = dump::grouped(&not_read);
            bail!("no host answered: {}", why.join("; "));
        }
        let mut answers: Vec<(String, Held<T>)> = self.known.into_iter().collect();
        answers.sort_by_key(|(host, _)| places.get(host).copied());
        Ok(Gathered { answers: answers.into_iter().map(|(_, held)| held.answer).collect(), not_read })
    }
}

#[cfg(test)]
mod tests {
    use dump::DumpReport;

    use super::*;

    #[test]
    fn of_too_large_answers_the_largest_go_and_small_ones_stay() {
        let mut answers = Answers::<DumpReport>::new(22_000);
        let mut add = |host: &str, notes: usize| {
            let notes = vec!["\"x\""; notes].join(",");
            let text = format!(
                "{{\"schema\":1,\"hosts\":[\"{host}\"],\"unixTime\":1,\"processes\":[],\"communicators\":[],\
                 \"torchNotes\":[{notes}]}}"
            );
            let answer = Answer { bytes: text.into_bytes(), is_too_long: false };
            answers.add(host, &answer, false, String::new);
        };
        for number in 0..6 {
            add(&format!("n{number}"), 1);
        }
        // Two that are large, of which each alone has room.
        add("evil1", 120);
        add("evil2", 110);
        add("n6", 1);
        let Gathered { answers, not_read } = answers.gathered(&[]).unwrap();
        let hosts: Vec<&str> = answers.iter().filter_map(OfHost::host).collect();
        assert_eq!(hosts, ["evil2", "n0", "n1", "n2", "n3", "n4", "n5", "n6"]);
        assert_eq!(not_read.len(), 1);
        assert!(not_read[0].host == "evil1" && not_read[0].why.contains("it is the largest"), "{not_read:?}");
    }
}
