//! Choice of rows.

use flow::{recording::Member, schema::RankKey, session::TargetReport};
use std::{ops::RangeInclusive, str::FromStr};

use anyhow::{Result, bail};

use super::moment::Moment;
use crate::sources::Source;

/// Choice of rows. At least one value of each kind that is given must match; a kind without values chooses
/// all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Begin of the rows' time …
    pub from: Option<Moment>,
    /// … and its end, which is not part of it.
    pub to: Option<Moment>,
    /// Beginnings of `commHash`, with or without 0x.
    pub comms: Vec<String>,
    /// Ranks in their communicators.
    pub ranks: Vec<RankRange>,
    pub pids: Vec<u32>,
    pub users: Vec<String>,
    pub jobs: Vec<String>,
    /// Set if everything before the range is read too, so that values that are counted from the beginning are
    /// the same as in the whole.
    pub exact: bool,
}

/// Splits a list at commas, spaces and ends of lines.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty())
}

/// Ranks, written as `3`, `0-7`, or several of these with commas or spaces between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankRange(Vec<RangeInclusive<i32>>);

impl FromStr for RankRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |text: &str| format!("`{text}` is neither a rank nor a range of ranks: give 3 or 0-7");
        let number = |text: &str| text.parse::<u32>().ok().and_then(|rank| i32::try_from(rank).ok());
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => Ok(first..=last),
                _ => Err(wrong(text)),
            }
        };
        let ranges = words(text).map(range).collect::<Result<Vec<_>, _>>()?;
        if ranges.is_empty() { Err(wrong(text)) } else { Ok(Self(ranges)) }
    }
}

/// A choice among the rows of one source. Times are by its own clock.
#[derive(Clone, Debug)]
pub(super) struct SourceChoice {
    pub(super) from_ns: u64,
    /// First time that is not taken any more.
    pub(super) until_ns: u64,
    comms: Vec<String>,
    ranks: Vec<RankRange>,
    /// Processes; `None` for all.
    pids: Option<Vec<u32>>,
    /// Set if values are not counted from the recording's beginning, but from another moment.
    pub(super) is_from_middle: bool,
    pub(super) read_from_ns: u64,
    pub(super) read_to_ns: u64,
}

/// Time before the range of which records are read with it: API calls of its ops, the op before on a
/// connection, plans that were launched before.
const LEAD_NS: u64 = 10_000_000_000;

/// Most time after the range of which records are read, until the messages of its ops have ended.
const TRAIL_NS: u64 = 60_000_000_000;

impl Choice {
    /// Tells whether nothing is left out.
    pub fn is_all(&self) -> bool {
        *self == Self { exact: self.exact, ..Self::default() }
    }

    /// Brings beginnings of `commHash` into the form in which they are compared, or fails.
    pub(super) fn checked(mut self) -> Result<Self> {
        for comm in &mut self.comms {
            let digits = comm.strip_prefix("0x").unwrap_or(comm).to_ascii_lowercase();
            let is_hash =
                (1..=16).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !is_hash {
                bail!(
                    "`{comm}` is not the beginning of a commHash: give up to 16 hexadecimal digits, as in \
                     the folders' names"
                );
            }
            *comm = digits;
        }
        Ok(self)
    }

    /// Tells whether processes of all numbers, users and jobs are chosen.
    pub(super) fn chooses_no_process(&self) -> bool {
        self.pids.is_empty() && self.users.is_empty() && self.jobs.is_empty()
    }

    /// Makes the choice for one source. `span` has the wall times of the earliest and the latest record of
    /// all sources; `job` returns the job of a process that nobody named.
    pub(super) fn of_source(
        &self,
        source: &Source,
        span: (u64, u64),
        job: &dyn Fn(u32) -> Option<String>,
    ) -> Result<SourceChoice> {
        let own = |moment: Moment| moment.wall_ns(span).saturating_sub(source.offset_ns());
        let from_ns = self.from.map_or(0, own);
        let until_ns = self.to.map_or(u64::MAX, own);
        let first_ns = source.span_ns.map_or(0, |(first, _)| first);
        let read_from_ns = if self.exact { 0 } else { from_ns.saturating_sub(LEAD_NS) };
        let pids = self.processes(source, job)?;
        Ok(SourceChoice {
            from_ns,
            until_ns,
            comms: self.comms.clone(),
            ranks: self.ranks.clone(),
            pids,
            is_from_middle: read_from_ns > first_ns,
            read_from_ns,
            read_to_ns: until_ns.saturating_add(TRAIL_NS),
        })
    }

    /// Returns the processes that are asked for by number, user or job.
    fn processes(&self, source: &Source, job: &dyn Fn(u32) -> Option<String>) -> Result<Option<Vec<u32>>> {
        let mut pids = (!self.pids.is_empty()).then(|| self.pids.clone());
        let users: Says<'_> = &|target| {
            let whose = target.whose.as_ref();
            whose.map_or_else(Vec::new, |whose| vec![whose.user.clone(), whose.uid.to_string()])
        };
        let jobs: Says<'_> = &|target| {
            let named = target.job.as_ref().and_then(|job| job.name.clone());
            named.into_iter().chain(job(target.pid)).collect()
        };
        for (option, asked, says) in [("--user", &self.users, users), ("--job", &self.jobs, jobs)] {
            if asked.is_empty() {
                continue;
            }
            let targets = &source.session().targets;
            if targets.iter().all(|target| says(target).is_empty()) {
                bail!(
                    "`{}` does not have what {option} asks for: it was recorded without; choose with --pid",
                    source.path.display()
                );
            }
            let fits = |target: &&TargetReport| says(target).iter().any(|said| asked.contains(said));
            let chosen: Vec<u32> = targets.iter().filter(fits).map(|target| target.pid).collect();
            pids = Some(match pids {
                None => chosen,
                Some(before) => before.into_iter().filter(|pid| chosen.contains(pid)).collect(),
            });
        }
        Ok(pids)
    }
}

/// Values that a report has of a process, such as its user's names.
type Says<'s> = &'s dyn Fn(&TargetReport) -> Vec<String>;

impl SourceChoice {
    /// Tells whether a row of this rank and time is asked for; calls that belong to no communicator have no
    /// rank.
    pub(super) fn takes(&self, rank: Option<&RankKey>, pid: u32, ts_ns: u64) -> bool {
        self.takes_time(ts_ns)
            && self.takes_pid(pid)
            && match rank {
                Some(key) => self.takes_comm(key.hash) && self.takes_rank(key.rank),
                None => self.comms.is_empty() && self.ranks.is_empty(),
            }
    }

    pub(super) fn takes_time(&self, ts_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&ts_ns)
    }

    /// Tells whether records of this member can be asked for. Records that name no communicator can be of any
    /// of their process. Records of other ranks' processes also tell what becomes of a rank's messages (PXN).
    pub(super) fn takes_member(&self, member: &Member) -> bool {
        member.communicator.is_none_or(|rank| self.takes_comm(rank.hash))
    }

    fn takes_pid(&self, pid: u32) -> bool {
        self.pids.as_ref().is_none_or(|pids| pids.contains(&pid))
    }

    fn takes_comm(&self, hash: Option<u64>) -> bool {
        self.comms.is_empty()
            || hash.is_some_and(|hash| {
                let digits = format!("{hash:016x}");
                self.comms.iter().any(|comm| digits.starts_with(comm))
            })
    }

    fn takes_rank(&self, rank: i32) -> bool {
        self.ranks.is_empty()
            || self.ranks.iter().flat_map(|ranks| &ranks.0).any(|range| range.contains(&rank))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use flow::session::SessionReport;

    fn source() -> Source {
        let report = json!({
            "host": "here",
            "clock": { "clock": "CLOCK_MONOTONIC", "offset_ns": 1_000 },
            "targets": [
                { "pid": 7, "user": "ann", "uid": 1000, "job": { "rank": 0, "name": "llm" } },
                { "pid": 8, "user": "bob", "uid": 1001, "job": { "rank": 1, "name": "llm" } },
                { "pid": 9, "user": "ann", "uid": 1000, "job": null }
            ]
        });
        Source {
            path: "flows".into(),
            session: SessionReport::parse(&report.to_string()),
            span_ns: Some((20_000_000_000, 90_000_000_000)),
            bytes: 0,
            is_over: true,
            clock: None,
        }
    }

    fn chosen(choice: Choice) -> Result<SourceChoice> {
        choice.checked()?.of_source(&source(), (20_000_001_000, 90_000_001_000), &|_| None)
    }

    fn key(hash: u64, rank: i32) -> RankKey {
        RankKey { hash: Some(hash), instance: 0, rank, pid: 7 }
    }

    #[test]
    fn users_and_jobs_are_those_of_the_report() {
        let pids = |users: &[&str], jobs: &[&str], pids: &[u32]| {
            let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            let choice =
                Choice { users: texts(users), jobs: texts(jobs), pids: pids.to_vec(), ..Choice::default() };
            chosen(choice).unwrap().pids
        };
        assert_eq!(pids(&[], &[], &[]), None);
        assert_eq!(pids(&["ann"], &[], &[]), Some(vec![7, 9]));
        assert_eq!(pids(&["1001"], &[], &[]), Some(vec![8]));
        assert_eq!(pids(&[], &["llm"], &[]), Some(vec![7, 8]));
        assert_eq!(pids(&["ann"], &["llm"], &[7, 8]), Some(vec![7]));
        assert_eq!(pids(&["eve"], &[], &[]), Some(vec![]));
    }

    #[test]
    fn times_are_those_of_the_source_and_what_is_around_them_is_read() {
        let from = Some("+30s".parse().unwrap());
        let choice = chosen(Choice { from, to: Some("-10s".parse().unwrap()), ..Choice::default() }).unwrap();
        assert_eq!((choice.from_ns, choice.until_ns), (50_000_000_000, 80_000_000_000));
        assert_eq!((choice.read_from_ns, choice.is_from_middle), (40_000_000_000, true));
        let takes = |at| choice.takes(Some(&key(1, 0)), 7, at);
        assert!(takes(50_000_000_000) && takes(79_999_999_999));
        assert!(!takes(49_999_999_999) && !takes(80_000_000_000));
        let exact = chosen(Choice { from, exact: true, ..Choice::default() }).unwrap();
        assert_eq!((exact.read_from_ns, exact.is_from_middle), (0, false));
        let begin = chosen(Choice { from: Some("+5s".parse().unwrap()), ..Choice::default() }).unwrap();
        assert!(!begin.is_from_middle, "all before it is read anyway");
    }

    #[test]
    fn communicators_by_the_beginning_of_their_hash_and_ranks_by_ranges() {
        let ranks = ["3", "5-7"].map(|text| text.parse().unwrap()).to_vec();
        let choice = Choice { comms: vec!["0xAB".to_owned(), "00c".to_owned()], ranks, ..Choice::default() };
        let choice = chosen(choice).unwrap();
        let takes = |hash, rank| choice.takes(Some(&key(hash, rank)), 7, 0);
        assert!(takes(0xab12_0000_0000_0000, 3) && takes(0x00c0_0000_0000_0000, 6));
        assert!(!takes(0xac12_0000_0000_0000, 3) && !takes(0xab12_0000_0000_0000, 4) && !takes(0xab, 3));
        assert!(!choice.takes(None, 7, 0), "calls of no communicator");
        for wrong in ["", "0x", "xyz", "0x00112233445566778"] {
            assert!(
                chosen(Choice { comms: vec![wrong.to_owned()], ..Choice::default() }).is_err(),
                "{wrong}"
            );
        }
        for wrong in ["", "-1", "7-5", "a"] {
            assert!(wrong.parse::<RankRange>().is_err(), "{wrong}");
        }
    }
}
