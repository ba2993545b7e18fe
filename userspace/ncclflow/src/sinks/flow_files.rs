//! The two JSON-lines files of every rank of every communicator.

use flow::schema::HostInfo;
use std::{
    collections::{BTreeMap, HashMap},
    io,
};

use super::{
    budget::is_over_max_size,
    json_lines::{JsonLinesFile, LostLines},
    lines::{FlowStepLine, ProxyFlowLine},
    output_dir::OutputDir,
    output_file::Source,
};
use flow::model::{FlowCommunicator, FlowRecord, transfers};

/// Ranks that files are made for: two open files each. A process of many communicators has some hundreds.
pub(super) const MAX_RANKS: usize = 4096;

/// Which files a record goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileKey {
    pub(super) hash: Option<u64>,
    pub(super) instance: u32,
    pub(super) rank: i32,
}

/// What was written for one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFileSummary {
    pub comm_hash: String,
    /// Folder inside the output folder.
    pub folder: String,
    pub rank: i32,
    pub n_ranks: i32,
    pub pid: u32,
    /// Ops times channels.
    pub records: u64,
    /// Messages.
    pub steps: u64,
    /// Calls of the API.
    pub api_calls: u64,
    /// Lines that could not be written.
    pub lost: LostLines,
}

#[derive(Debug)]
struct RankFiles {
    comm_hash: String,
    folder: String,
    n_ranks: i32,
    pid: u32,
    proxy_flow: JsonLinesFile,
    flow_steps: JsonLinesFile,
}

/// All files of a session.
#[derive(Debug)]
pub struct FlowFiles {
    dir: OutputDir,
    ranks: HashMap<FileKey, RankFiles>,
    /// Of ranks whose files are complete.
    closed: BTreeMap<FileKey, FlowFileSummary>,
    /// Lines of ranks whose files could not be made, and those that were not tried as there was no room.
    homeless: LostLines,
    errors: Vec<String>,
}

/// The name of a communicator: its `commHash`, or, before 2.18, that it has none.
pub(super) fn hash_name(hash: Option<u64>) -> String {
    hash.map_or_else(|| "no-hash".to_owned(), |hash| format!("0x{hash:016x}"))
}

pub(super) fn folder_name(comm: &FlowCommunicator) -> String {
    match comm.instance {
        0 => hash_name(comm.hash),
        instance => format!("{}-{instance}", hash_name(comm.hash)),
    }
}

impl FlowFiles {
    pub fn new(dir: OutputDir) -> Self {
        let homeless = LostLines::default();
        Self { dir, ranks: HashMap::new(), closed: BTreeMap::new(), homeless, errors: Vec::new() }
    }

    pub fn dir(&self) -> &OutputDir {
        &self.dir
    }

    /// Writes an op's line and the lines of its messages.
    pub fn push(&mut self, record: &FlowRecord, host: &HostInfo) {
        // An op as a whole, and not the half of it that still finds room.
        if self.dir.has_no_room() {
            self.homeless += LostLines::over_max_size(lines_of(record));
            return;
        }
        let key = FileKey { hash: record.comm.hash, instance: record.comm.instance, rank: record.comm.rank };
        if !self.ranks.contains_key(&key) {
            let files = if self.ranks.len() < MAX_RANKS {
                RankFiles::create(&self.dir, record, host)
            } else {
                Err(io::Error::other(format!("there are files of {MAX_RANKS} ranks already")))
            };
            match files {
                Ok(files) => {
                    self.ranks.insert(key, files);
                }
                Err(error) if is_over_max_size(&error) => {
                    self.homeless += LostLines::over_max_size(lines_of(record));
                }
                Err(error) => {
                    if self.homeless.lines == self.homeless.over_max_size {
                        self.errors
                            .push(format!("cannot make the files of rank {}: {error}", record.comm.rank));
                    }
                    self.homeless.lines += 1;
                }
            }
        }
        if let Some(files) = self.ranks.get_mut(&key)
            && let Err(error) = files.push(record, host)
        {
            self.errors.push(format!("writing the files of rank {} stopped: {error}", record.comm.rank));
        }
    }

    /// Writes what has gathered, so that a reader sees it.
    pub fn flush(&mut self) {
        for files in self.ranks.values_mut() {
            for file in [&mut files.proxy_flow, &mut files.flow_steps] {
                if let Err(error) = file.flush() {
                    self.errors.push(format!("writing to `{}` stopped: {error}", files.folder));
                }
            }
        }
    }

    /// Adds something that went wrong with another file of the folder.
    pub(super) fn add_error(&mut self, error: String) {
        self.errors.push(error);
    }

    /// No record has come.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty() && self.closed.is_empty()
    }

    /// Completes the files of a process (as ncclflow numbers it), and closes them.
    pub fn close_process(&mut self, pid: u32) {
        self.flush();
        for (key, files) in self.ranks.extract_if(|_, files| files.pid == pid) {
            self.closed.insert(key, files.summary(&key));
        }
    }

    /// Completes all files, and closes them.
    pub(super) fn close(&mut self) {
        self.flush();
        for (key, files) in self.ranks.drain() {
            self.closed.insert(key, files.summary(&key));
        }
    }

    /// What went wrong so far; each failure once.
    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Lines that could not be written, all files together.
    pub fn lost_lines(&self) -> LostLines {
        let ranks = self.ranks.values().map(RankFiles::lost);
        let closed = self.closed.values().map(|summary| summary.lost);
        std::iter::once(self.homeless).chain(ranks).chain(closed).sum()
    }

    /// Files of lines that were made: folder and name.
    pub(super) fn files(&self) -> Vec<(String, String)> {
        let summaries = self.summaries().into_iter();
        summaries.flat_map(|rank| names(rank.rank).map(|name| (rank.folder.clone(), name))).collect()
    }

    /// What was written, by communicator and rank.
    pub fn summaries(&self) -> Vec<FlowFileSummary> {
        let mut sorted = self.closed.clone();
        sorted.extend(self.ranks.iter().map(|(key, files)| (*key, files.summary(key))));
        sorted.into_values().collect()
    }
}

/// Of an op and its messages.
fn lines_of(record: &FlowRecord) -> u64 {
    1 + record.peers.iter().map(|peer| transfers(record, peer).count() as u64).sum::<u64>()
}

/// Names of the two files of a rank.
fn names(rank: i32) -> [String; 2] {
    [format!("proxy_flow_rank{rank}.jsonl"), format!("flow_steps_rank{rank}.jsonl")]
}

impl RankFiles {
    fn create(dir: &OutputDir, record: &FlowRecord, host: &HostInfo) -> io::Result<Self> {
        let folder = folder_name(&record.comm);
        let rank = record.comm.rank;
        let subfolder = dir.subfolder(&folder)?;
        let [flow_name, steps_name] = names(rank);
        let proxy_flow = subfolder.create_source(&flow_name, Source::ProxyFlow)?;
        let flow_steps = subfolder.create_source(&steps_name, Source::FlowSteps).inspect_err(|_| {
            let _ = subfolder.remove_made(&flow_name);
        })?;
        Ok(Self {
            comm_hash: hash_name(record.comm.hash),
            n_ranks: record.comm.n_ranks,
            pid: host.pid,
            proxy_flow: JsonLinesFile::new(proxy_flow),
            flow_steps: JsonLinesFile::new(flow_steps),
            folder,
        })
    }

    fn push(&mut self, record: &FlowRecord, host: &HostInfo) -> io::Result<()> {
        let proxy_flow = self.proxy_flow.push(&ProxyFlowLine::new(record, &self.comm_hash, host));
        let mut steps = Ok(());
        for peer in &record.peers {
            for (index, transfer) in transfers(record, peer).enumerate() {
                let pushed =
                    self.flow_steps.push(&FlowStepLine::new(record, peer, index, &transfer, &self.comm_hash));
                steps = steps.and(pushed);
            }
        }
        proxy_flow.and(steps)
    }

    fn summary(&self, key: &FileKey) -> FlowFileSummary {
        FlowFileSummary {
            comm_hash: self.comm_hash.clone(),
            folder: self.folder.clone(),
            rank: key.rank,
            n_ranks: self.n_ranks,
            pid: self.pid,
            records: self.proxy_flow.lines(),
            steps: self.flow_steps.lines(),
            api_calls: 0,
            lost: self.lost(),
        }
    }

    fn lost(&self) -> LostLines {
        [&self.proxy_flow, &self.flow_steps].into_iter().map(JsonLinesFile::lost).sum()
    }
}
