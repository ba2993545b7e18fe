//! The logs of the Megatrace interceptor, for tools that read them: one for each rank of the job, with the
//! calls on all its communicators in their order.
//!
//! Lines are as its `log_event` and its writer thread put them (its later versions put host, address and PCI
//! id before, and brackets around each field):
//!
//! ```text
//! [save_count 1] [1755877674.248008482] [Rank 0] Fun ncclAllReduce Data 25165824 stream 0x562a9d0b5020 opCount 8 groupHash -5956285979098587305
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context as _, Result, bail};
use flow::{
    schema::{ApiCall, ApiCallRow, Pointer, RankKey},
    text::counts,
};

use super::{
    bounded::get_or_make,
    job_ranks::{JobRank, job_ranks, members},
    run::Exported,
    view::{Row, View, listed},
};
use crate::sources::Source;
use recording::sinks::{JsonLinesFile, OutputDir};

/// Most processes with files.
const MAX_PROCESSES: usize = 4096;

/// Streams whose calls are counted. A target that uses more wants to fill our memory; the calls on those have
/// number 0.
const MAX_STREAMS: usize = 65_536;

#[derive(Debug)]
pub(super) struct Megatrace {
    dir: OutputDir,
    host: String,
    offset_ns: u64,
    /// Job ranks in the present source.
    job_ranks: HashMap<u32, JobRank>,
    /// Processes by host and process ID.
    processes: BTreeMap<(String, u32), Process>,
    /// Ranks of the job that have a file.
    ranks: BTreeSet<i32>,
    derived: BTreeSet<i32>,
    twice: Vec<String>,
    calls: u64,
    /// Number of calls that belong to no communicator: the interceptor does not know them.
    other_calls: u64,
    /// Number of calls by the arguments of exported functions: the communicator's address stands for its
    /// hash.
    by_arguments: u64,
    /// Number of such calls of processes whose job rank nobody said, by host and process ID.
    without_rank: BTreeMap<(String, u32), u64>,
    is_partial: bool,
}

#[derive(Debug)]
struct Process {
    rank: i32,
    /// Offset from a record's time to wall time.
    offset_ns: u64,
    /// Calls so far, by stream: what the interceptor prints as `opCount`.
    calls: HashMap<u64, u64>,
    file: JsonLinesFile,
}

impl Process {
    fn line(&mut self, hash: Option<u64>, row: &ApiCallRow) -> String {
        let mut op_count = 0;
        if self.calls.len() < MAX_STREAMS || self.calls.contains_key(&row.stream.0) {
            let calls = self.calls.entry(row.stream.0).or_default();
            *calls += 1;
            op_count = *calls;
        }
        let time = row.ts_ns.saturating_add(self.offset_ns);
        let (seconds, nanoseconds) = (time / 1_000_000_000, time % 1_000_000_000);
        // Its readers take letters, digits and underscores.
        let name: String = row.function.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        // As C prints a pointer.
        let stream = match row.stream {
            Pointer(0) => "(nil)".to_owned(),
            Pointer(address) => format!("{address:#x}"),
        };
        format!(
            "[save_count 1] [{seconds}.{nanoseconds:09}] [Rank {}] Fun nccl{name} Data {} stream {stream} \
             opCount {op_count} groupHash {}",
            self.rank,
            row.count,
            hash.unwrap_or(0).cast_signed(),
        )
    }
}

impl Megatrace {
    pub(super) fn new(dir: OutputDir) -> Self {
        Self {
            dir,
            host: String::new(),
            offset_ns: 0,
            job_ranks: HashMap::new(),
            processes: BTreeMap::new(),
            ranks: BTreeSet::new(),
            derived: BTreeSet::new(),
            twice: Vec::new(),
            calls: 0,
            other_calls: 0,
            by_arguments: 0,
            without_rank: BTreeMap::new(),
            is_partial: false,
        }
    }

    /// Returns the rank of a call by arguments, as far as its line tells it. Gives `None` if not even the job
    /// rank is known, as there is no rank in a communicator that it could be derived from.
    fn rank_of_address(&mut self, call: &ApiCall) -> Option<RankKey> {
        let pid = call.row.pid;
        let Some(job) = self.job_ranks.get(&pid) else {
            let key = (self.host.clone(), pid);
            if self.without_rank.len() < MAX_PROCESSES || self.without_rank.contains_key(&key) {
                *self.without_rank.entry(key).or_default() += 1;
            }
            return None;
        };
        self.by_arguments += 1;
        Some(RankKey { hash: Some(call.row.comm.0), instance: 0, rank: job.rank, pid })
    }

    fn write(&mut self, rank: RankKey, call: &ApiCall) -> Result<()> {
        self.is_partial |= call.row.call.is_none() && call.row.by_arguments.is_none();
        let key = (self.host.clone(), call.row.pid);
        let refusal = format_args!("there are files of {MAX_PROCESSES} processes already");
        let process = get_or_make(&mut self.processes, key, MAX_PROCESSES, refusal, |(host, pid)| {
            let known = self.job_ranks.get(pid).copied();
            let job = known.unwrap_or(JobRank { rank: rank.rank, is_derived: true });
            if job.is_derived {
                self.derived.insert(job.rank);
            }
            let mut name = format!("rank_{}.log", job.rank);
            if !self.ranks.insert(job.rank) {
                let host: String =
                    host.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
                name = format!("rank_{}.{host}.{pid}.log", job.rank);
                self.twice.push(name.clone());
            }
            let file = JsonLinesFile::new(self.dir.create_file(&name)?);
            Ok(Process { rank: job.rank, offset_ns: self.offset_ns, calls: HashMap::new(), file })
        })?;
        let line = process.line(rank.hash, &call.row);
        Ok(process.file.push_text(&line)?)
    }

    /// Lists the processes that have calls and no job rank.
    fn unknown_ranks(&self) -> String {
        let processes = self.without_rank.iter();
        let shown = listed(processes.map(|((_, pid), calls)| format!("{pid} ({calls} calls)")), 8);
        format!(
            "nothing says which rank process {shown} has: no environment, no rank map, and no rank in a \
             communicator, as the layouts of its NCCL are not known"
        )
    }

    fn call(&mut self, call: &ApiCall) -> Result<()> {
        let is_by_address = call.row.by_arguments == Some(true) && call.row.comm.0 != 0;
        let rank = match call.rank {
            None if is_by_address => match self.rank_of_address(call) {
                None => return Ok(()),
                rank => rank,
            },
            rank => rank,
        };
        let Some(rank) = rank else {
            self.other_calls += 1;
            return Ok(());
        };
        self.calls += 1;
        self.write(rank, call).with_context(|| format!("writing the log of process {}", call.row.pid))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.derived.is_empty() {
            let ranks = listed(self.derived.iter(), 16);
            notes.push(format!(
                "job ranks {ranks} are derived: the ranks in the largest communicators of the processes"
            ));
        }
        if !self.twice.is_empty() {
            notes.push(format!(
                "several processes have one job rank: the later ones are in {}",
                self.twice.join(", ")
            ));
        }
        if !self.without_rank.is_empty() {
            notes.push(format!("calls are left out: {} (`record --rank-map`)", self.unknown_ranks()));
        }
        if self.by_arguments > 0 {
            notes.push(format!(
                "groupHash of {} calls is the communicator's address in its process: its hash is not known, as the \
                 library's layouts are not. It says nothing about other ranks",
                self.by_arguments
            ));
        }
        let unknown = "calls that belong to no communicator are left out: the interceptor does not know them";
        notes.extend(counts([(self.other_calls, unknown)]));
        if self.is_partial {
            notes.push("opCount is counted from the beginning of the part".to_owned());
        }
        notes
    }
}

impl View for Megatrace {
    fn begin(&mut self, source: &Source) -> Result<()> {
        source.host().clone_into(&mut self.host);
        self.offset_ns = source.offset_ns();
        self.job_ranks = job_ranks(source, &members(source)?);
        Ok(())
    }

    fn row(&mut self, row: Row<'_>) -> Result<()> {
        match row {
            Row::Call(call) => return self.call(call),
            Row::OtherCall(_) => self.other_calls += 1,
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, exported: &Exported) -> Result<Vec<String>> {
        for process in self.processes.values_mut() {
            process.file.flush()?;
        }
        let is_from_middle = exported.sources.iter().any(|source| source.from_ns > 0);
        self.is_partial |= self.by_arguments > 0 && is_from_middle;
        if self.calls == 0 && !self.without_rank.is_empty() {
            bail!(
                "a Megatrace log is of a rank of the job, and {}. Record with `--rank-map FILE`, or where a \
                 launcher has set RANK, SLURM_PROCID or the like in the processes' environment",
                self.unknown_ranks()
            );
        }
        if self.calls == 0 && exported.rows.ops > 0 {
            bail!(
                "there are no API calls in what is asked for, but ops of --level flow or steps: \
                 a Megatrace log is of calls, which `record --level api` records, and `--api` beside ops"
            );
        }
        Ok(self.notes())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use flow::schema::ApiCallRow;

    use super::*;

    fn call(pid: u32, hash: u64, rank: i32, ts_ns: u64, call: Option<u64>) -> ApiCall {
        let row = format!(
            r#"{{"opCount":0,"rank":{rank},"function":"AllReduce","count":3,"bytes":12,"datatype":"float32","redop":"sum",
            "redopHandle":null,"root":null,"peer":null,"sendbuff":"0x1","recvbuff":"0x2","stream":"0x5","comm":"0x1",
            "commHash":"0x{hash:016x}","nRanks":8,"call":null,"launched":null,"ts_ns":{ts_ns},"pid":{pid},"tid":{pid},"host":"here"}}"#
        );
        let row = ApiCallRow { call, ..serde_json::from_str(&row).unwrap() };
        ApiCall { rank: Some(RankKey { hash: Some(hash), instance: 0, rank, pid }), row }
    }

    /// Makes a view in which processes 7 and 8 say that they have job rank 3, and of process 9 nothing is
    /// known.
    fn view(path: &std::path::Path) -> Megatrace {
        let mut view = Megatrace::new(OutputDir::create(path).unwrap());
        view.host = "here/there".to_owned();
        view.job_ranks = [7, 8].map(|pid| (pid, JobRank { rank: 3, is_derived: false })).into();
        view
    }

    #[test]
    fn a_log_has_all_communicators_of_a_process_by_its_job_rank() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("logs");
        let mut view = view(&path);
        for (at, (pid, hash, rank)) in
            [(7, 1, 0), (7, 2, 5), (8, 1, 1), (7, 1, 0), (9, 1, 2)].into_iter().enumerate()
        {
            view.call(&call(pid, hash, rank, at as u64 * 1_000_000_000, Some(1))).unwrap();
        }
        view.processes.values_mut().for_each(|process| process.file.flush().unwrap());
        let read = |name: &str| -> Vec<String> {
            let text = fs::read_to_string(path.join(name)).unwrap();
            text.lines().map(str::to_owned).collect()
        };
        let line = |at: u64, rank: i32, count: u64, hash: u64| {
            format!(
                "[save_count 1] [{at}.000000000] [Rank {rank}] Fun ncclAllReduce Data 3 stream 0x5 opCount {count} groupHash {hash}"
            )
        };
        assert_eq!(read("rank_3.log"), [line(0, 3, 1, 1), line(1, 3, 2, 2), line(3, 3, 3, 1)]);
        // A second process that says it is the same rank gets a name of its own, which its host cannot
        // choose.
        assert_eq!(read("rank_3.herethere.8.log"), [line(2, 3, 1, 1)]);
        assert_eq!(read("rank_2.log"), [line(4, 2, 1, 1)]);
        let notes = view.notes();
        assert!(notes.iter().any(|note| note.contains("job ranks 2 are derived")), "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("rank_3.herethere.8.log")), "{notes:?}");
        assert_eq!(notes.len(), 2);
        view.call(&call(7, 1, 0, 9, None)).unwrap();
        assert!(view.notes().iter().any(|note| note.contains("beginning of the part")));
    }
}
