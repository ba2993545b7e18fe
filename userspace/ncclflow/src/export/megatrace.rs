//! The logs of the Megatrace interceptor, for tools that read them: one for each rank of the job, with the calls on all its communicators
//! in their order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Result, bail};
use flow::schema::{ApiCall, RankKey};

use super::{
    format::View,
    job_ranks::{JobRank, job_ranks},
    run::Exported,
    source::Source,
};
use crate::sinks::{JsonLinesFile, MegatraceLines, OutputDir, Sink};

/// Processes that files are made for.
const MAX_PROCESSES: usize = 4096;

#[derive(Debug)]
pub(super) struct Megatrace {
    dir: OutputDir,
    host: String,
    offset_ns: u64,
    /// Of the present source.
    job_ranks: HashMap<u32, JobRank>,
    /// By host and process ID.
    processes: BTreeMap<(String, u32), Process>,
    derived: BTreeSet<i32>,
    twice: Vec<String>,
    calls: u64,
    /// Calls that belong to no communicator: the interceptor does not know them.
    other_calls: u64,
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
            is_partial: false,
            errors: Vec::new(),
        }
    }

    fn write(&mut self, rank: RankKey, call: &ApiCall) -> std::io::Result<()> {
        self.is_partial |= call.row.call.is_none();
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
        let Some(rank) = call.rank else {
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
        if self.calls == 0 && exported.rows.ops > 0 {
            bail!(
                "there are no API calls in what is asked for, but ops of --level flow or steps: \
                 a Megatrace log is of calls, which `record --level api` records"
            );
        }
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.derived.is_empty() {
            let ranks: Vec<String> = self.derived.iter().take(16).map(i32::to_string).collect();
            let more = if self.derived.len() > 16 { ", …" } else { "" };
            notes.push(format!(
                "job ranks {}{more} are derived: the ranks in the largest communicators of the processes",
                ranks.join(", ")
            ));
        }
        if !self.twice.is_empty() {
            notes.push(format!(
                "several processes have one job rank: the later ones are in {}",
                self.twice.join(", ")
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
