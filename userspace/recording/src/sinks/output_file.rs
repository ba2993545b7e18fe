//! A file of a recording that takes what it needs from the budget before it writes.

use std::{
    fs::File,
    io::{self, Seek as _, SeekFrom, Write},
};

use super::{
    budget::{Account, ENTRY, Need, Share, over_max_size},
    flow_rank::MAX_FLOW_STEPS,
};

/// Products of a file at the end. Room for them is kept as the file grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The compressed file alone.
    Lines,
    /// The heads of ops in `flow_rank`, at most 450 bytes for a line that is not shorter, and its first line.
    ProxyFlow,
    /// Each line twice in `flow_rank`, and the sums of each link, which has a line at least.
    FlowSteps,
}

/// Bytes of a rank in `session.json`, with the second name of its file.
const RANK_IN_REPORT: u64 = 1024;

/// Most bytes of the sums of a rank's links: some hundreds of them.
const LINES_OF_LINKS: u64 = 256 << 10;

/// Bytes of `flow_rank` besides.
const FRAME: u64 = 4096;

/// Room for a compressed file, as a divisor: most are a tenth or less; others are left as they are.
const COMPRESSED_TO: u64 = 8;

#[derive(Debug)]
struct Claim {
    account: Account,
    share: Share,
    source: Option<Source>,
    /// Size up to which the file may grow.
    covered: u64,
    taken: Need,
}

#[derive(Debug)]
pub struct OutputFile {
    file: File,
    len: u64,
    /// `None` without a limit.
    claim: Option<Claim>,
}

impl From<File> for OutputFile {
    /// Wraps an empty file without a limit.
    fn from(file: File) -> Self {
        Self { file, len: 0, claim: None }
    }
}

impl OutputFile {
    /// Wraps an empty file that takes its bytes from that share.
    pub(super) fn new(file: File, account: &Account, share: Share) -> Self {
        let account = account.clone();
        let claim = Claim { account, share, source: None, covered: 0, taken: Need::default() };
        Self { file, len: 0, claim: Some(claim) }
    }

    /// Keeps room for what is made from the file at the end; fails if there is none.
    pub(super) fn source_of(mut self, source: Source) -> io::Result<Self> {
        if let Some(claim) = &mut self.claim {
            claim.source = Some(source);
            if !claim.reach(0) {
                return Err(over_max_size());
            }
        }
        Ok(self)
    }

    /// Takes room for the file to reach this size; `false`: there is none.
    pub(super) fn reach(&mut self, size: u64) -> bool {
        self.claim.as_mut().is_none_or(|claim| size <= claim.covered || claim.reach(size))
    }

    pub(super) fn taken(&self) -> u64 {
        self.claim.as_ref().map_or(0, |claim| claim.taken.disk)
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Cuts the file off. What is written next stands there.
    pub fn cut(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.file.seek(SeekFrom::Start(len))?;
        self.len = len;
        Ok(())
    }

    /// Overwrites bytes that are there. This takes no room.
    pub fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.file, bytes, at)
    }

    /// Returns when what was written is on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.reach(self.len.saturating_add(bytes.len() as u64)) {
            return Err(over_max_size());
        }
        let written = self.file.write(bytes)?;
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Claim {
    fn reach(&mut self, size: u64) -> bool {
        let to = self.need(size);
        let has_room = match self.source {
            Some(_) => self.account.grow(&self.taken, &to),
            None => self.account.take(self.share, to.disk.saturating_sub(self.taken.disk)).is_ok(),
        };
        if has_room {
            self.covered = self.account.budget().covered(size);
            self.taken = to;
        }
        has_room
    }

    fn need(&self, size: u64) -> Need {
        let budget = self.account.budget();
        let need = Need { disk: budget.cost(size), ..Need::default() };
        let Some(source) = self.source else { return need };
        // Up to the size that it may reach without asking again.
        let size = budget.covered(size);
        let aggregates = match source {
            Source::FlowSteps if size <= MAX_FLOW_STEPS => {
                budget.cost(2 * size + size.min(LINES_OF_LINKS) + FRAME) + ENTRY
            }
            Source::ProxyFlow => budget.cost(size),
            Source::FlowSteps | Source::Lines => 0,
        };
        let compressed = if self.account.keeps_compressed() {
            budget.cost(size.div_ceil(COMPRESSED_TO)) + ENTRY
        } else {
            0
        };
        need.keeping(Share::Aggregates, aggregates)
            .keeping(Share::Compressed, compressed)
            .keeping(Share::Report, RANK_IN_REPORT)
    }
}
