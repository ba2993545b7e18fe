//! The files of JSON lines: two of every rank of every communicator for ops and messages, or one for its API
//! calls, and one of each process for calls that belong to no communicator.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque, btree_map::Entry},
    io, mem,
    sync::Arc,
};

use flow::schema::{ApiCall, CommunicatorReport, MessageRow, Op, OtherCallRow, RankKey, comm_hash_name};
use serde::{Deserialize, Serialize};

use super::{
    budget::is_over_max_size,
    json_lines::{JsonLinesFile, LostLines},
    layout::{Layout, host_in_names},
    megatrace::MegatraceLines,
    output_dir::OutputDir,
    output_file::Source,
    shares::Shares,
    sink::{Sink, Written},
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

/// Ranks and processes that files are made for: two open files each at most. A process of many communicators
/// has some hundreds of ranks.
const MAX_OWNERS: usize = 4096;
/// Ranks of processes that have ended and are still listed, in a session in which processes come and go.
const MAX_ENDED: usize = 1000;
/// Folder of the files of processes.
const PROCESSES: &str = "processes";
/// Processes of one number, one after the other, that have files of their own.
const MAX_OF_ONE_PID: u32 = 100;

/// Whose files they are, and what is in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Owner {
    /// Ops and messages.
    Ops(RankKey),
    Calls(RankKey),
    /// Calls that belong to no communicator, by process ID as ncclflow sees it.
    Process(u32),
}

impl Owner {
    fn pid(self) -> u32 {
        match self {
            Self::Ops(key) | Self::Calls(key) => key.pid,
            Self::Process(pid) => pid,
        }
    }

    /// There are as many as can be, for messages.
    fn limit(self) -> String {
        match self {
            Self::Ops(_) => format!("there are files of {MAX_OWNERS} ranks already"),
            Self::Calls(_) | Self::Process(_) => format!("there are {MAX_OWNERS} files already"),
        }
    }

    /// The files, for messages.
    fn files(self) -> String {
        match self {
            Self::Ops(key) => format!("the files of rank {}", key.rank),
            Self::Calls(key) => format!("the file of calls of rank {}", key.rank),
            Self::Process(pid) => format!("the file of calls of process {pid}"),
        }
    }

    /// What is written to them, for messages.
    fn content(self) -> String {
        match self {
            Self::Ops(key) => format!("the files of rank {}", key.rank),
            Self::Calls(key) => format!("the calls of rank {}", key.rank),
            Self::Process(pid) => format!("the calls of process {pid}"),
        }
    }
}

#[derive(Debug)]
struct Files {
    /// From the output folder on.
    folder: String,
    /// What `session.json` calls it.
    communicator: String,
    n_ranks: i32,
    /// Of ops, or of calls.
    lines: JsonLinesFile,
    flow_steps: Option<JsonLinesFile>,
    /// Of those of them that have JSON lines.
    names: Vec<String>,
    /// Files that were made before.
    number: u64,
}

impl Files {
    fn of_ops(dir: &OutputDir, layout: Layout, op: &Op) -> io::Result<Self> {
        let communicator = op.rank.comm_name();
        let folder = layout.folder(&op.row.host, op.rank.pid, &communicator);
        let subfolder = dir.subfolders(&folder)?;
        let names = ["proxy_flow", "flow_steps"].map(|kind| format!("{kind}_rank{}.jsonl", op.row.rank));
        let lines = subfolder.create_source(&names[0], Source::ProxyFlow)?;
        let flow_steps = subfolder.create_source(&names[1], Source::FlowSteps).inspect_err(|_| {
            let _ = subfolder.remove_made(&names[0]);
        })?;
        Ok(Self {
            folder,
            communicator,
            n_ranks: op.row.n_ranks,
            lines: JsonLinesFile::new(lines),
            flow_steps: Some(JsonLinesFile::new(flow_steps)),
            names: names.into(),
            number: 0,
        })
    }

    fn of_calls(
        dir: &OutputDir,
        layout: Layout,
        rank: RankKey,
        call: &ApiCall,
        is_megatrace: bool,
    ) -> io::Result<Self> {
        let communicator = rank.comm_name();
        let folder = layout.folder(&call.row.host, rank.pid, &communicator);
        let name = if is_megatrace {
            format!("megatrace_rank{}.log", rank.rank)
        } else {
            format!("api_rank{}.jsonl", rank.rank)
        };
        let lines = dir.subfolders(&folder)?.create_source(&name, Source::Lines)?;
        let names = if is_megatrace { Vec::new() } else { vec![name] };
        let n_ranks = call.row.n_ranks.unwrap_or(0);
        let lines = JsonLinesFile::new(lines);
        Ok(Self { folder, communicator, n_ranks, lines, flow_steps: None, names, number: 0 })
    }

    fn of_process(dir: &OutputDir, layout: Layout, pid: u32, host: &str) -> io::Result<Self> {
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
        let lines = JsonLinesFile::new(file?);
        Ok(Self {
            folder: path,
            communicator: String::new(),
            n_ranks: 0,
            lines,
            flow_steps: None,
            names: vec![name],
            number: 0,
        })
    }

    /// Bytes of lines in both.
    fn bytes(&self) -> u64 {
        self.lines.bytes() + self.flow_steps.as_ref().map_or(0, JsonLinesFile::bytes)
    }

    fn lost(&self) -> LostLines {
        [Some(&self.lines), self.flow_steps.as_ref()].into_iter().flatten().map(JsonLinesFile::lost).sum()
    }

    /// None for those of processes.
    fn report(&self, owner: Owner) -> Option<CommunicatorReport> {
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

#[derive(Debug)]
pub(super) struct LineFiles {
    dir: Arc<OutputDir>,
    layout: Layout,
    open: HashMap<Owner, Files>,
    /// As many as may be open.
    most: usize,
    /// Which process has how many of them.
    shares: Shares,
    /// Those that were given up for others, of processes that go on.
    given_up: HashSet<Owner>,
    /// Files that were made.
    number: u64,
    /// Of ranks whose files are complete.
    closed: BTreeMap<Owner, CommunicatorReport>,
    /// Those of processes that have ended, oldest first, where not all are remembered.
    ended: Option<VecDeque<Owner>>,
    /// Of them, those that are forgotten.
    forgotten: u64,
    has_ops: bool,
    /// Names of files are wanted in the end.
    keeps_names: bool,
    /// Folders and names of all files of JSON lines that were made.
    made: Vec<(String, String)>,
    /// Lines that could not be written to files that are complete.
    closed_lost: LostLines,
    /// Lines whose file could not be made, and those that were not tried as there was no room.
    without_file: LostLines,
    /// Bytes of lines in all files.
    bytes: u64,
    /// The op that came last is not written, and each of its messages is so lost.
    refused: Option<LostLines>,
    /// In that format, if calls are written so.
    megatrace: Option<MegatraceLines>,
    errors: Vec<String>,
}

impl LineFiles {
    pub(super) fn new(dir: Arc<OutputDir>, api: ApiOutputOptions, layout: Layout) -> Self {
        Self {
            dir,
            layout,
            open: HashMap::new(),
            most: MAX_OWNERS,
            shares: Shares::default(),
            given_up: HashSet::new(),
            number: 0,
            closed: BTreeMap::new(),
            ended: None,
            forgotten: 0,
            has_ops: false,
            keeps_names: true,
            made: Vec::new(),
            closed_lost: LostLines::default(),
            without_file: LostLines::default(),
            bytes: 0,
            refused: None,
            megatrace: (api.format == ApiFormat::Megatrace)
                .then(|| MegatraceLines::new(api.realtime_offset_ns)),
            errors: Vec::new(),
        }
    }

    /// Remembers not all ranks of processes that have ended.
    pub(super) fn forgetting_ended(self, keeps_names: bool) -> Self {
        Self { ended: Some(VecDeque::new()), keeps_names, ..self }
    }

    /// Writes a line to the owner's files, which are made if they are not there. An error: how the line is
    /// lost, as there are no files or is no room.
    fn push(
        &mut self,
        owner: Owner,
        create: impl FnOnce(&OutputDir) -> io::Result<Files>,
        write: impl FnOnce(&mut Files) -> io::Result<()>,
    ) -> Result<(), LostLines> {
        let written = self.files(owner, create).map(|files| {
            let before = files.bytes();
            let written = write(files);
            (written, files.bytes().saturating_sub(before))
        });
        let (written, bytes) = written.inspect_err(|lost| self.without_file += *lost)?;
        self.bytes += bytes;
        self.note(owner, written);
        Ok(())
    }

    fn files(
        &mut self,
        owner: Owner,
        create: impl FnOnce(&OutputDir) -> io::Result<Files>,
    ) -> Result<&mut Files, LostLines> {
        // An op as a whole, and not the half of it that still finds room.
        if self.dir.has_no_room() {
            return Err(LostLines::over_max_size(1));
        }
        if !self.open.contains_key(&owner) {
            if !self.has_place_for(owner) {
                self.shares.refuse(owner.pid(), 1);
                return Err(self.no_files(owner, &io::Error::other(owner.limit())));
            }
            let mut files = create(&self.dir).map_err(|error| self.no_files(owner, &error))?;
            self.has_ops |= matches!(owner, Owner::Ops(_));
            if self.keeps_names {
                self.made.extend(files.names.drain(..).map(|name| (files.folder.clone(), name)));
            }
            (files.number, self.number) = (self.number, self.number + 1);
            self.shares.take(owner.pid());
            self.open.insert(owner, files);
        }
        self.open.get_mut(&owner).ok_or(LostLines { lines: 1, over_max_size: 0 })
    }

    /// Whether there may be files of this owner. Where there are as many as can be, the process that has most gives its
    /// latest up, if it has more than this one would have.
    fn has_place_for(&mut self, owner: Owner) -> bool {
        if self.given_up.contains(&owner) {
            return false;
        }
        if self.open.len() < self.most {
            return true;
        }
        let Some(whose) = self.shares.who_gives_up_for(owner.pid()) else { return false };
        let of_it = self.open.iter().filter(|(owner, _)| owner.pid() == whose);
        let latest = of_it.max_by_key(|(_, files)| files.number).map(|(owner, _)| *owner);
        let Some((latest, mut files)) = latest.and_then(|latest| self.open.remove_entry(&latest)) else {
            return false;
        };
        if self.shares.has_refused_nobody() {
            let text = "files of others are needed, and its process has most";
            self.errors.push(format!("{} end before their process does: {text}", latest.files()));
        }
        // It is named from now on, with each line that comes.
        self.shares.refuse(whose, 0);
        self.shares.give_back(whose);
        let files_of_it = [Some(&mut files.lines), files.flow_steps.as_mut()];
        for error in files_of_it.into_iter().flatten().filter_map(|file| file.flush().err()) {
            self.errors.push(format!("writing to `{}` stopped: {error}", files.folder));
        }
        self.closed_lost += files.lost();
        self.closed.extend(files.report(latest).map(|report| (latest, report)));
        self.given_up.insert(latest);
        true
    }

    fn no_files(&mut self, owner: Owner, error: &io::Error) -> LostLines {
        if is_over_max_size(error) {
            return LostLines::over_max_size(1);
        }
        if self.without_file.lines == self.without_file.over_max_size {
            self.errors.push(format!("cannot make {}: {error}", owner.files()));
        }
        LostLines { lines: 1, over_max_size: 0 }
    }

    fn note(&mut self, owner: Owner, written: io::Result<()>) {
        if let Err(error) = written {
            self.errors.push(format!("writing {} stopped: {error}", owner.content()));
        }
    }

    fn push_to_process(&mut self, pid: u32, host: &str, row: &impl Serialize) {
        let layout = self.layout;
        let create = |dir: &OutputDir| Files::of_process(dir, layout, pid, host);
        // It is counted.
        let _ = self.push(Owner::Process(pid), create, |files| {
            files.lines.push(|line| serde_json::to_writer(line, row))
        });
    }

    fn push_to_rank(&mut self, rank: RankKey, call: &ApiCall) {
        let mut megatrace = self.megatrace.take();
        let (is_megatrace, layout) = (megatrace.is_some(), self.layout);
        let _ = self.push(
            Owner::Calls(rank),
            |dir| Files::of_calls(dir, layout, rank, call, is_megatrace),
            |files| match &mut megatrace {
                None => files.lines.push(|line| call.row.write_json(line)),
                Some(megatrace) => files.lines.push_text(&megatrace.line(rank, &call.row)),
            },
        );
        self.megatrace = megatrace;
    }

    fn close_files(&mut self, is_closed: impl Fn(u32) -> bool) {
        self.flush();
        let mut closed: Vec<Owner> = self.given_up.extract_if(|owner| is_closed(owner.pid())).collect();
        for (owner, files) in self.open.extract_if(|owner, _| is_closed(owner.pid())) {
            self.shares.give_back(owner.pid());
            self.closed_lost += files.lost();
            let Some(report) = files.report(owner) else { continue };
            self.closed.insert(owner, report);
            closed.push(owner);
        }
        let Some(ended) = &mut self.ended else { return };
        for owner in closed {
            ended.push_back(owner);
            if ended.len() > MAX_ENDED
                && let Some(oldest) = ended.pop_front()
            {
                self.forgotten += u64::from(self.closed.remove(&oldest).is_some());
            }
        }
    }
}

/// The rows of ranks: of one that has ops and calls, what both say.
fn by_rank(owners: BTreeMap<Owner, CommunicatorReport>) -> Vec<CommunicatorReport> {
    let mut ranks: BTreeMap<RankKey, CommunicatorReport> = BTreeMap::new();
    for (owner, report) in owners {
        let (Owner::Ops(key) | Owner::Calls(key)) = owner else { continue };
        match ranks.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(report);
            }
            Entry::Occupied(mut entry) => {
                let row = entry.get_mut();
                row.proxy_flow_lines += report.proxy_flow_lines;
                row.flow_steps_lines += report.flow_steps_lines;
                row.api_lines += report.api_lines;
                row.lost_lines += report.lost_lines;
            }
        }
    }
    ranks.into_values().collect()
}

impl Sink for LineFiles {
    fn op(&mut self, op: &Op) {
        let layout = self.layout;
        let create = |dir: &OutputDir| Files::of_ops(dir, layout, op);
        self.refused = self
            .push(Owner::Ops(op.rank), create, |files| files.lines.push(|line| op.row.write_json(line)))
            .err();
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) {
        if let Some(lost) = self.refused {
            self.without_file += messages.iter().map(|_| lost).sum();
            if lost.over_max_size == 0 {
                self.shares.refuse(op.rank.pid, messages.len() as u64);
            }
            return;
        }
        let owner = Owner::Ops(op.rank);
        let Some(file) = self.open.get_mut(&owner).and_then(|files| files.flow_steps.as_mut()) else {
            return;
        };
        let (mut written, before) = (Ok(()), file.bytes());
        for message in messages {
            written = written.and(file.push(|line| message.write_json(line)));
        }
        self.bytes += file.bytes().saturating_sub(before);
        self.note(owner, written);
    }

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
        for files in self.open.values_mut() {
            for file in [Some(&mut files.lines), files.flow_steps.as_mut()].into_iter().flatten() {
                if let Err(error) = file.flush() {
                    self.errors.push(format!("writing to `{}` stopped: {error}", files.folder));
                }
            }
        }
    }

    fn close_process(&mut self, pid: u32) {
        self.close_files(|of| of == pid);
    }

    fn close(&mut self) {
        // Those that go on to the end are all remembered.
        self.ended = None;
        self.close_files(|_| true);
    }

    fn take_errors(&mut self) -> Vec<String> {
        mem::take(&mut self.errors)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn written(&self) -> Written {
        let mut owners = self.closed.clone();
        owners.extend(self.open.iter().filter_map(|(owner, files)| Some((*owner, files.report(*owner)?))));
        let lost = self.open.values().map(Files::lost).chain([self.without_file, self.closed_lost]).sum();
        let Self { has_ops, forgotten: forgotten_ranks, .. } = *self;
        let over_share = self.shares.refused().clone();
        Written {
            has_ops,
            ranks: by_rank(owners),
            forgotten_ranks,
            files: self.made.clone(),
            lost,
            over_share,
        }
    }
}

#[cfg(test)]
mod tests;
