//! Files of JSON lines: for every rank of every communicator, two for ops and messages or one for its API
//! calls, and for each process one for calls that belong to no communicator. Beside them are lines that
//! belong to no rank: the call stacks that ops and calls name (`stacks.jsonl`), and the activity of the
//! host's GPUs (`gpus.jsonl`).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque, btree_map::Entry},
    io, mem,
};

use flow::{
    quota::Shares,
    schema::{ApiCall, CommunicatorReport, GpuRow, MessageRow, Op, OtherCallRow, RankKey, StackId, StackRow},
};

use super::{
    budget::is_over_max_size,
    flow_rank::FlowRanks,
    json_lines::{JsonLinesFile, LostLines},
    layout::Layout,
    lazy_lines::LazyLines,
    output_dir::OutputDir,
    rank_files::{MAX_OWNERS, Owner, RankFiles},
    sink::Sink,
};

/// Most ranks of ended processes that are listed, in a session where processes come and go.
const MAX_ENDED: usize = 1000;

/// Most stacks that are written. A process that has more wants to fill the disk.
const MAX_STACKS: usize = 1 << 20;

/// Bytes of the head of an op in `flow_rank`, about.
const HEAD: u64 = 256;

#[derive(Debug)]
pub struct LineFiles {
    pub dir: OutputDir,
    pub layout: Layout,
    open: HashMap<Owner, RankFiles>,
    /// Most owners whose files may be open.
    most: usize,
    /// Number of open owners of each process.
    shares: Shares,
    /// Owners given up for others, of processes that go on.
    given_up: HashSet<Owner>,
    /// Number of files made.
    number: u64,
    /// Ranks whose files are complete.
    closed: BTreeMap<Owner, CommunicatorReport>,
    /// Closed owners of ended processes, oldest first, where not all are remembered.
    ended: Option<VecDeque<Owner>>,
    /// Number of these that are forgotten.
    pub(super) forgotten: u64,
    /// Files that were made of all lines of a rank.
    pub flow_ranks: FlowRanks,
    /// Ops that are kept for the `flow_rank` of open files.
    kept_ops: usize,
    /// Names of files are wanted at the end.
    keeps_names: bool,
    /// Folders and names of all files of JSON lines that were made.
    made: Vec<(String, String)>,
    /// Lines that could not be written to files that are complete.
    closed_lost: LostLines,
    /// Lines whose file could not be made, and those not tried for lack of room.
    without_file: LostLines,
    /// Bytes of lines in all files, and of messages among them.
    bytes: u64,
    message_bytes: u64,
    /// Ops with `flow_rank`.
    ops: u64,
    /// Loss of each message of the latest op, if that op was not written.
    refused: Option<LostLines>,
    /// Lines of stacks and of GPUs.
    side: [LazyLines; 2],
    /// Stacks already written: segments repeat them.
    written_stacks: HashSet<(u32, StackId)>,
    errors: Vec<String>,
}

impl LineFiles {
    pub fn new(dir: OutputDir, layout: Layout) -> Self {
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
            flow_ranks: FlowRanks::default(),
            kept_ops: 0,
            keeps_names: true,
            made: Vec::new(),
            closed_lost: LostLines::default(),
            without_file: LostLines::default(),
            bytes: 0,
            message_bytes: 0,
            ops: 0,
            refused: None,
            side: ["stacks.jsonl", "gpus.jsonl"].map(LazyLines::new),
            written_stacks: HashSet::new(),
            errors: Vec::new(),
        }
    }

    /// Forgets old ranks of ended processes.
    pub(super) fn forgetting_ended(self, keeps_names: bool) -> Self {
        Self { ended: Some(VecDeque::new()), keeps_names, ..self }
    }

    /// Writes a line to the owner's files, which are created if necessary. An error tells how the line is
    /// lost: without files, or for lack of room.
    fn push(
        &mut self,
        owner: Owner,
        host: &str,
        n_ranks: i32,
        write: impl FnOnce(&mut RankFiles) -> io::Result<()>,
    ) -> Result<(), LostLines> {
        let written = self.files_of(owner, host, n_ranks).map(|files| {
            let before = files.bytes();
            let written = write(files);
            (written, files.bytes().saturating_sub(before))
        });
        let (written, bytes) = written.inspect_err(|lost| self.without_file += *lost)?;
        self.bytes += bytes;
        self.note(owner, written);
        Ok(())
    }

    fn files_of(&mut self, owner: Owner, host: &str, n_ranks: i32) -> Result<&mut RankFiles, LostLines> {
        // An op is written as a whole, or not at all.
        if self.dir.has_no_room() {
            return Err(LostLines::over_max_size(1));
        }
        if !self.open.contains_key(&owner) {
            if !self.has_place_for(owner) {
                self.shares.refuse(owner.pid(), 1);
                return Err(self.no_files(owner, &io::Error::other(owner.limit())));
            }
            let files = RankFiles::create(&self.dir, self.layout, owner, host, n_ranks);
            let mut files = files.map_err(|error| self.no_files(owner, &error))?;
            if self.keeps_names {
                self.made.extend(files.names.drain(..).map(|name| (files.folder.clone(), name)));
            }
            (files.number, self.number) = (self.number, self.number + 1);
            self.shares.take(owner.pid(), 1);
            self.open.insert(owner, files);
        }
        self.open.get_mut(&owner).ok_or(LostLines { lines: 1, over_max_size: 0 })
    }

    /// Tells whether this owner may have files. At the limit, the process that has most gives its latest up,
    /// if it has more than this one would have.
    fn has_place_for(&mut self, owner: Owner) -> bool {
        if self.given_up.contains(&owner) {
            return false;
        }
        if self.open.len() < self.most {
            return true;
        }
        let Some(whose) = self.shares.gives_up_for(owner.pid()) else { return false };
        let of_it = self.open.iter().filter(|(owner, _)| owner.pid() == whose);
        let latest = of_it.max_by_key(|(_, files)| files.number).map(|(owner, _)| *owner);
        let Some((latest, files)) = latest.and_then(|latest| self.open.remove_entry(&latest)) else {
            return false;
        };
        if self.shares.refused().is_empty() {
            let text = "files of others are needed, and its process has most";
            self.errors.push(format!("{} end before their process does: {text}", latest.files()));
        }
        // From now on it is named with each line that comes.
        self.shares.refuse(whose, 0);
        self.end_files(latest, files);
        self.given_up.insert(latest);
        true
    }

    /// Completes files to which nothing more comes.
    fn end_files(&mut self, owner: Owner, mut files: RankFiles) {
        self.shares.give_back(owner.pid(), 1);
        self.kept_ops = self.kept_ops.saturating_sub(files.kept_ops());
        if let Err(error) = files.flush() {
            self.errors.push(format!("writing to `{}` stopped: {error}", files.folder));
        }
        match files.complete(&self.dir) {
            Ok(done) => self.flow_ranks += done,
            Err(error) => self.errors.push(format!("making `flow_rank` in `{}`: {error}", files.folder)),
        }
        self.closed_lost += files.lost();
        self.closed.extend(files.report().map(|report| (owner, report)));
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

    fn flush_side(&mut self) {
        self.errors.extend(self.side.iter_mut().filter_map(|lines| lines.flush().err()));
    }

    /// Completes everything.
    pub fn close(&mut self) {
        // Owners that go on to the end are all remembered.
        self.ended = None;
        self.close_files(|_| true);
        self.flush_side();
    }

    fn close_files(&mut self, is_closed: impl Fn(u32) -> bool) {
        let mut closed: Vec<Owner> = self.given_up.extract_if(|owner| is_closed(owner.pid())).collect();
        let ended: Vec<_> = self.open.extract_if(|owner, _| is_closed(owner.pid())).collect();
        for (owner, files) in ended {
            self.end_files(owner, files);
            if self.closed.contains_key(&owner) {
                closed.push(owner);
            }
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

/// Results, which can be asked for at any time.
impl LineFiles {
    pub(super) fn ranks(&self) -> Vec<CommunicatorReport> {
        let mut owners = self.closed.clone();
        owners.extend(self.open.iter().filter_map(|(owner, files)| Some((*owner, files.report()?))));
        by_rank(owners)
    }

    /// Returns the folders and names of the files of JSON lines that were made.
    pub(super) fn files(&self) -> Vec<(String, String)> {
        let side = self.side.iter().filter(|lines| lines.file().is_some());
        let side = side.map(|lines| (String::new(), lines.name.to_owned()));
        self.made.iter().cloned().chain(side).collect()
    }

    /// Returns the lines that could not be written.
    pub(super) fn lost(&self) -> LostLines {
        let open = self.open.values().map(RankFiles::lost);
        let side = self.side.iter().map(LazyLines::lost);
        open.chain(side).chain([self.without_file, self.closed_lost]).sum()
    }

    /// Returns the lines of these without a file as their process had most files, by process.
    pub(super) fn over_share(&self) -> impl Iterator<Item = (u32, u64)> {
        self.shares.refused().iter().map(|(pid, lines)| (*pid, *lines))
    }

    /// Returns the bytes of lines until now, before they are compressed.
    pub(super) fn bytes(&self) -> u64 {
        let side = self.side.iter().filter_map(LazyLines::file);
        self.bytes + side.map(JsonLinesFile::bytes).sum::<u64>()
    }

    /// Returns the bytes that will be made of these lines when they are complete.
    pub(super) fn bytes_to_come(&self) -> u64 {
        // `flow_rank` has each message twice, and the heads of ops.
        2 * self.message_bytes + HEAD * self.ops
    }
}

/// Returns the rows of ranks, merged where a rank has both ops and calls.
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
                row.collectives += report.collectives;
                row.sends_receives += report.sends_receives;
                row.launches += report.launches;
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
        let (kept_ops, mut more) = (self.kept_ops, 0);
        let pushed = self.push(Owner::Ops(op.rank), &op.row.host, op.row.n_ranks, |files| {
            let before = files.kept_ops();
            let written = files.push_op(&op.row, kept_ops);
            more = files.kept_ops().cast_signed() - before.cast_signed();
            written
        });
        self.kept_ops = self.kept_ops.saturating_add_signed(more);
        self.ops += u64::try_from(more).unwrap_or(0);
        self.refused = pushed.err();
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
        let Some(files) = self.open.get_mut(&owner) else { return };
        let before = files.bytes();
        let written = files.push_messages(messages);
        let bytes = files.bytes().saturating_sub(before);
        self.bytes += bytes;
        self.message_bytes += bytes;
        self.note(owner, written);
    }

    fn call(&mut self, call: &ApiCall) {
        let row = &call.row;
        let owner = call.rank.map_or(Owner::Process(row.pid), Owner::Calls);
        let write = |files: &mut RankFiles| files.lines.push(|line| row.write_json(line));
        // Lost lines are counted.
        let _ = self.push(owner, &row.host, row.n_ranks.unwrap_or(0), write);
    }

    fn other_call(&mut self, row: &OtherCallRow) {
        let write = |files: &mut RankFiles| files.lines.push(|line| row.write_json(line));
        let _ = self.push(Owner::Process(row.pid), &row.host, 0, write);
    }

    fn stack(&mut self, stack: &StackRow) {
        if self.written_stacks.len() < MAX_STACKS && self.written_stacks.insert((stack.pid, stack.stack)) {
            let [stacks, _] = &mut self.side;
            let pushed = stacks.push(&self.dir, |line| stack.write_json(line));
            self.errors.extend(pushed.err());
        }
    }

    fn gpu(&mut self, row: &GpuRow) {
        let [_, gpus] = &mut self.side;
        let pushed = gpus.push(&self.dir, |line| row.write_json(line));
        self.errors.extend(pushed.err());
    }

    fn flush(&mut self) {
        for files in self.open.values_mut() {
            if let Err(error) = files.flush() {
                self.errors.push(format!("writing to `{}` stopped: {error}", files.folder));
            }
        }
        self.flush_side();
    }

    fn close_process(&mut self, pid: u32) {
        self.close_files(|of| of == pid);
    }

    fn take_errors(&mut self) -> Vec<String> {
        // The files of a rank fail for the same reason, each by itself.
        let mut said = BTreeSet::new();
        let errors = mem::take(&mut self.errors).into_iter();
        errors.filter(|error| said.insert(error.clone())).collect()
    }
}

#[cfg(test)]
mod tests;
