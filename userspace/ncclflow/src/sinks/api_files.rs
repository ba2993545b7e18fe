//! The file of API calls of every rank of every communicator, and one of each process for calls that belong
//! to none.

use std::{
    collections::{BTreeMap, HashMap},
    io, mem,
    sync::Arc,
};

use flow::schema::{ApiCall, OtherCallRow, RankKey, comm_hash_name};
use serde::{Deserialize, Serialize};

use super::{
    budget::is_over_max_size,
    flow_files::MAX_RANKS,
    json_lines::{JsonLinesFile, LostLines},
    megatrace::Megatrace,
    output_dir::OutputDir,
    output_file::Source,
    sink::{RankSummary, Sink, Written},
};

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
    folder: String,
    n_ranks: i32,
    lines: JsonLinesFile,
}

/// All files of API calls of a session.
#[derive(Debug)]
pub(super) struct ApiFiles {
    dir: Arc<OutputDir>,
    ranks: HashMap<RankKey, RankFile>,
    /// Of ranks whose files are complete.
    closed: BTreeMap<RankKey, RankSummary>,
    /// Lines that could not be written to files of processes that are complete.
    closed_lost: LostLines,
    /// By process id, as ncclflow sees it.
    processes: HashMap<u32, JsonLinesFile>,
    /// Names of all files of processes that were made.
    process_files: Vec<String>,
    /// Lines whose file could not be made, and those that were not tried as there was no room.
    lines_without_file: LostLines,
    /// In that format, if calls are written so.
    megatrace: Option<Megatrace>,
    errors: Vec<String>,
}

impl ApiFiles {
    pub(super) fn new(dir: Arc<OutputDir>, options: ApiOutputOptions) -> Self {
        let megatrace = match options.format {
            ApiFormat::Json => None,
            ApiFormat::Megatrace => Some(Megatrace::new(options.realtime_offset_ns)),
        };
        Self {
            dir,
            ranks: HashMap::new(),
            closed: BTreeMap::new(),
            closed_lost: LostLines::default(),
            processes: HashMap::new(),
            process_files: Vec::new(),
            lines_without_file: LostLines::default(),
            megatrace,
            errors: Vec::new(),
        }
    }

    fn push_to_process(&mut self, pid: u32, host: &str, row: &impl Serialize) {
        if self.dir.has_no_room() {
            self.lines_without_file += LostLines::over_max_size(1);
            return;
        }
        let written = match self.process(pid, host) {
            Ok(lines) => lines.push(|line| serde_json::to_writer(line, row)),
            Err(error) => return self.no_file(&format!("process {pid}"), &error),
        };
        if let Err(error) = written {
            self.errors.push(format!("writing the calls of process {pid} stopped: {error}"));
        }
    }

    fn push_to_rank(&mut self, rank: RankKey, call: &ApiCall) {
        if self.dir.has_no_room() {
            self.lines_without_file += LostLines::over_max_size(1);
            return;
        }
        if !self.ranks.contains_key(&rank) {
            let name = self.name(rank.rank);
            let n_ranks = call.row.n_ranks.unwrap_or(0);
            match self.room().and_then(|()| RankFile::create(&self.dir, &name, rank, n_ranks)) {
                Ok(file) => {
                    self.ranks.insert(rank, file);
                }
                Err(error) => return self.no_file(&format!("rank {}", rank.rank), &error),
            }
        }
        let Some(RankFile { lines, .. }) = self.ranks.get_mut(&rank) else { return };
        let written = match &mut self.megatrace {
            None => lines.push(|line| call.row.write_json(line)),
            Some(megatrace) => lines.push_text(&megatrace.line(rank, &call.row)),
        };
        if let Err(error) = written {
            self.errors.push(format!("writing the calls of rank {} stopped: {error}", rank.rank));
        }
    }

    fn close_files(&mut self, is_closed: impl Fn(u32) -> bool) {
        self.flush();
        for (key, file) in self.ranks.extract_if(|key, _| is_closed(key.pid)) {
            self.closed.insert(key, file.summary(&key));
        }
        let processes = self.processes.extract_if(|pid, _| is_closed(*pid));
        self.closed_lost += processes.map(|(_, lines)| lines.lost()).sum();
    }

    fn process(&mut self, pid: u32, host: &str) -> io::Result<&mut JsonLinesFile> {
        if !self.processes.contains_key(&pid) {
            self.room()?;
            // With the host's name: folders of several hosts are copied into one.
            let host: String =
                host.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
            let folder = self.dir.subfolder(PROCESSES)?;
            let mut name = format!("api_{host}_{pid}.jsonl");
            let mut file = folder.create_source(&name, Source::Lines);
            // An earlier process had this number.
            for number in 1..MAX_OF_ONE_PID {
                if file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
                    name = format!("api_{host}_{pid}-{number}.jsonl");
                    file = folder.create_source(&name, Source::Lines);
                }
            }
            let file = file?;
            self.process_files.push(name);
            self.processes.insert(pid, JsonLinesFile::new(file));
        }
        self.processes.get_mut(&pid).ok_or_else(|| io::Error::other("no such file"))
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

    fn no_file(&mut self, whose: &str, error: &io::Error) {
        if is_over_max_size(error) {
            self.lines_without_file += LostLines::over_max_size(1);
            return;
        }
        if self.lines_without_file.lines == self.lines_without_file.over_max_size {
            self.errors.push(format!("cannot make the file of calls of {whose}: {error}"));
        }
        self.lines_without_file.lines += 1;
    }
}

impl Sink for ApiFiles {
    fn call(&mut self, call: &ApiCall) {
        match call.rank {
            Some(rank) => self.push_to_rank(rank, call),
            None => self.push_to_process(call.row.pid, &call.row.host, &call.row),
        }
    }

    fn other_call(&mut self, row: &OtherCallRow) {
        self.push_to_process(row.pid, &row.host, row);
    }

    fn flush(&mut self) {
        let ranks = self.ranks.values_mut().map(|file| (file.folder.as_str(), &mut file.lines));
        let processes = self.processes.values_mut().map(|lines| (PROCESSES, lines));
        for (folder, lines) in ranks.chain(processes) {
            if let Err(error) = lines.flush() {
                self.errors.push(format!("writing to `{folder}` stopped: {error}"));
            }
        }
    }

    fn close_process(&mut self, pid: u32) {
        self.close_files(|of| of == pid);
    }

    fn close(&mut self) {
        self.close_files(|_| true);
    }

    fn take_errors(&mut self) -> Vec<String> {
        mem::take(&mut self.errors)
    }

    fn written(&self) -> Written {
        let mut sorted = self.closed.clone();
        sorted.extend(self.ranks.iter().map(|(key, file)| (*key, file.summary(key))));
        let ranks: Vec<RankSummary> = sorted.into_values().collect();
        let of_processes = self.process_files.iter().map(|name| (PROCESSES.to_owned(), name.clone()));
        let of_ranks = ranks.iter().filter(|_| self.megatrace.is_none());
        let lost = ranks.iter().map(|rank| rank.lost);
        let lost = lost.chain(self.processes.values().map(JsonLinesFile::lost));
        Written {
            files: of_processes
                .chain(of_ranks.map(|rank| (rank.folder.clone(), self.name(rank.rank))))
                .collect(),
            has_ops: false,
            lost: lost.chain([self.lines_without_file, self.closed_lost]).sum(),
            ranks,
        }
    }
}

impl RankFile {
    fn create(dir: &OutputDir, name: &str, rank: RankKey, n_ranks: i32) -> io::Result<Self> {
        let folder = rank.comm_name();
        let file = dir.subfolder(&folder)?.create_source(name, Source::Lines)?;
        Ok(Self { folder, n_ranks, lines: JsonLinesFile::new(file) })
    }

    fn summary(&self, key: &RankKey) -> RankSummary {
        RankSummary {
            comm_hash: comm_hash_name(key.hash),
            folder: self.folder.clone(),
            rank: key.rank,
            n_ranks: self.n_ranks,
            pid: key.pid,
            records: 0,
            steps: 0,
            api_calls: self.lines.lines(),
            lost: self.lines.lost(),
        }
    }
}
