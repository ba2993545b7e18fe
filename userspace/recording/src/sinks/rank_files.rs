//! The line files of one rank, or of one process for calls that belong to no communicator.

use std::io;

use flow::{
    schema::{CommunicatorReport, MessageRow, OpRow, RankKey, comm_hash_name},
    statistics::Ranges,
};

use super::{
    flow_rank::{FlowRank, FlowRanks},
    json_lines::{JsonLinesFile, LostLines},
    layout::{Layout, host_in_names},
    output_dir::OutputDir,
    output_file::Source,
};

/// Most ranks and processes with files: two open files each at most. A process of many communicators has some
/// hundreds of ranks.
pub(super) const MAX_OWNERS: usize = 4096;

/// Folder of the files of processes.
const PROCESSES: &str = "processes";

/// Most gaps in the numbers of a rank's ops that are kept apart.
const MAX_RANGES: usize = 1024;

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

    /// Returns the rank; `None` for a process.
    pub(super) fn rank(self) -> Option<RankKey> {
        match self {
            Self::Ops(key) | Self::Calls(key) => Some(key),
            Self::Process(_) => None,
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
    owner: Owner,
    /// Path from the output folder.
    pub(super) folder: String,
    /// Name of the communicator in `session.json`.
    communicator: String,
    n_ranks: i32,
    /// Lines of ops, or of calls.
    pub(super) lines: JsonLinesFile,
    flow_steps: Option<JsonLinesFile>,
    ops: CountedOps,
    /// Places of ops, until there are too many.
    flow_rank: Option<Box<FlowRank>>,
    /// Names of the files of JSON lines.
    pub(super) names: Vec<String>,
    /// Number of files that were made before.
    pub(super) number: u64,
}

/// Ops, each counted once: it has a line for each channel, and channels come one after the other. Of a replay that
/// the launch of its graph tells there is one line, with the number of the captured op.
#[derive(Debug, Default)]
struct CountedOps {
    collectives: Ranges,
    sends_receives: Ranges,
    launches: u64,
    replayed_collectives: u64,
    replayed_sends_receives: u64,
}

impl CountedOps {
    fn add(&mut self, row: &OpRow) {
        // Bit 0 says whose numbers they are.
        let number = row.seq >> 1;
        if row.pattern.has_no_ops() {
            self.launches += 1;
        } else if row.graph_launch.is_some() {
            let replayed = if row.pattern.is_p2p() {
                &mut self.replayed_sends_receives
            } else {
                &mut self.replayed_collectives
            };
            *replayed += 1;
        } else if row.pattern.is_p2p() {
            self.sends_receives.insert_within(number, MAX_RANGES);
        } else {
            self.collectives.insert_within(number, MAX_RANGES);
        }
    }
}

impl RankFiles {
    /// Creates the files of an owner on this host. `n_ranks`: of its communicator.
    pub(super) fn create(
        dir: &OutputDir,
        layout: Layout,
        owner: Owner,
        host: &str,
        n_ranks: i32,
    ) -> io::Result<Self> {
        let communicator = owner.rank().map_or_else(String::new, |key| key.comm_name());
        let name = if communicator.is_empty() { PROCESSES } else { &communicator };
        let folder = layout.folder(host, owner.pid(), name);
        let subfolder = dir.subfolders(&folder)?;
        let (source, mut name) = match owner {
            Owner::Ops(key) => (Source::ProxyFlow, format!("proxy_flow_rank{}.jsonl", key.rank)),
            Owner::Calls(key) => (Source::Lines, format!("api_rank{}.jsonl", key.rank)),
            // With the host's name: folders of several hosts are copied into one.
            Owner::Process(pid) => (Source::Lines, format!("api_{}_{pid}.jsonl", host_in_names(host))),
        };
        let mut lines = subfolder.create_source(&name, source);
        if let Owner::Process(pid) = owner {
            // An earlier process had this number.
            for number in 1..MAX_OF_ONE_PID {
                if lines.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
                    name = format!("api_{}_{pid}-{number}.jsonl", host_in_names(host));
                    lines = subfolder.create_source(&name, source);
                }
            }
        }
        let lines = JsonLinesFile::new(lines?);
        let mut files = Self {
            owner,
            folder,
            communicator,
            n_ranks,
            lines,
            flow_steps: None,
            ops: CountedOps::default(),
            flow_rank: None,
            names: vec![name],
            number: 0,
        };
        if let Owner::Ops(key) = owner {
            let name = format!("flow_steps_rank{}.jsonl", key.rank);
            let flow_steps = subfolder.create_source(&name, Source::FlowSteps).inspect_err(|_| {
                for name in &files.names {
                    let _ = subfolder.remove_made(name);
                }
            })?;
            files.flow_steps = Some(JsonLinesFile::new(flow_steps));
            files.flow_rank = Some(Box::default());
            files.names.push(name);
        }
        Ok(files)
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
        if self.lines.bytes() > before {
            self.ops.add(row);
            if let Some(flow_rank) = &mut self.flow_rank {
                flow_rank.add_op(row)?;
            }
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

    pub(super) fn flush(&mut self) -> io::Result<()> {
        let lines = self.lines.flush();
        lines.and(self.flow_steps.as_mut().map_or(Ok(()), JsonLinesFile::flush))
    }

    /// Writes what is made of all lines: `flow_rank`, if these files are of ops.
    pub(super) fn complete(&mut self, dir: &OutputDir) -> io::Result<FlowRanks> {
        let Owner::Ops(key) = self.owner else { return Ok(FlowRanks::default()) };
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
        [Some(&self.lines), self.flow_steps.as_ref()].into_iter().flatten().map(|file| file.lost).sum()
    }

    /// Reports a rank; `None` for a process.
    pub(super) fn report(&self) -> Option<CommunicatorReport> {
        let key = self.owner.rank()?;
        let (ops, calls) =
            if self.flow_steps.is_some() { (self.lines.lines, 0) } else { (0, self.lines.lines) };
        Some(CommunicatorReport {
            comm_hash: comm_hash_name(key.hash),
            folder: self.communicator.clone(),
            rank: key.rank,
            n_ranks: self.n_ranks,
            pid: key.pid,
            collectives: self.ops.collectives.count + self.ops.replayed_collectives,
            sends_receives: self.ops.sends_receives.count + self.ops.replayed_sends_receives,
            launches: self.ops.launches,
            proxy_flow_lines: ops,
            flow_steps_lines: self.flow_steps.as_ref().map_or(0, |file| file.lines),
            api_lines: calls,
            lost_lines: self.lost().lines,
            ..CommunicatorReport::default()
        })
    }
}
