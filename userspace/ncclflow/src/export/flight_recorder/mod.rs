//! Files of torch's flight recorder, one for each rank of the job, of jobs in which it was never armed.
//!
//! An entry is a call of the API where calls were recorded, else an op that NCCL launched. What NCCL's calls do not tell is
//! left as torch's readers take it: every state is `scheduled`, as nobody saw the GPU, and each tensor has one dimension.
//! torch's analyser compares entries by `collective_seq_id`, so ranks' numbers have to meet: what is before the first
//! collective that all recorded ranks of a communicator have is left out.

mod spool;
mod stack_table;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use anyhow::{Context as _, Result, bail};
use flow::schema::{ApiCall, Op, RankKey, StackRow, comm_hash_name};
use nccl_library::nccl::{Name, Pattern, datatype_bytes};
use serde_json::Value;

use self::{
    spool::{Spool, Waiting},
    stack_table::StackTable,
};
use super::{call_numbers::CallNumbers, format::View, job::Job, run::Exported, source::Source, who::Who};
use crate::{
    flight_recorder::{Entry, Function, GlobalRanks, GroupStatus, Operation, ProcessGroup, RankFiles},
    sinks::Sink,
};

/// Files of ranks of the job.
const MAX_FILES: usize = 4096;

/// Communicators, and ranks of them.
const MAX_GROUPS: usize = 65_536;
const MAX_RANKS: usize = 65_536;

/// Ops of a rank that are known to have an entry: the rows of an op's channels do not always come in a row.
const MAX_SEEN: usize = 256;

/// The number of a send or receive that NCCL launched: it follows from its place among the collectives.
const BY_PLACE: u64 = u64::MAX;

/// Notes about communicators that are left out.
const MAX_NOTES: usize = 20;

/// A communicator.
#[derive(Clone, Debug)]
struct Group {
    process_group: ProcessGroup,
    /// The first collective that all its recorded ranks have.
    from: u64,
}

/// A rank of the job.
#[derive(Debug)]
struct JobRank {
    /// Host and process.
    owner: (String, u32),
    /// Of the process, in [`FlightRecorder::processes`].
    process: usize,
    spool: Spool,
    /// Its communicators, with the first collective that it has of each.
    groups: BTreeMap<u32, Option<u64>>,
    nccl_version: Option<String>,
}

/// A rank of a communicator, in the present source.
#[derive(Debug)]
struct CommRank {
    /// Nothing: it is left out.
    group: Option<u32>,
    job_rank: i64,
    numbers: CallNumbers,
    /// Ops that have an entry.
    seen: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    entries: u64,
    without_communicator: u64,
    not_in_torch: u64,
    of_one_rank: u64,
    p2p: u64,
    left_out_p2p: u64,
    before: u64,
    without_stack: u64,
    uncertain: u64,
    inferred: u64,
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
    /// Of the present source: entries are made of its calls.
    of_calls: bool,
    /// Of the present source: records were lost.
    was_lost: bool,
    nccl_version: Option<String>,
    comm_ranks: HashMap<RankKey, CommRank>,
    groups: Vec<Group>,
    group_numbers: BTreeMap<(u64, u32), Option<u32>>,
    /// By rank of the job.
    ranks: BTreeMap<i64, JobRank>,
    processes: Vec<(String, u32)>,
    stacks: StackTable,
    datatypes: Vec<Name>,
    refused: Vec<String>,
    derived: BTreeSet<i64>,
    totals: Totals,
    files: usize,
    failed: bool,
    errors: Vec<String>,
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
            of_calls: false,
            was_lost: false,
            nccl_version: None,
            comm_ranks: HashMap::new(),
            groups: Vec::new(),
            group_numbers: BTreeMap::new(),
            ranks: BTreeMap::new(),
            processes: Vec::new(),
            stacks: StackTable::default(),
            datatypes: Vec::new(),
            refused: Vec::new(),
            derived: BTreeSet::new(),
            totals: Totals::default(),
            files: 0,
            failed: false,
            errors: Vec::new(),
        })
    }

    fn put(&mut self, put: impl FnOnce(&mut Self) -> Result<()>) {
        if self.failed {
            return;
        }
        if let Err(error) = put(self) {
            self.failed = true;
            self.errors.push(format!("writing the flight recorder's files: {error:#}"));
        }
    }

    fn process(&mut self, pid: u32) -> usize {
        let known = self.processes.iter().rposition(|(host, known)| *known == pid && *host == self.host);
        known.unwrap_or_else(|| {
            self.processes.push((self.host.clone(), pid));
            self.processes.len() - 1
        })
    }

    /// The communicator's number, if the job's ranks are known of its own.
    fn group(&mut self, key: RankKey, n_ranks: i32) -> Result<Option<u32>> {
        let (Some(hash), Ok(n_ranks)) = (key.hash, u32::try_from(n_ranks)) else { return Ok(None) };
        if let Some(known) = self.group_numbers.get(&(hash, key.instance)) {
            return Ok(*known);
        }
        if self.group_numbers.len() >= MAX_GROUPS {
            bail!("there are more than {MAX_GROUPS} communicators");
        }
        let known = self.job.known(hash);
        let of_job = known.iter().filter_map(|(rank, of)| Some((*rank, u32::try_from(of.rank).ok()?)));
        let number = match GlobalRanks::of(n_ranks, &of_job.collect()) {
            Err(why) => {
                self.refused.push(format!("communicator {} is left out: {why}", key.comm_name()));
                None
            }
            Ok(GlobalRanks { ranks, inferred }) => {
                self.totals.inferred += u64::from(inferred);
                let is_derived = |rank: u32| known.get(&rank).is_some_and(|rank| rank.is_derived);
                let derived = (0..n_ranks).filter(|rank| is_derived(*rank));
                let derived = derived.filter_map(|rank| ranks.get(rank as usize).copied());
                self.derived.extend(derived.filter_map(|rank| i64::try_from(rank).ok()));
                let id = self.groups.len() as u64;
                let desc = self.comm_names.get(&comm_hash_name(key.hash));
                let process_group = ProcessGroup {
                    id,
                    name: key.comm_name().into(),
                    desc: desc.map_or("undefined", String::as_str).into(),
                    ranks,
                    status: None,
                };
                self.groups.push(Group { process_group, from: 0 });
                u32::try_from(id).ok()
            }
        };
        self.group_numbers.insert((hash, key.instance), number);
        Ok(number)
    }

    /// The rank of a communicator, as it is known in this source.
    fn comm_rank(&mut self, key: RankKey, n_ranks: i32) -> Result<&mut CommRank> {
        if !self.comm_ranks.contains_key(&key) {
            if self.comm_ranks.len() >= MAX_RANKS {
                bail!("there are more than {MAX_RANKS} ranks of communicators");
            }
            let group = self.group(key, n_ranks)?;
            let ranks = group.and_then(|group| self.groups.get(group as usize));
            let place = usize::try_from(key.rank).ok();
            let job_rank = ranks.zip(place).and_then(|(group, rank)| group.process_group.ranks.get(rank));
            let job_rank = job_rank.and_then(|rank| i64::try_from(*rank).ok());
            let comm_rank = CommRank {
                group: group.filter(|_| job_rank.is_some()),
                job_rank: job_rank.unwrap_or(-1),
                numbers: CallNumbers::default(),
                seen: BTreeSet::new(),
            };
            self.comm_ranks.insert(key, comm_rank);
        }
        self.comm_ranks.get_mut(&key).context("a rank is missing")
    }

    /// Keeps an operation of a rank. `number`: makes its number of what is known of the rank; nothing: it is known
    /// already.
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
        let job_rank = comm_rank.job_rank;
        (operation.group, operation.number) = (group, number);
        let owner = (self.host.clone(), key.pid);
        if !self.ranks.contains_key(&job_rank) {
            if self.ranks.len() >= MAX_FILES {
                bail!("the job has more than {MAX_FILES} ranks");
            }
            let process = self.process(key.pid);
            let rank = JobRank {
                owner: owner.clone(),
                process,
                spool: Spool::new(self.output.nameless().context("making a temporary file")?),
                groups: BTreeMap::new(),
                nccl_version: self.nccl_version.clone(),
            };
            self.ranks.insert(job_rank, rank);
        }
        let rank = self.ranks.get_mut(&job_rank).context("a rank of the job is missing")?;
        if rank.owner != owner {
            let (host, pid) = &rank.owner;
            bail!(
                "processes {pid} on {host} and {} on {} are both rank {job_rank} of their job: choose one job with --job or --pid",
                owner.1,
                owner.0
            );
        }
        let first = rank.groups.entry(group).or_default();
        if number != BY_PLACE {
            *first = Some(first.map_or(number, |first| first.min(number)));
        }
        rank.spool.push(operation)?;
        Ok(())
    }

    fn datatype(&mut self, name: Option<&Name>) -> Option<u8> {
        let name = name?;
        let known = self.datatypes.iter().position(|known| known == name);
        let at = known.or_else(|| {
            (self.datatypes.len() < 64).then(|| {
                self.datatypes.push(name.clone());
                self.datatypes.len() - 1
            })
        });
        at.and_then(|at| u8::try_from(at).ok())
    }

    /// A function's operation, if torch has one and it is asked for.
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
            number: 0,
            count: Some(row.count),
            stack: row.stack,
            group: 0,
            tid: row.tid,
            root: row.root.and_then(|root| u32::try_from(root).ok()),
            peer: row.peer.and_then(|peer| u32::try_from(peer).ok()),
            function: function.code(),
            datatype: self.datatype(row.datatype.as_ref()),
        };
        let (launched, was_lost) = (row.launched, self.was_lost);
        self.keep(key, n_ranks, operation, |rank| {
            Some(rank.numbers.number(function.is_counted(), launched, was_lost))
        })
    }

    fn take_op(&mut self, op: &Op) -> Result<()> {
        let row = &op.row;
        let is_p2p = row.pattern.is_p2p();
        let name = match row.pattern {
            Pattern::Send => "Send",
            Pattern::Recv => "Recv",
            _ => row.coll_api.as_ref().or(row.coll.as_ref()).map_or("unknown", Name::as_str),
        };
        let bytes = op.call_bytes.or(row.bytes.filter(|_| is_p2p));
        let element = row.dtype.as_ref().and_then(|name| datatype_bytes(name.as_str()));
        let count = bytes.zip(element).map(|(bytes, element)| bytes / element).or(row.count);
        let root = u32::try_from(row.root).ok();
        let Some(function) = self.function(name) else { return Ok(()) };
        let operation = Waiting {
            ts_ns: row.ts_ns.saturating_add(self.offset_ns),
            number: 0,
            count,
            stack: row.stack,
            group: 0,
            tid: row.tid,
            root: root.filter(|_| !is_p2p),
            peer: root.filter(|_| is_p2p),
            function: function.code(),
            datatype: self.datatype(row.dtype.as_ref()),
        };
        let seq = row.seq;
        self.keep(op.rank, row.n_ranks, operation, |rank| {
            let is_new = rank.seen.insert(seq);
            if rank.seen.len() > MAX_SEEN {
                rank.seen.pop_first();
            }
            // A send's own number says nothing of collectives.
            is_new.then_some(if is_p2p { BY_PLACE } else { seq >> 1 })
        })
    }

    /// Writes the file of a rank of the job. It has its name when it is complete.
    fn write_file(&mut self, job_rank: i64, rank: JobRank) -> Result<()> {
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
            if counts.number(operation, function) < group.from {
                totals.before += 1;
                return Ok(());
            }
            let entry = counts.entry(operation, function, &group.process_group, datatypes);
            let frames = operation.stack.and_then(|stack| stacks.get(process, stack));
            totals.without_stack += u64::from(frames.is_none());
            file.writer.entry(&Entry { record_id, frames, ..entry })?;
            record_id += 1;
            Ok(())
        })?;
        self.totals.entries += record_id;
        let own = groups.keys().filter_map(|number| {
            let group = self.groups.get(*number as usize)?.process_group.clone();
            let enqueued = counts.get(number).map_or(-1, |counts| {
                i64::try_from(counts.collectives).ok().filter(|count| *count > 0).unwrap_or(-1)
            });
            let status = GroupStatus { last_enqueued: enqueued, last_started: -1, last_completed: -1 };
            Some(ProcessGroup { status: Some(status), ..group })
        });
        let own: Vec<ProcessGroup> = own.collect();
        file.finish(&own, nccl_version.as_deref())?;
        self.files += 1;
        Ok(())
    }
}

/// What was read and written of a group.
#[derive(Debug, Default)]
struct Counts {
    /// Its rank in the group.
    rank: u32,
    /// NCCL's number of the collective that comes next.
    next: u64,
    /// torch's number of the latest collective, from 1 on.
    collectives: u64,
    /// Collectives that NCCL does not count as such.
    uncounted: u64,
    p2p: u64,
    operations: u64,
}

impl Counts {
    fn of(group: &ProcessGroup, job_rank: i64) -> Self {
        let place = group.ranks.iter().position(|rank| i64::try_from(*rank) == Ok(job_rank));
        Self { rank: place.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(0), ..Self::default() }
    }

    /// NCCL's number of a collective; of another operation, that of the next collective.
    fn number(&mut self, operation: &Waiting, function: Function) -> u64 {
        if operation.number == BY_PLACE {
            return self.next;
        }
        self.next = operation.number.saturating_add(u64::from(function.is_counted())).max(self.next);
        operation.number
    }

    fn entry(
        &mut self,
        operation: &Waiting,
        function: Function,
        group: &ProcessGroup,
        datatypes: &[Name],
    ) -> Entry {
        self.operations += 1;
        if function.is_p2p() {
            self.p2p += 1;
        } else {
            let number = operation.number.saturating_add(self.uncounted).saturating_add(1);
            self.collectives = number.max(self.collectives + 1);
            self.uncounted += u64::from(!function.is_counted());
        }
        let mut entry = Entry {
            pg_id: group.id,
            process_group: (Arc::clone(&group.name), Arc::clone(&group.desc)),
            collective_seq_id: self.collectives,
            p2p_seq_id: self.p2p,
            op_id: self.operations,
            time_created_ns: operation.ts_ns,
            thread_id: Some(operation.tid.to_string()),
            ..Entry::default()
        };
        let datatype = operation.datatype.and_then(|at| datatypes.get(usize::from(at)));
        Operation {
            function,
            count: operation.count,
            datatype: datatype.map(Name::as_str),
            rank: self.rank,
            root: operation.root,
            peer: operation.peer,
        }
        .describe(group, &mut entry);
        entry
    }
}

impl View for FlightRecorder {
    fn look_at(&mut self, sources: &[Source]) -> Result<()> {
        for source in sources {
            self.job.add(source).with_context(|| format!("in `{}`", source.path.display()))?;
            for facts in Who::of(source).all() {
                if let Some(name) = facts.comm_name.as_ref().filter(|name| !name.is_empty()) {
                    self.comm_names.entry(facts.comm_hash.clone()).or_insert_with(|| name.clone());
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, source: &Source) -> Result<()> {
        source.host().clone_into(&mut self.host);
        self.offset_ns = source.offset_ns();
        let report: Value = serde_json::from_str(&source.text).unwrap_or_default();
        self.of_calls = source.is_of_calls() || report["api"] == true;
        self.was_lost = source.has_losses();
        let libraries = report["libraries"].as_array().map_or(&[][..], Vec::as_slice);
        self.nccl_version =
            libraries.iter().find_map(|library| library["nccl_version"].as_str().map(str::to_owned));
        self.end_source();
        Ok(())
    }

    fn finish(&mut self, exported: &Exported) -> Result<()> {
        self.end_source();
        if let Some(error) = self.errors.first() {
            bail!("{error}");
        }
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
        for (group, first) in ranks.values().flat_map(|rank| &rank.groups) {
            if let (Some(group), Some(first)) = (self.groups.get_mut(*group as usize), first) {
                group.from = group.from.max(*first);
            }
        }
        for (job_rank, rank) in ranks {
            self.write_file(job_rank, rank)?;
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let totals = &self.totals;
        let mut notes = vec![format!(
            "{} entries of {} ranks of the job, {} process groups; their states are all `scheduled`: what the GPU did is not known",
            totals.entries,
            self.files,
            self.groups.len()
        )];
        notes.extend(self.refused.iter().take(MAX_NOTES).cloned());
        if self.refused.len() > MAX_NOTES {
            notes.push(format!("{} more communicators are left out", self.refused.len() - MAX_NOTES));
        }
        let mut note = |count: u64, text: &str| {
            if count > 0 {
                notes.push(format!("{count} {text}"));
            }
        };
        note(
            totals.before,
            "entries are left out, as they are from before the first collective that all recorded ranks of their group have",
        );
        note(
            totals.without_stack,
            "entries have no frames: no stack was recorded for them (record --stacks)",
        );
        note(
            totals.uncertain,
            "ranks of communicators may be numbered otherwise than others: their beginning was not recorded, and more was launched than called",
        );
        note(
            totals.inferred,
            "ranks of communicators were not recorded, and are taken for those ranks of the job that have their number",
        );
        note(
            self.derived.len() as u64,
            "ranks of the job are derived: the ranks in the largest communicators",
        );
        note(totals.without_communicator, "calls have no communicator that is known, and no entry");
        note(
            totals.not_in_torch,
            "calls are of functions that torch has no operation for, and have no entry",
        );
        note(totals.of_one_rank, "calls or ops are of communicators of one rank, and have no entry");
        note(totals.left_out_p2p, "sends and receives are left out (--collectives-only)");
        note(
            totals.p2p - totals.left_out_p2p,
            "sends and receives have entries of their own, as their groups are not known: torch's analyser may call them mismatched, and compares no collectives of their group after that; --collectives-only leaves them out",
        );
        notes
    }
}

impl FlightRecorder {
    /// No more rows of the present source come.
    fn end_source(&mut self) {
        for rank in self.comm_ranks.drain().map(|(_, rank)| rank) {
            self.totals.uncertain += u64::from(rank.group.is_some() && !rank.numbers.are_certain());
        }
    }
}

impl Sink for FlightRecorder {
    fn op(&mut self, op: &Op) {
        if !self.of_calls {
            self.put(|this| this.take_op(op));
        }
    }

    fn wants_messages(&self, _op: &Op) -> bool {
        false
    }

    fn call(&mut self, call: &ApiCall) {
        if self.of_calls {
            self.put(|this| this.take_call(call));
        }
    }

    fn stack(&mut self, stack: &StackRow) {
        let process = self.process(stack.pid);
        self.stacks.insert(process, stack);
    }

    fn take_errors(&mut self) -> Vec<String> {
        std::mem::take(&mut self.errors)
    }
}
