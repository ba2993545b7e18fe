//! The line files of one rank, or of one process for calls that belong to no communicator.

use std::io;

use flow::schema::{ApiCall, CommunicatorReport, MessageRow, Op, OpRow, RankKey, comm_hash_name};

use super::{
    flow_rank::{FlowRank, FlowRanks},
    json_lines::{JsonLinesFile, LostLines},
    layout::{Layout, host_in_names},
    output_dir::OutputDir,
    output_file::{OutputFile, Source},
};

/// Most ranks and processes with files: two open files each at most. A process of many communicators has some
/// hundreds of ranks.
pub(super) const MAX_OWNERS: usize = 4096;

/// Folder of the files of processes.
const PROCESSES: &str = "processes";

/// Most processes with the same number, one after the other, that have files of their own.
const MAX_OF_ONE_PID: u32 = 100;

/// Owner and content of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Owner {
    /// Ops and messages of a rank.
    Ops(RankKey),
    Calls(RankKey),
    /// Calls that belong to no communicator, by process ID as ncclflow sees it.
    Process(u32),
}

impl Owner {
    pub(super) fn pid(self) -> u32 {
        match self {
            Self::Ops(key) | Self::Calls(key) => key.pid,
            Self::Process(pid) => pid,
        }
    }

    /// Describes the limit that was reached, for messages.
    pub(super) fn limit(self) -> String {
        match self {
            Self::Ops(_) => format!("there are files of {MAX_OWNERS} ranks already"),
            Self::Calls(_) | Self::Process(_) => format!("there are {MAX_OWNERS} files already"),
        }
    }

    /// Names the files, for messages.
    pub(super) fn files(self) -> String {
        match self {
            Self::Ops(key) => format!("the files of rank {}", key.rank),
            Self::Calls(key) => format!("the file of calls of rank {}", key.rank),
            Self::Process(pid) => format!("the file of calls of process {pid}"),
        }
    }

    /// Names the files' content, for messages.
    pub(super) fn content(self) -> String {
        match self {
            Self::Ops(key) => format!("the files of rank {}", key.rank),
            Self::Calls(key) => format!("the calls of rank {}", key.rank),
            Self::Process(pid) => format!("the calls of process {pid}"),
        }
    }
}

#[derive(Debug)]
pub(super) struct RankFiles {
    /// Path from the output folder.
    pub(super) folder: String,
    /// Name of the communicator in `session.json`.
    communicator: String,
    n_ranks: i32,
    /// Lines of ops, or of calls.
    lines: JsonLinesFile,
    flow_steps: Option<JsonLinesFile>,
    /// Places of ops, until there are too many.
    flow_rank: Option<Box<FlowRank>>,
    /// Names of the files of JSON lines.
    pub(super) names: Vec<String>,
    /// Number of files that were made before.
    pub(super) number: u64,
}

impl RankFiles {
    pub(super) fn of_ops(dir: &OutputDir, layout: Layout, op: &Op) -> io::Result<Self> {
        let communicator = op.rank.comm_name();
        let folder = layout.folder(&op.row.host, op.rank.pid, &communicator);
        let subfolder = dir.subfolders(&folder)?;
        let names = ["proxy_flow", "flow_steps"].map(|kind| format!("{kind}_rank{}.jsonl", op.row.rank));
        let lines = subfolder.create_source(&names[0], Source::ProxyFlow)?;
        let flow_steps = subfolder.create_source(&names[1], Source::FlowSteps).inspect_err(|_| {
            let _ = subfolder.remove_made(&names[0]);
        })?;
        Ok(Self {
            flow_steps: Some(JsonLinesFile::new(flow_steps)),
            flow_rank: Some(Box::default()),
            ..Self::new(folder, communicator, op.row.n_ranks, lines, names.into())
        })
    }

    pub(super) fn of_calls(
        dir: &OutputDir,
        layout: Layout,
        rank: RankKey,
        call: &ApiCall,
    ) -> io::Result<Self> {
        let communicator = rank.comm_name();
        let folder = layout.folder(&call.row.host, rank.pid, &communicator);
        let name = format!("api_rank{}.jsonl", rank.rank);
        let lines = dir.subfolders(&folder)?.create_source(&name, Source::Lines)?;
        Ok(Self::new(folder, communicator, call.row.n_ranks.unwrap_or(0), lines, vec![name]))
    }

    pub(super) fn of_process(dir: &OutputDir, layout: Layout, pid: u32, host: &str) -> io::Result<Self> {
        let path = layout.folder(host, pid, PROCESSES);
        let folder = dir.subfolders(&path)?;
        // With the host's name: folders of several hosts are copied into one.
        let host = host_in_names(host);
        let mut name = format!("api_{host}_{pid}.jsonl");
        let mut file = folder.create_source(&name, Source::Lines);
        // An earlier process had this number.
        for number in 1..MAX_OF_ONE_PID {
            if file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
                name = format!("api_{host}_{pid}-{number}.jsonl");
                file = folder.create_source(&name, Source::Lines);
            }
        }
        Ok(Self::new(path, String::new(), 0, file?, vec![name]))
    }

    fn new(
        folder: String,
        communicator: String,
        n_ranks: i32,
        lines: OutputFile,
        names: Vec<String>,
    ) -> Self {
        let lines = JsonLinesFile::new(lines);
        Self { folder, communicator, n_ranks, lines, flow_steps: None, flow_rank: None, names, number: 0 }
    }

    /// Counts the ops that are kept for `flow_rank`.
    pub(super) fn kept_ops(&self) -> usize {
        self.flow_rank.as_ref().map_or(0, |flow_rank| flow_rank.len())
    }

    /// Adds an op on a channel. `kept_ops`: those of all ranks.
    pub(super) fn push_op(&mut self, row: &OpRow, kept_ops: usize) -> io::Result<()> {
        let before = self.lines.bytes();
        let written = self.lines.push(|line| row.write_json(line));
        if self.flow_rank.as_ref().is_some_and(|flow_rank| flow_rank.is_too_large(kept_ops)) {
            self.flow_rank = None;
        }
        if self.lines.bytes() > before
            && let Some(flow_rank) = &mut self.flow_rank
        {
            flow_rank.add_op(row)?;
        }
        written
    }

    /// Adds messages of the op that came last.
    pub(super) fn push_messages(&mut self, messages: &[MessageRow]) -> io::Result<()> {
        let Some(steps) = &mut self.flow_steps else { return Ok(()) };
        let mut written = Ok(());
        for message in messages {
            let before = steps.bytes();
            written = written.and(steps.push(|line| message.write_json(line)));
            if steps.bytes() > before
                && let Some(flow_rank) = &mut self.flow_rank
            {
                flow_rank.add_message(message, steps.bytes());
            }
        }
        written
    }

    /// Adds the line of a call, which `write` appends.
    pub(super) fn push_call(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>,
    ) -> io::Result<()> {
        self.lines.push(write)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let lines = self.lines.flush();
        lines.and(self.flow_steps.as_mut().map_or(Ok(()), JsonLinesFile::flush))
    }

    /// Writes what is made of all lines: `flow_rank`, if these files are of ops.
    pub(super) fn complete(&mut self, dir: &OutputDir, owner: Owner) -> io::Result<FlowRanks> {
        let Owner::Ops(key) = owner else { return Ok(FlowRanks::default()) };
        let Some(flow_rank) = self.flow_rank.take() else {
            return Ok(FlowRanks { left_out: 1, ..FlowRanks::default() });
        };
        if dir.is_removed() {
            return Ok(FlowRanks::default());
        }
        let LostLines { lines, over_max_size } = self.lost();
        if lines > over_max_size {
            // It is not known which are missing, and where the others stand.
            return Err(io::Error::other("not made, as lines could not be written"));
        }
        flow_rank.write(&dir.open_below(&self.folder)?, key.rank)
    }

    /// Counts the bytes of lines in both.
    pub(super) fn bytes(&self) -> u64 {
        self.lines.bytes() + self.flow_steps.as_ref().map_or(0, JsonLinesFile::bytes)
    }

    pub(super) fn lost(&self) -> LostLines {
        [Some(&self.lines), self.flow_steps.as_ref()].into_iter().flatten().map(JsonLinesFile::lost).sum()
    }

    /// Reports a rank; `None` for a process.
    pub(super) fn report(&self, owner: Owner) -> Option<CommunicatorReport> {
        let (key, ops, calls) = match owner {
            Owner::Ops(key) => (key, self.lines.lines(), 0),
            Owner::Calls(key) => (key, 0, self.lines.lines()),
            Owner::Process(_) => return None,
        };
        Some(CommunicatorReport {
            comm_hash: comm_hash_name(key.hash),
            folder: self.communicator.clone(),
            rank: key.rank,
            n_ranks: self.n_ranks,
            pid: key.pid,
            proxy_flow_lines: ops,
            flow_steps_lines: self.flow_steps.as_ref().map_or(0, JsonLinesFile::lines),
            api_lines: calls,
            lost_lines: self.lost().lines,
            ..CommunicatorReport::default()
        })
    }
}
