//! The file of API calls of every rank of every communicator, and one of each process for calls that belong to none.

use std::{
    collections::{BTreeMap, HashMap},
    io,
};

use serde::{Deserialize, Serialize};

use super::{
    api_line::{ApiCallLine, OtherCallLine},
    flow_files::{FileKey, FlowFileSummary, MAX_RANKS, folder_name, hash_name},
    json_lines::JsonLinesFile,
    lines::HostInfo,
    megatrace::Megatrace,
    output_dir::OutputDir,
};
use crate::model::{ApiOutput, ApiRecord, FlowCommunicator};

/// How API calls are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApiFormat {
    /// `api_rank<r>.jsonl`
    #[default]
    Json,
    /// `megatrace_rank<r>.log`
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
    /// By process id, as ncclflow sees it.
    processes: HashMap<u32, JsonLinesFile>,
    /// Lines whose file could not be made.
    homeless: u64,
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
            let name = match self.megatrace {
                None => format!("api_rank{}.jsonl", comm.rank),
                Some(_) => format!("megatrace_rank{}.log", comm.rank),
            };
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

    /// Lines that could not be written.
    pub fn lost_lines(&self) -> u64 {
        let ranks = self.ranks.values().map(|file| file.lines.lost());
        let processes = self.processes.values().map(JsonLinesFile::lost);
        self.homeless + ranks.chain(processes).sum::<u64>()
    }

    /// What was written, by communicator and rank.
    pub fn summaries(&self) -> Vec<FlowFileSummary> {
        let sorted: BTreeMap<_, _> = self.ranks.iter().collect();
        sorted
            .into_iter()
            .map(|(key, file)| FlowFileSummary {
                comm_hash: file.comm_hash.clone(),
                folder: file.folder.clone(),
                rank: key.rank,
                n_ranks: file.n_ranks,
                pid: file.pid,
                records: 0,
                steps: 0,
                api_calls: file.lines.lines(),
                lost: file.lines.lost(),
            })
            .collect()
    }

    fn process(&mut self, dir: &OutputDir, host: &HostInfo) -> io::Result<&mut JsonLinesFile> {
        if !self.processes.contains_key(&host.pid) {
            self.room()?;
            // With the host's name: folders of several hosts are copied into one.
            let host_name: String =
                host.host.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
            let name = format!("api_{host_name}_{}.jsonl", host.pid);
            let file = dir.subfolder(PROCESSES)?.create_file(&name)?;
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

    fn no_file(&mut self, whose: &str, error: &io::Error) -> Result<(), String> {
        self.homeless += 1;
        if self.homeless == 1 {
            Err(format!("cannot make the file of calls of {whose}: {error}"))
        } else {
            Ok(())
        }
    }
}

impl RankFile {
    fn create(dir: &OutputDir, name: &str, comm: &FlowCommunicator, host: &HostInfo) -> io::Result<Self> {
        let folder = folder_name(comm);
        let file = dir.subfolder(&folder)?.create_file(name)?;
        Ok(Self {
            comm_hash: hash_name(comm.hash),
            folder,
            n_ranks: comm.n_ranks,
            pid: host.pid,
            lines: JsonLinesFile::new(file),
        })
    }
}
