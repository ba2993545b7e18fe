//! Files of torch's flight recorder, one for each rank of the job, of jobs in which it was never armed.
//!
//! An entry is a call of the API where calls were recorded, else an op that NCCL launched. Values that NCCL's
//! calls do not tell are left as torch's readers take them: every state is `scheduled`, as nobody saw the
//! GPU, and each tensor has one dimension. torch's analyser compares entries by `collective_seq_id`, so
//! ranks' numbers have to meet: entries before the first collective that all recorded ranks of a communicator
//! have are left out.

mod counts;
mod files;
mod groups;
mod spool;
mod stack_table;
mod totals;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
};

use anyhow::{Context as _, Result, bail};
use flow::{
    schema::{ApiCall, Op, RankKey, StackId},
    text::counted,
};
use nccl_library::nccl::{Name, Pattern, datatype_bytes};

pub use self::files::RankFiles;
use self::{
    counts::Counts,
    spool::{Spool, Waiting},
    stack_table::StackTable,
    totals::Totals,
};
use super::{
    bounded::get_or_make,
    job::{Job, check_owner},
    run::Exported,
    view::{Row, View, Wanted},
};
use crate::sources::{CallNumbers, Source};
use torch::flight_recorder::{Entry, Function, GroupStatus, Places, ProcessGroup};

/// Most ranks of the job, each with a file.
const MAX_FILES: usize = 4096;

/// Most communicators, and most ranks of them.
const MAX_GROUPS: usize = 65_536;
const MAX_RANKS: usize = 65_536;

/// Most ranks of all communicators, recorded or not.
const MAX_MEMBERS: usize = 1 << 22;

/// Time by which a rank must have been watched longer than a collective took to come on another, to say that
/// it has not joined it. Wall clocks of hosts differ less.
const LATE_NS: u64 = 1_000_000_000;

/// Most ops of a rank that are known to have an entry: the rows of an op's channels do not always come in
/// succession.
const MAX_SEEN: usize = 256;

/// Number of a send or receive that NCCL launched: the real one follows from its place among the collectives.
const BY_PLACE: u64 = u64::MAX;

/// Most names of data types.
const MAX_DATATYPES: usize = 64;

/// Most notes about communicators that are left out.
const MAX_NOTES: usize = 20;

/// A communicator.
#[derive(Clone, Debug)]
struct CommGroup {
    process_group: ProcessGroup,
    places: Places,
    /// The first collective that all its recorded ranks have, and the last.
    from: u64,
    until: u64,
}

/// A rank of the job.
#[derive(Debug)]
struct JobRank {
    /// Host and process.
    owner: (String, u32),
    /// Index of the process in [`FlightRecorder::processes`].
    process: usize,
    spool: Spool,
    /// Communicators of the rank, with the first and the last collective that it has of each.
    groups: BTreeMap<u32, Option<(u64, u64)>>,
    nccl_version: Option<String>,
}

/// A rank of a communicator, in the present source.
#[derive(Debug)]
struct CommRank {
    /// Number of the group; `None` if it is left out.
    group: Option<u32>,
    of_job: i64,
    numbers: CallNumbers,
    /// Ops that have an entry already.
    seen: BTreeSet<u64>,
}

#[derive(Debug)]
pub(super) struct FlightRecorder {
    output: RankFiles,
    collectives_only: bool,
    job: Job,
    /// Names that programs gave communicators, by `commHash`.
    comm_names: HashMap<String, String>,
    host: String,
    offset_ns: u64,
    /// Wall time of the end of each source.
    ended_ns: Vec<Option<u64>>,
    /// Set if entries are made of calls, in the present source.
    of_calls: bool,
    /// Set if records were lost, in the present source.
    was_lost: bool,
    nccl_version: Option<String>,
    comm_ranks: BTreeMap<RankKey, CommRank>,
    groups: Vec<CommGroup>,
    group_numbers: BTreeMap<(u64, u32), Option<u32>>,
    /// Number of ranks of all groups, also of those that were not recorded.
    members: usize,
    /// Ranks by number in the job.
    ranks: BTreeMap<i64, JobRank>,
    /// Numbers of processes, by host and process ID.
    processes: HashMap<(String, u32), usize>,
    stacks: StackTable,
    datatypes: Vec<Name>,
    refused: Vec<String>,
    derived: BTreeSet<i64>,
    totals: Totals,
    files: usize,
}

impl FlightRecorder {
    pub(super) fn create(path: &Path, collectives_only: bool) -> Result<Self> {
        Ok(Self {
            output: RankFiles::at(path)?,
            collectives_only,
            job: Job::default(),
            comm_names: HashMap::new(),
            host: String::new(),
            offset_ns: 0,
            ended_ns: Vec::new(),
            of_calls: false,
            was_lost: false,
            nccl_version: None,
            comm_ranks: BTreeMap::new(),
            groups: Vec::new(),
            group_numbers: BTreeMap::new(),
            members: 0,
            ranks: BTreeMap::new(),
            processes: HashMap::new(),
            stacks: StackTable::default(),
            datatypes: Vec::new(),
            refused: Vec::new(),
            derived: BTreeSet::new(),
            totals: Totals::default(),
            files: 0,
        })
    }

    /// Keeps an operation of a rank. `number` makes its number from what is known of the rank, or gives
    /// `None` if the operation has an entry already.
    fn keep(
        &mut self,
        key: RankKey,
        n_ranks: i32,
        mut operation: Waiting,
        number: impl FnOnce(&mut CommRank) -> Option<u64>,
    ) -> Result<()> {
        if n_ranks <= 1 {
            self.totals.of_one_rank += 1;
            return Ok(());
        }
        let comm_rank = self.comm_rank(key, n_ranks)?;
        let Some(group) = comm_rank.group else {
            self.totals.without_communicator += u64::from(key.hash.is_none());
            return Ok(());
        };
        let Some(number) = number(comm_rank) else { return Ok(()) };
        let job_rank = comm_rank.of_job;
        (operation.group, operation.number) = (group, number);
        let owner = (self.host.clone(), key.pid);
        let refusal = format_args!("the job has more than {MAX_FILES} ranks");
        let rank = get_or_make(&mut self.ranks, job_rank, MAX_FILES, refusal, |_| {
            Ok(JobRank {
                owner: owner.clone(),
                process: number_of(&mut self.processes, owner.clone()),
                spool: Spool::new(self.output.dir.nameless_file().context("making a temporary file")?),
                groups: BTreeMap::new(),
                nccl_version: self.nccl_version.clone(),
            })
        })?;
        check_owner(job_rank, &rank.owner, &owner)?;
        let range = rank.groups.entry(group).or_default();
        if number != BY_PLACE {
            let (first, last) = range.unwrap_or((number, number));
            *range = Some((first.min(number), last.max(number)));
        }
        rank.spool.push(operation)?;
        Ok(())
    }

    /// Returns the number of a type; `None` if there are too many.
    fn datatype(&mut self, name: Option<&Name>) -> Option<u32> {
        let name = name?;
        let at = self.datatypes.iter().position(|known| known == name).unwrap_or(self.datatypes.len());
        if at == self.datatypes.len() && at < MAX_DATATYPES {
            self.datatypes.push(name.clone());
        }
        u32::try_from(at).ok().filter(|_| at < MAX_DATATYPES)
    }

    /// Returns a function's operation, if torch has one and it is asked for.
    fn function(&mut self, name: &str) -> Option<Function> {
        let Some(function) = Function::of(name) else {
            self.totals.not_in_torch += 1;
            return None;
        };
        self.totals.p2p += u64::from(function.is_p2p());
        if function.is_p2p() && self.collectives_only {
            self.totals.left_out_p2p += 1;
            return None;
        }
        Some(function)
    }

    fn take_call(&mut self, call: &ApiCall) -> Result<()> {
        let row = &call.row;
        let (Some(key), Some(n_ranks)) = (call.rank, row.n_ranks) else {
            self.totals.without_communicator += 1;
            return Ok(());
        };
        let Some(function) = self.function(row.function.as_str()) else { return Ok(()) };
        let operation = Waiting {
            ts_ns: row.ts_ns.saturating_add(self.offset_ns),
            count: Some(row.count),
            stack: row.stack.map(|stack| stack.0),
            tid: row.tid,
            root: row.root.and_then(|root| u32::try_from(root).ok()),
            peer: row.peer.and_then(|peer| u32::try_from(peer).ok()),
            function: function.code().into(),
            datatype: self.datatype(row.datatype.as_ref()),
            ..Waiting::default()
        };
        let (launched, was_lost) = (row.launched, self.was_lost);
        self.keep(key, n_ranks, operation, |rank| {
            Some(rank.numbers.number(function.is_counted(), launched, was_lost))
        })
    }

    fn take_op(&mut self, op: &Op) -> Result<()> {
        let row = &op.row;
        if row.pattern.has_no_ops() {
            // The analyser lays ranks beside each other by numbers, which NCCL gives none of these.
            return Ok(());
        }
        if row.graph_launch.is_some() {
            // It has the number of the captured op, which has an entry.
            self.totals.launched_replays += 1;
            return Ok(());
        }
        let is_p2p = row.pattern.is_p2p();
        let name = match row.pattern {
            Pattern::Send => "Send",
            Pattern::Recv => "Recv",
            _ => row.called().map_or("unknown", Name::as_str),
        };
        let element = row.dtype.as_ref().and_then(|name| datatype_bytes(name.as_str()));
        let count = op.bytes().zip(element).map(|(bytes, element)| bytes / element).or(row.count);
        let root = u32::try_from(row.root).ok();
        let Some(function) = self.function(name) else { return Ok(()) };
        let operation = Waiting {
            ts_ns: row.ts_ns.saturating_add(self.offset_ns),
            count,
            stack: row.stack.map(|stack| stack.0),
            tid: row.tid,
            root: root.filter(|_| !is_p2p),
            peer: root.filter(|_| is_p2p),
            function: function.code().into(),
            datatype: self.datatype(row.dtype.as_ref()),
            ..Waiting::default()
        };
        let seq = row.seq;
        self.keep(op.rank, row.n_ranks, operation, |rank| {
            let is_new = rank.seen.insert(seq);
            if rank.seen.len() > MAX_SEEN {
                rank.seen.pop_first();
            }
            // A send's own number is not counted with collectives.
            is_new.then_some(if is_p2p { BY_PLACE } else { seq >> 1 })
        })
    }

    /// Writes the file of a rank of the job. It gets its name when it is complete.
    fn write_file(&mut self, job_rank: i64, rank: JobRank, judged_until_ns: u64) -> Result<()> {
        let JobRank { process, spool, groups, nccl_version, owner: _ } = rank;
        let mut file = self.output.create(u64::try_from(job_rank)?)?;
        let mut counts: BTreeMap<u32, Counts> = BTreeMap::new();
        let mut record_id = 0;
        let (all, stacks, datatypes, totals) =
            (&self.groups, &self.stacks, &self.datatypes, &mut self.totals);
        spool.read(|operation| {
            let (Some(group), Some(function)) = (all.get(operation.group as usize), operation.function())
            else {
                return Ok(());
            };
            let counts =
                counts.entry(operation.group).or_insert_with(|| Counts::of(&group.process_group, job_rank));
            let number = counts.number(operation, function);
            if number < group.from {
                totals.before += 1;
                return Ok(());
            }
            if number > group.until && operation.ts_ns > judged_until_ns {
                totals.after += 1;
                return Ok(());
            }
            let entry = counts.entry(operation, function, group, datatypes);
            let frames = operation.stack.and_then(|stack| stacks.get(process, StackId(stack)));
            totals.without_stack += u64::from(frames.is_none());
            file.writer.entry(&Entry { record_id, frames, ..entry })?;
            record_id += 1;
            Ok(())
        })?;
        self.totals.entries += record_id;
        let own = groups.keys().filter_map(|number| {
            let group = self.groups.get(*number as usize)?.process_group.clone();
            let status = GroupStatus::enqueued(counts.get(number).map_or(0, |counts| counts.collectives));
            Some(ProcessGroup { status: Some(status), ..group })
        });
        let own: Vec<ProcessGroup> = own.collect();
        file.finish(&own, nccl_version.as_deref())?;
        self.files += 1;
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let totals = &self.totals;
        let mut notes = vec![format!(
            "{} entries of {} of the job, {}; their states are all `scheduled`: what the GPU did is not known",
            totals.entries,
            counted(self.files as u64, "rank"),
            counted(self.groups.len() as u64, "process group")
        )];
        notes.extend(self.refused.iter().take(MAX_NOTES).cloned());
        if self.refused.len() > MAX_NOTES {
            notes.push(format!("{} more communicators are left out", self.refused.len() - MAX_NOTES));
        }
        notes.extend(totals.notes(self.derived.len() as u64));
        notes
    }
}

/// Returns the number of a process, which is given if it is new.
fn number_of(processes: &mut HashMap<(String, u32), usize>, process: (String, u32)) -> usize {
    let next = processes.len();
    *processes.entry(process).or_insert(next)
}

impl View for FlightRecorder {
    fn look_at(&mut self, sources: &[Source]) -> Result<()> {
        self.job = Job::of(sources)?;
        for facts in sources.iter().flat_map(|source| &source.session().communicators) {
            if let Some(name) = facts.comm_name.as_ref().filter(|name| !name.is_empty()) {
                self.comm_names.entry(facts.comm_hash.clone()).or_insert_with(|| name.clone());
            }
        }
        Ok(())
    }

    fn begin(&mut self, source: &Source) -> Result<()> {
        source.host().clone_into(&mut self.host);
        self.offset_ns = source.offset_ns();
        let session = source.session();
        let ended_ns = session.clock.ended_monotonic_ns;
        self.ended_ns.push(ended_ns.map(|ended| ended.saturating_add(self.offset_ns)));
        self.of_calls = source.has_calls();
        self.was_lost = session.has_losses();
        self.nccl_version = session
            .libraries
            .iter()
            .find_map(|library| library.nccl_version)
            .map(|version| version.to_string());
        self.end_source();
        Ok(())
    }

    fn wanted(&self, _op: &Op) -> Wanted {
        Wanted::Nothing
    }

    fn row(&mut self, row: Row<'_>) -> Result<()> {
        match row {
            Row::Op(op) if !self.of_calls => self.take_op(op),
            Row::Call(call) if self.of_calls => self.take_call(call),
            Row::Stack(stack) => {
                let process = number_of(&mut self.processes, (self.host.clone(), stack.pid));
                self.stacks.insert(process, stack);
                Ok(())
            }
            _ => Ok(()),
        }
        .context("writing the flight recorder's files")
    }

    fn finish(&mut self, exported: &Exported) -> Result<Vec<String>> {
        self.end_source();
        let ranks = std::mem::take(&mut self.ranks);
        if ranks.is_empty() && exported.rows.ops + exported.rows.calls > 0 {
            bail!(
                "nothing of what is asked for has a place in a flight recorder: {}",
                self.refused.first().map_or(
                    "its calls and ops are of communicators of one rank, or of ones that are not known",
                    String::as_str
                )
            );
        }
        for (group, range) in ranks.values().flat_map(|rank| &rank.groups) {
            if let (Some(group), Some((first, last))) = (self.groups.get_mut(*group as usize), range) {
                group.from = group.from.max(*first);
                group.until = group.until.min(*last);
            }
        }
        let judged_until_ns =
            self.watched_until_ns(exported).map_or(u64::MAX, |end| end.saturating_sub(LATE_NS));
        for (job_rank, rank) in ranks {
            self.write_file(job_rank, rank, judged_until_ns)?;
        }
        Ok(self.notes())
    }
}

impl FlightRecorder {
    /// Returns the wall time until which all hosts were watched; `None` if a recording has no end.
    fn watched_until_ns(&self, exported: &Exported) -> Option<u64> {
        let mut hosts: BTreeMap<&str, Option<u64>> = BTreeMap::new();
        for (source, ended_ns) in exported.sources.iter().zip(&self.ended_ns) {
            let until_ns = source.until_ns.map(|until| until.saturating_add(source.offset_ns));
            let end = match (*ended_ns, until_ns) {
                (Some(ended), Some(until)) => Some(ended.min(until)),
                (ended, until) => ended.or(until),
            };
            // A host is watched until its last recording ends.
            hosts
                .entry(&source.host)
                .and_modify(|known| *known = known.zip(end).map(|(a, b)| a.max(b)))
                .or_insert(end);
        }
        hosts.into_values().collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Ends the present source, as no more of its rows come.
    fn end_source(&mut self) {
        for rank in std::mem::take(&mut self.comm_ranks).into_values() {
            self.totals.uncertain += u64::from(rank.group.is_some() && !rank.numbers.are_certain());
        }
    }
}

#[cfg(test)]
mod tests;
