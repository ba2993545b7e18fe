//! Which rows are asked for.

use std::{ops::RangeInclusive, str::FromStr};

use anyhow::{Result, bail};
use flow::{recording::Member, schema::RankKey};
use serde_json::Value;

use super::{moment::Moment, source::Source};

/// What is asked for. Of each kind that is given, one must fit; what is empty chooses all.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Rows from this moment on …
    pub from: Option<Moment>,
    /// … and before this one.
    pub to: Option<Moment>,
    /// Beginnings of `commHash`, with or without 0x.
    pub comms: Vec<String>,
    /// Ranks in their communicators.
    pub ranks: Vec<RankRange>,
    pub pids: Vec<u32>,
    pub users: Vec<String>,
    pub jobs: Vec<String>,
    /// Everything before the range is read too, so that what is counted from the beginning is the same as in the whole.
    pub exact: bool,
}

/// `3`, or `0-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankRange(RangeInclusive<i32>);

impl FromStr for RankRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u32>().ok().and_then(|rank| i32::try_from(rank).ok());
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self(first..=last)),
            _ => Err(format!("`{text}` is no rank and no range of ranks: give 3 or 0-7")),
        }
    }
}

/// A choice among the rows of one source. Times are by its own clock.
#[derive(Clone, Debug)]
pub(super) struct SourceChoice {
    pub(super) from_ns: u64,
    /// The first that is not taken any more.
    pub(super) until_ns: u64,
    comms: Vec<String>,
    ranks: Vec<RankRange>,
    /// Nothing: all processes.
    pids: Option<Vec<u32>>,
    /// What is counted from the recording's beginning is counted from another moment.
    pub(super) is_from_middle: bool,
    pub(super) read_from_ns: u64,
    pub(super) read_to_ns: u64,
}

/// Records before the range that are read with it: API calls of its ops, the op before on a connection, plans that were launched before.
const LEAD_NS: u64 = 10_000_000_000;

/// Records after the range that are read at most, until the messages of its ops have ended.
const TRAIL_NS: u64 = 60_000_000_000;

impl Choice {
    /// Whether anything is left out.
    pub fn is_all(&self) -> bool {
        let Self { from, to, comms, ranks, pids, users, jobs, exact: _ } = self;
        from.is_none()
            && to.is_none()
            && comms.is_empty()
            && ranks.is_empty()
            && pids.is_empty()
            && users.is_empty()
            && jobs.is_empty()
    }

    /// Beginnings of `commHash` as they are compared, or an error.
    pub(super) fn checked(mut self) -> Result<Self> {
        for comm in &mut self.comms {
            let digits = comm.strip_prefix("0x").unwrap_or(comm).to_ascii_lowercase();
            let is_hash =
                (1..=16).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !is_hash {
                bail!(
                    "`{comm}` is no beginning of a commHash: up to 16 hexadecimal digits, as in the folders' names"
                );
            }
            *comm = digits;
        }
        Ok(self)
    }

    /// The same for one source; `span`: wall times of the earliest and the latest record of all sources.
    pub(super) fn of_source(&self, source: &Source, span: (u64, u64)) -> Result<SourceChoice> {
        let own = |moment: Moment| moment.wall_ns(span).saturating_sub(source.offset_ns());
        let from_ns = self.from.map_or(0, own);
        let until_ns = self.to.map_or(u64::MAX, own);
        let first_ns = source.span_ns.map_or(0, |(first, _)| first);
        let read_from_ns = if self.exact { 0 } else { from_ns.saturating_sub(LEAD_NS) };
        let pids = self.processes(source)?;
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

    /// Processes that are asked for by number, user or job.
    fn processes(&self, source: &Source) -> Result<Option<Vec<u32>>> {
        let mut pids = (!self.pids.is_empty()).then(|| self.pids.clone());
        let users: Says =
            |target| [name(&target["user"]), name(&target["uid"])].into_iter().flatten().collect();
        let jobs: Says = |target| name(&target["job"]["name"]).into_iter().collect();
        for (option, asked, says) in [("--user", &self.users, users), ("--job", &self.jobs, jobs)] {
            if asked.is_empty() {
                continue;
            }
            let targets = &source.report.targets;
            if targets.iter().all(|target| says(target).is_empty()) {
                bail!(
                    "`{}` says of no process what {option} asks for: it was recorded without; choose with --pid",
                    source.path.display()
                );
            }
            let fits = |target: &&Value| says(target).iter().any(|said| asked.contains(said));
            let pid = |target: &Value| u32::try_from(target["pid"].as_u64()?).ok();
            let chosen: Vec<u32> = targets.iter().filter(fits).filter_map(pid).collect();
            pids = Some(match pids {
                None => chosen,
                Some(before) => before.into_iter().filter(|pid| chosen.contains(pid)).collect(),
            });
        }
        Ok(pids)
    }
}

/// What a report says of a process.
type Says = fn(&Value) -> Vec<String>;

/// A name, or a number as text.
fn name(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

impl SourceChoice {
    /// Whether a row of this rank and time is asked for; calls that belong to no communicator have no rank.
    pub(super) fn takes(&self, rank: Option<&RankKey>, pid: u32, ts_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&ts_ns)
            && self.takes_pid(pid)
            && match rank {
                Some(key) => self.takes_comm(key.hash) && self.takes_rank(key.rank),
                None => self.comms.is_empty() && self.ranks.is_empty(),
            }
    }

    /// Whether records of this member can be asked for. Those that name no communicator can be of any of their process; and other ranks'
    /// processes, too, tell what becomes of a rank's messages (PXN).
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
        self.ranks.is_empty() || self.ranks.iter().any(|range| range.0.contains(&rank))
    }
}
