//! Programs that call NCCL and write down their own stack at each call, and what a recording says of these calls.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{exported, node::Killed, programs, recorder::Recorder};

/// What a row says whose native frames were not copied.
pub const NOT_COPIED: &str = "native frames not copied";

/// A program that waits until it may call. Killed when dropped.
#[derive(Debug)]
pub struct StackProgram {
    child: Killed,
    out: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl StackProgram {
    /// Starts it with a library, a file for what it says, a file to wait for, and `more`; waits until it is ready.
    pub fn start(command: &mut Command, library: &Path, more: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let child = command
            .arg(library)
            .args([folder.path().join("truth"), folder.path().join("go")])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the program")?;
        let mut child = Killed(child);
        let mut out = BufReader::new(child.0.stdout.take().context("it has no output")?);
        let mut line = String::new();
        out.read_line(&mut line)?;
        let program = Self { child, out, folder };
        if !line.starts_with("ready") {
            bail!("the program is not ready: {line}");
        }
        Ok(program)
    }

    /// Its process id, as `ncclflow -p` takes it.
    pub fn pid(&self) -> String {
        self.child.pid().to_string()
    }

    /// Lets it go, and waits for its end. Gives what it says of its calls.
    pub fn run(&mut self) -> Result<Vec<Value>> {
        self.tell("go")?;
        self.finish()
    }

    /// Attaches, lets it go, and waits for its end. Gives what it says of its calls.
    pub fn record(&mut self, output: &Path, options: &str) -> Result<Vec<Value>> {
        let recorder = self.attach(output, options)?;
        let called = self.run()?;
        recorder.end()?;
        Ok(called)
    }

    /// Attaches to it with these options of `ncclflow record`.
    pub fn attach(&self, output: &Path, options: &str) -> Result<Recorder> {
        let options: Vec<&str> = options.split_whitespace().collect();
        Recorder::start(&programs::ncclflow().context("no ncclflow")?, &self.pid(), output, &options)
    }

    /// Makes a file of this name beside what it says of its calls, for which it waits: `go`, at first.
    pub fn tell(&self, what: &str) -> Result<()> {
        File::create(self.folder.path().join(what))
            .with_context(|| format!("telling it to go on: {what}"))?;
        Ok(())
    }

    /// Waits for its end. Gives what it says of its calls.
    pub fn finish(&mut self) -> Result<Vec<Value>> {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest)?;
        if !self.child.0.wait()?.success() {
            bail!("the program failed: {rest}");
        }
        lines(&self.folder.path().join("truth"))
    }
}

/// Has `ncclflow stacks` with these options watch a program from before its first call to its end. Gives what the program
/// says of its calls, and what the command says.
pub fn watch(options: &str, program: &mut StackProgram) -> Result<(Vec<Value>, String)> {
    let mut live = Command::new(programs::ncclflow().context("no ncclflow")?)
        .arg("stacks")
        .args(options.split(' '))
        .args(["-p", &program.pid()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting ncclflow")?;
    let mut said = BufReader::new(live.stderr.take().context("ncclflow has no standard error")?);
    let mut line = String::new();
    while !line.contains("watching with") {
        line.clear();
        if said.read_line(&mut line)? == 0 {
            bail!("ncclflow ended before it watched: {}", live.wait()?);
        }
    }
    let called = program.run()?;
    let output = live.wait_with_output()?;
    ensure!(output.status.success(), "ncclflow: {}", output.status);
    Ok((called, String::from_utf8(output.stdout)?))
}

/// What a recording says: its calls by their numbers of elements, with thread and stack, and the stacks.
#[derive(Debug, Default)]
pub struct RecordedStacks {
    pub calls: BTreeMap<u64, (u64, Option<String>)>,
    pub stacks: HashMap<String, Value>,
}

impl RecordedStacks {
    /// Of calls without a communicator.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut recorded = Self::default();
        for file in fs::read_dir(folder.join("processes"))? {
            for row in lines(&file?.path())? {
                let number = row["count"].as_u64().context("a call without a count")?;
                let tid = row["tid"].as_u64().context("a call without a thread")?;
                recorded.calls.insert(number, (tid, row["stack"].as_str().map(str::to_owned)));
            }
        }
        for row in lines(&folder.join("stacks.jsonl"))? {
            let stack = row["stack"].as_str().context("a stack without a name")?.to_owned();
            recorded.stacks.insert(stack, row);
        }
        Ok(recorded)
    }

    /// The same of a session that goes on: what its recording has by now.
    ///
    /// # Errors
    /// If there is no call and no stack yet.
    pub fn read_so_far(session: &Path) -> Result<Self> {
        Self::read(exported::until_now(session).path())
    }

    /// The thread of the latest so many calls, if it is one thread's, and if their stacks have all frames and are those of
    /// earlier calls: the next such calls have stacks that are known, however late they are looked at.
    pub fn thread_that_is_known(&self, latest: usize) -> Option<u64> {
        let before = self.calls.len().checked_sub(latest)?;
        let earlier: HashSet<&str> =
            self.calls.values().take(before).filter_map(|(_, stack)| stack.as_deref()).collect();
        let (thread, _) = self.calls.values().next_back()?;
        let is_known = |(tid, stack): &(u64, Option<String>)| {
            let row = stack.as_deref().filter(|stack| earlier.contains(stack));
            let row = row.and_then(|stack| self.stacks.get(stack));
            tid == thread && row.is_some_and(|row| row["unknown"] != NOT_COPIED)
        };
        self.calls.values().skip(before).all(is_known).then_some(*thread)
    }
}

/// Every line: whoever wrote them has ended as it should, so half a line at the end is a fault.
fn lines(path: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading `{}`", path.display()))?;
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}
