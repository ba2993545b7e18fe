//! The file of API calls of every rank of every communicator, and one of each process for calls that belong to none.

use flow::schema::HostInfo;
use std::{
    collections::{BTreeMap, HashMap},
    io,
};

use serde::{Deserialize, Serialize};

use super::{
    api_line::{ApiCallLine, OtherCallLine},
    budget::is_over_max_size,
    flow_files::{FileKey, FlowFileSummary, MAX_RANKS, folder_name, hash_name},
    json_lines::{JsonLinesFile, LostLines},
    megatrace::Megatrace,
    output_dir::OutputDir,
    output_file::Source,
};
use flow::model::{ApiOutput, ApiRecord, FlowCommunicator};

/// How API calls are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "program", derive(clap::ValueEnum))]
pub enum ApiFormat {
    /// api_rank<r>.jsonl
    #[default]
    Json,
    /// megatrace_rank<r>.log, the lines of the Megatrace interceptor
    Megatrace,
}

/// What the files of API calls need to know besides the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiOutputOptions {
    pub format: ApiFormat,
    /// From the records' clock to wall time, nanoseconds.
    pub realtime_offset_ns: u64,
}

/// Folder of the files of processes.
const PROCESSES: &str = "processes";
/// Processes of one number, one after the other, that have files of their own.
const MAX_OF_ONE_PID: u32 = 100;

#[derive(Debug)]
struct RankFile {
    comm_hash: String,
    folder: String,
    n_ranks: i32,
    pid: u32,
    lines: JsonLinesFile,
}

/// All files of API calls of a session.
#[derive(Debug, Default)]
pub struct ApiFiles {
    ranks: HashMap<FileKey, RankFile>,
    /// Of ranks whose files are complete.
    closed: BTreeMap<FileKey, FlowFileSummary>,
    /// Lines that could not be written to files of processes that are complete.
    closed_lost: LostLines,
    /// By process id, as ncclflow sees it.
    processes: HashMap<u32, JsonLinesFile>,
    /// Names of all files of processes that were made.
    process_files: Vec<String>,
    /// Lines whose file could not be made, and those that were not tried as there was no room.
    homeless: LostLines,
    /// In that format, if calls are written so.
    megatrace: Option<Megatrace>,
}

impl ApiFiles {
    pub fn new(options: ApiOutputOptions) -> Self {
        let megatrace = match options.format {
            ApiFormat::Json => None,
            ApiFormat::Megatrace => Some(Megatrace::new(options.realtime_offset_ns)),
        };
        Self { megatrace, ..Self::default() }
    }

    /// Writes a call's line. An error is given once for each file.
    pub fn push(&mut self, dir: &OutputDir, output: &ApiOutput, host: &HostInfo) -> Result<(), String> {
        if dir.has_no_room() {
            self.homeless += LostLines::over_max_size(1);
            return Ok(());
        }
        match output {
            ApiOutput::Call(record) => match &record.comm {
                Some(comm) => self.push_call(dir, record, comm, host),
                None => self.push_to_process(dir, host, &ApiCallLine::new(record, None, host)),
            },
            ApiOutput::Other(call) => self.push_to_process(dir, host, &OtherCallLine::new(call, host)),
        }
    }

    fn push_to_process(
        &mut self,
        dir: &OutputDir,
        host: &HostInfo,
        line: &impl Serialize,
    ) -> Result<(), String> {
        let lines = match self.process(dir, host) {
            Ok(lines) => lines,
            Err(error) => return self.no_file(&format!("process {}", host.pid), &error),
        };
        lines
            .push(line)
            .map_err(|error| format!("writing the calls of process {} stopped: {error}", host.pid))
    }

    fn push_call(
        &mut self,
        dir: &OutputDir,
        record: &ApiRecord,
        comm: &FlowCommunicator,
        host: &HostInfo,
    ) -> Result<(), String> {
        let key = FileKey { hash: comm.hash, instance: comm.instance, rank: comm.rank };
        if !self.ranks.contains_key(&key) {
            let name = self.name(comm.rank);
            match self.room().and_then(|()| RankFile::create(dir, &name, comm, host)) {
                Ok(file) => {
                    self.ranks.insert(key, file);
                }
                Err(error) => return self.no_file(&format!("rank {}", comm.rank), &error),
            }
        }
        let Some(file) = self.ranks.get_mut(&key) else { return Ok(()) };
        let RankFile { comm_hash, lines, .. } = file;
        let written = match &mut self.megatrace {
            None => lines.push(&ApiCallLine::new(record, Some(comm_hash), host)),
            Some(megatrace) => lines.push_text(&megatrace.line(record, comm)),
        };
        written.map_err(|error| format!("writing the calls of rank {} stopped: {error}", comm.rank))
    }

    /// Writes what has gathered, so that a reader sees it.
    pub fn flush(&mut self) -> Vec<String> {
        let ranks = self.ranks.values_mut().map(|file| (file.folder.as_str(), &mut file.lines));
        let processes = self.processes.values_mut().map(|lines| (PROCESSES, lines));
        ranks
            .chain(processes)
            .filter_map(|(folder, lines)| {
                lines.flush().err().map(|error| format!("writing to `{folder}` stopped: {error}"))
            })
            .collect()
    }

    /// Completes the files of a process (as ncclflow numbers it), and closes them.
    pub fn close_process(&mut self, pid: u32) -> Vec<String> {
        let errors = self.flush();
        for (key, file) in self.ranks.extract_if(|_, file| file.pid == pid) {
            self.closed.insert(key, file.summary(&key));
        }
        self.closed_lost += self.processes.remove(&pid).map(|lines| lines.lost()).unwrap_or_default();
        errors
    }

    /// Completes all files, and closes them.
    pub(super) fn close(&mut self) -> Vec<String> {
        let errors = self.flush();
        for (key, file) in self.ranks.drain() {
            self.closed.insert(key, file.summary(&key));
        }
        self.closed_lost += self.processes.drain().map(|(_, lines)| lines.lost()).sum();
        errors
    }

    /// Lines that could not be written.
    pub fn lost_lines(&self) -> LostLines {
        let ranks = self.ranks.values().map(|file| file.lines.lost());
        let processes = self.processes.values().map(JsonLinesFile::lost);
        let closed = self.closed.values().map(|summary| summary.lost);
        [self.homeless, self.closed_lost].into_iter().chain(ranks).chain(processes).chain(closed).sum()
    }

    /// Files of JSON lines that were made: folder and name.
    pub(super) fn files(&self) -> Vec<(String, String)> {
        let processes = self.process_files.iter().map(|name| (PROCESSES.to_owned(), name.clone()));
        let ranks = self.summaries().into_iter().filter(|_| self.megatrace.is_none());
        processes.chain(ranks.map(|rank| (rank.folder, self.name(rank.rank)))).collect()
    }

    /// What was written, by communicator and rank.
    pub fn summaries(&self) -> Vec<FlowFileSummary> {
        let mut sorted = self.closed.clone();
        sorted.extend(self.ranks.iter().map(|(key, file)| (*key, file.summary(key))));
        sorted.into_values().collect()
    }

    fn process(&mut self, dir: &OutputDir, host: &HostInfo) -> io::Result<&mut JsonLinesFile> {
        if !self.processes.contains_key(&host.pid) {
            self.room()?;
            // With the host's name: folders of several hosts are copied into one.
            let host_name: String =
                host.host.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
            let folder = dir.subfolder(PROCESSES)?;
            let pid = host.pid;
            let mut name = format!("api_{host_name}_{pid}.jsonl");
            let mut file = folder.create_source(&name, Source::Lines);
            // An earlier process had this number.
            for number in 1..MAX_OF_ONE_PID {
                if file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
                    name = format!("api_{host_name}_{pid}-{number}.jsonl");
                    file = folder.create_source(&name, Source::Lines);
                }
            }
            let file = file?;
            self.process_files.push(name);
            self.processes.insert(host.pid, JsonLinesFile::new(file));
        }
        self.processes.get_mut(&host.pid).ok_or_else(|| io::Error::other("no such file"))
    }

    fn room(&self) -> io::Result<()> {
        if self.ranks.len() + self.processes.len() < MAX_RANKS {
            Ok(())
        } else {
            Err(io::Error::other(format!("there are {MAX_RANKS} files already")))
        }
    }

    /// Of the calls of a rank.
    fn name(&self, rank: i32) -> String {
        match self.megatrace {
            None => format!("api_rank{rank}.jsonl"),
            Some(_) => format!("megatrace_rank{rank}.log"),
        }
    }

    fn no_file(&mut self, whose: &str, error: &io::Error) -> Result<(), String> {
        if is_over_max_size(error) {
            self.homeless += LostLines::over_max_size(1);
            return Ok(());
        }
        self.homeless.lines += 1;
        if self.homeless.lines == self.homeless.over_max_size + 1 {
            Err(format!("cannot make the file of calls of {whose}: {error}"))
        } else {
            Ok(())
        }
    }
}

impl RankFile {
    fn create(dir: &OutputDir, name: &str, comm: &FlowCommunicator, host: &HostInfo) -> io::Result<Self> {
        let folder = folder_name(comm);
        let file = dir.subfolder(&folder)?.create_source(name, Source::Lines)?;
        Ok(Self {
            comm_hash: hash_name(comm.hash),
            folder,
            n_ranks: comm.n_ranks,
            pid: host.pid,
            lines: JsonLinesFile::new(file),
        })
    }

    fn summary(&self, key: &FileKey) -> FlowFileSummary {
        FlowFileSummary {
            comm_hash: self.comm_hash.clone(),
            folder: self.folder.clone(),
            rank: key.rank,
            n_ranks: self.n_ranks,
            pid: self.pid,
            records: 0,
            steps: 0,
            api_calls: self.lines.lines(),
            lost: self.lines.lost(),
        }
    }
}
