//! The logs of the Megatrace interceptor, for tools that read them: one for each rank of the job, with the
//! calls on all its communicators in their order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Result, bail};
use flow::{
    schema::{ApiCall, RankKey},
    text::joined,
};

use super::{
    format::View,
    job_ranks::{JobRank, job_ranks},
    megatrace_lines::MegatraceLines,
    run::Exported,
    source::Source,
};
use recording::sinks::{JsonLinesFile, OutputDir, Sink};

/// Most processes with files.
const MAX_PROCESSES: usize = 4096;

#[derive(Debug)]
pub(super) struct Megatrace {
    dir: OutputDir,
    host: String,
    offset_ns: u64,
    /// Job ranks in the present source.
    job_ranks: HashMap<u32, JobRank>,
    /// Processes by host and process ID.
    processes: BTreeMap<(String, u32), Process>,
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
    errors: Vec<String>,
}

#[derive(Debug)]
struct Process {
    rank: i32,
    lines: MegatraceLines,
    file: JsonLinesFile,
}

impl Megatrace {
    pub(super) fn new(dir: OutputDir) -> Self {
        Self {
            dir,
            host: String::new(),
            offset_ns: 0,
            job_ranks: HashMap::new(),
            processes: BTreeMap::new(),
            derived: BTreeSet::new(),
            twice: Vec::new(),
            calls: 0,
            other_calls: 0,
            by_arguments: 0,
            without_rank: BTreeMap::new(),
            is_partial: false,
            errors: Vec::new(),
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

    fn write(&mut self, rank: RankKey, call: &ApiCall) -> std::io::Result<()> {
        self.is_partial |= call.row.call.is_none() && call.row.by_arguments.is_none();
        let key = (self.host.clone(), call.row.pid);
        if !self.processes.contains_key(&key) {
            if self.processes.len() >= MAX_PROCESSES {
                return Err(std::io::Error::other(format!(
                    "there are files of {MAX_PROCESSES} processes already"
                )));
            }
            let process = self.create(rank, &key)?;
            self.processes.insert(key.clone(), process);
        }
        let Some(process) = self.processes.get_mut(&key) else { return Ok(()) };
        let line = process.lines.line(RankKey { rank: process.rank, ..rank }, &call.row);
        process.file.push_text(&line)
    }

    /// Lists the processes that have calls and no job rank.
    fn unknown_ranks(&self) -> String {
        let shown = self.without_rank.iter().take(8);
        let shown = joined(shown.map(|((_, pid), calls)| format!("{pid} ({calls} calls)")), ", ");
        let more = if self.without_rank.len() > 8 { ", …" } else { "" };
        format!(
            "nothing says which rank process {shown}{more} has: no environment, no rank map, and no rank in a \
             communicator, as the layouts of its NCCL are not known"
        )
    }

    fn create(&mut self, rank: RankKey, (host, pid): &(String, u32)) -> std::io::Result<Process> {
        let known = self.job_ranks.get(pid).copied();
        let job = known.unwrap_or(JobRank { rank: rank.rank, is_derived: true });
        if job.is_derived {
            self.derived.insert(job.rank);
        }
        let mut name = format!("rank_{}.log", job.rank);
        if self.processes.values().any(|process| process.rank == job.rank) {
            let host: String =
                host.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
            name = format!("rank_{}.{host}.{pid}.log", job.rank);
            self.twice.push(name.clone());
        }
        let file = JsonLinesFile::new(self.dir.create_file(&name)?);
        Ok(Process { rank: job.rank, lines: MegatraceLines::new(self.offset_ns), file })
    }
}

impl Sink for Megatrace {
    fn call(&mut self, call: &ApiCall) {
        let is_by_address = call.row.by_arguments == Some(true) && call.row.comm.0 != 0;
        let rank = match call.rank {
            None if is_by_address => match self.rank_of_address(call) {
                None => return,
                rank => rank,
            },
            rank => rank,
        };
        let Some(rank) = rank else {
            self.other_calls += 1;
            return;
        };
        self.calls += 1;
        if let Err(error) = self.write(rank, call) {
            self.errors.push(format!("writing the log of process {}: {error}", call.row.pid));
        }
    }

    fn other_call(&mut self, _row: &flow::schema::OtherCallRow) {
        self.other_calls += 1;
    }

    fn take_errors(&mut self) -> Vec<String> {
        std::mem::take(&mut self.errors)
    }
}

impl View for Megatrace {
    fn begin(&mut self, source: &Source) -> Result<()> {
        source.host().clone_into(&mut self.host);
        self.offset_ns = source.offset_ns();
        self.job_ranks = job_ranks(source)?;
        Ok(())
    }

    fn finish(&mut self, exported: &Exported) -> Result<()> {
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
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.derived.is_empty() {
            let ranks = joined(self.derived.iter().take(16), ", ");
            let more = if self.derived.len() > 16 { ", …" } else { "" };
            notes.push(format!(
                "job ranks {ranks}{more} are derived: the ranks in the largest communicators of the processes"
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
        if self.other_calls > 0 {
            notes.push(format!(
                "{} calls that belong to no communicator are left out: the interceptor does not know them",
                self.other_calls
            ));
        }
        if self.is_partial {
            notes.push("opCount is counted from the beginning of the part".to_owned());
        }
        notes
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
            view.call(&call(pid, hash, rank, at as u64 * 1_000_000_000, Some(1)));
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
        view.call(&call(7, 1, 0, 9, None));
        assert!(view.notes().iter().any(|note| note.contains("beginning of the part")));
    }
}
