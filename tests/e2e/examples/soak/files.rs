//! Library files that do not stay as they are: copied over, added to, replaced, deleted, cut, sparse, hostile.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use test_support::{
    damage::{Random, damage},
    hostile_file::overlapping_tables,
};

use super::tenant::{Order, Trick};

/// Probes of a former content are gone after half a second; that is promised, and a little is added.
const PROMISED: Duration = Duration::from_millis(700);
/// Between two changes.
const PAUSE: Duration = Duration::from_secs(3);
/// A process that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a library that damaged ones are made of.
const HEAD: u64 = 4 << 20;
/// Size of a sparse file.
const SPARSE: u64 = 64 << 30;

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
enum Change {
    CopiedOver,
    Longer,
    Replaced,
    Deleted,
    Cut,
    Sparse,
    Damaged,
    Overlapping,
}

const CHANGES: [Change; 8] = [
    Change::CopiedOver,
    Change::Longer,
    Change::Replaced,
    Change::Deleted,
    Change::Cut,
    Change::Sparse,
    Change::Damaged,
    Change::Overlapping,
];

#[derive(Debug, Default)]
pub(crate) struct Changed {
    pub(crate) done: BTreeMap<String, u64>,
    /// Processes that did not do what they do untraced.
    pub(crate) failed: Vec<String>,
}

pub(crate) struct Files {
    folder: PathBuf,
    libraries: [PathBuf; 2],
    random: Random,
    number: u64,
    pub(crate) changed: Changed,
}

impl Files {
    pub(crate) fn new(folder: PathBuf, libraries: [PathBuf; 2], seed: u64) -> Self {
        Self { folder, libraries, random: Random(seed), number: 0, changed: Changed::default() }
    }

    /// One change after the other, until it is time.
    pub(crate) fn run(&mut self, until: Instant) {
        while Instant::now() < until {
            // Each comes, in an order of its own each time.
            let change = CHANGES[self.random.below(CHANGES.len())];
            self.number += 1;
            let place = self.folder.join(self.number.to_string());
            match self.one(change, &place) {
                Ok(()) => *self.changed.done.entry(format!("{change:?}")).or_default() += 1,
                Err(error) => self.changed.failed.push(format!("{change:?}: {error:#}")),
            }
            let _ = fs::remove_dir_all(&place);
            thread::sleep(PAUSE.min(until.saturating_duration_since(Instant::now())));
        }
    }

    fn one(&mut self, change: Change, place: &Path) -> Result<()> {
        fs::create_dir_all(place)?;
        let file = place.join("libnccl.so.2");
        let [old, new] = &self.libraries;
        match change {
            Change::CopiedOver => {
                fs::copy(old, &file)?;
                works(start(Trick::Plain, &file, 40, 1200)?)?;
                // `cat NEW > FILE`: the same inode.
                let mut to = File::options().write(true).truncate(true).open(&file)?;
                std::io::copy(&mut File::open(new)?, &mut to)?;
                thread::sleep(PROMISED);
                works(start(Trick::Plain, &file, 40, 100)?)
            }
            Change::Longer => {
                fs::copy(old, &file)?;
                let running = start(Trick::Threads, &file, 600, 500)?;
                thread::sleep(Duration::from_millis(700));
                File::options().append(true).open(&file)?.write_all(b"x")?;
                works(running)
            }
            Change::Replaced => {
                fs::copy(old, &file)?;
                let running = start(Trick::Threads, &file, 600, 500)?;
                fs::copy(new, place.join("new"))?;
                fs::rename(place.join("new"), &file)?;
                works(start(Trick::Fork, &file, 40, 100)?)?;
                works(running)
            }
            Change::Deleted => {
                fs::copy(old, &file)?;
                let mut running = start(Trick::Threads, &file, 600, 500)?;
                wait_until_mapped(&mut running, &file)?;
                fs::remove_file(&file)?;
                works(running)
            }
            Change::Cut => {
                fs::copy(old, &file)?;
                // It looks at nothing: what is cut off cannot be looked at.
                let running = start(Trick::Map, &file, 0, 1500)?;
                thread::sleep(Duration::from_millis(500));
                let length = self.random.below(1 << 20) as u64;
                File::options().write(true).open(&file)?.set_len(length)?;
                works(running)
            }
            Change::Sparse => {
                let mut head = head_of(old, 64)?;
                head.resize(4096, 0);
                fs::write(&file, head)?;
                File::options().write(true).open(&file)?.set_len(SPARSE)?;
                works(start(Trick::Map, &file, 0, 1500)?)
            }
            Change::Damaged => {
                let head = head_of(old, HEAD)?;
                fs::write(&file, damage(&head, &[(0, head.len())], &mut self.random))?;
                works(start(Trick::Map, &file, 0, 1500)?)
            }
            Change::Overlapping => {
                fs::write(&file, overlapping_tables())?;
                works(start(Trick::Map, &file, 0, 1500)?)
            }
        }
    }
}

fn head_of(file: &Path, bytes: u64) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    File::open(file)?.take(bytes).read_to_end(&mut head)?;
    Ok(head)
}

fn start(trick: Trick, library: &Path, calls: u64, hold_ms: u64) -> Result<Child> {
    let hold = Duration::from_millis(hold_ms);
    let order = Order { trick, library, ledger: None, calls, hold };
    let mut command = order.command()?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("starting it")
}

/// Waits until it has the file mapped. One that has ended before says why itself.
fn wait_until_mapped(child: &mut Child, file: &Path) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let (maps, file) = (format!("/proc/{}/maps", child.id()), file.display().to_string());
    while child.try_wait()?.is_none() && !fs::read_to_string(&maps).is_ok_and(|maps| maps.contains(&file)) {
        if Instant::now() > deadline {
            bail!("it does not load its library");
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// It ends by itself, and well.
fn works(mut child: Child) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            break child.wait()?;
        }
        thread::sleep(Duration::from_millis(20));
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut said);
    }
    bail!("{status} {}", said.trim())
}
