//! The mode in which each rank is a process: the parent starts itself once per rank, before it has any
//! thread, and communicates with the children over their pipes. A child dies with its parent.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::parent_id;
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::controller::{self, Outcome};
use crate::link::{self, Command, Event, Link, PipeLink};
use crate::options::Options;
use crate::{rank, setup};

/// The parent's process id, so that a child whose parent died before it could ask for the signal does not
/// stay.
const PARENT: &str = "NCCLFLOW_BED_PARENT";

pub(crate) fn run_child(options: &Options, rank: u32) -> Result<Outcome> {
    link::set_child(rank);
    // SAFETY: asks the kernel for a signal when the parent dies; touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let parent = std::env::var(PARENT).ok().and_then(|pid| pid.parse().ok());
    if parent != Some(parent_id()) {
        bail!("--child is for the bed's own use; the parent is gone");
    }
    if let Some(prefix) = &options.namespaces {
        enter_namespace(&format!("{prefix}{rank}"))?;
    }
    let mut link = PipeLink::new();
    let prepared = setup::prepare(options).and_then(|nccl| {
        if rank == 0 {
            link.tell(Event::Ids(setup::unique_ids(&nccl, options)?))?;
        }
        Ok(nccl)
    });
    match prepared {
        Ok(nccl) => rank::run(options, &nccl, rank, link),
        Err(error) => link.tell(setup::failed(rank, &error))?,
    }
    Ok(Outcome::Told)
}

/// Moves this process, which has no other thread yet, into a network namespace that `ip netns` has made.
fn enter_namespace(name: &str) -> Result<()> {
    let path = format!("/run/netns/{name}");
    let namespace = std::fs::File::open(&path).with_context(|| format!("opening `{path}`"))?;
    // SAFETY: takes no memory.
    if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| format!("entering `{path}`"));
    }
    Ok(())
}

pub(crate) fn run_parent(options: &Options) -> Result<Outcome> {
    let mut children = Children(Vec::new());
    let (events, inbox) = mpsc::channel();
    let mut inputs = Vec::new();
    let mut outputs = Vec::new();
    for rank in 0..options.ranks {
        let mut command = Process::new(std::env::current_exe()?);
        if options.rank_variables {
            let of_all =
                [("WORLD_SIZE", options.ranks), ("RANK", rank), ("LOCAL_RANK", options.device_of(rank))];
            command.envs(of_all.map(|(name, value)| (name, value.to_string())));
        }
        let mut child = command
            .args(std::env::args_os().skip(1))
            .arg("--child")
            .arg(rank.to_string())
            .env(PARENT, std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting rank {rank}"))?;
        inputs.push(child.stdin.take().context("a child without standard input")?);
        outputs.push(child.stdout.take().context("a child without standard output")?);
        children.0.push(child);
    }
    for (rank, output) in outputs.into_iter().enumerate() {
        let events = events.clone();
        thread::spawn(move || read_events(rank as u32, BufReader::new(output), &events));
    }
    drop(events);
    let ids = first_ids(options, &inbox)?;
    let mut send = |rank: usize, command: Command| {
        // A child that is gone has reported it, or is found missing at the deadline.
        let _gone = write_command(&mut inputs[rank], &command);
    };
    for rank in 0..options.ranks as usize {
        send(rank, Command::Connect(ids.clone()));
    }
    let outcome = controller::run(options, &children.pids(), &inbox, &mut send)?;
    if outcome.is_final() {
        return Ok(outcome);
    }
    children.wait(options.timeout())?;
    Ok(outcome)
}

fn first_ids(options: &Options, inbox: &Receiver<Event>) -> Result<Vec<String>> {
    match inbox.recv_timeout(options.timeout()) {
        Ok(Event::Ids(ids)) => Ok(ids),
        Ok(Event::Failed { rank, error }) => bail!("rank {rank}: {error}"),
        other => bail!("no unique ids from rank 0: {other:?}"),
    }
}

fn write_command(input: &mut ChildStdin, command: &Command) -> Result<()> {
    writeln!(input, "{}", serde_json::to_string(command)?)?;
    input.flush()?;
    Ok(())
}

fn read_events(rank: u32, output: impl BufRead, events: &Sender<Event>) {
    let mut over = false;
    for line in output.lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(event) => {
                over = matches!(event, Event::Gone { .. } | Event::Failed { .. });
                if events.send(event).is_err() {
                    return;
                }
            }
            Err(error) => crate::say(&format!("rank {rank} wrote what is no event: {error}: {line}")),
        }
    }
    if !over {
        // Fails if the receiver is gone already, which does no harm.
        let _gone = events.send(Event::Failed { rank, error: "the process died".to_owned() });
    }
}

/// The children. Those that are left are killed when this is dropped, each by its process id.
struct Children(Vec<Child>);

impl Children {
    fn pids(&self) -> Vec<u32> {
        self.0.iter().map(Child::id).collect()
    }

    fn wait(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        for child in &mut self.0 {
            while child.try_wait()?.is_none() {
                if Instant::now() > deadline {
                    bail!("process {} does not end", child.id());
                }
                thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only for a child that has ended.
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}
