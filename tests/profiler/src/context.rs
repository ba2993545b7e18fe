//! One communicator's file, and the state that its lines need until they are written.
//!
//! Each line is written whole, with one `write`: a file whose process was killed must end at a line's end,
//! and hold all that happened before.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::{Event, Start, Transition};
use crate::handle::Handle;
use crate::line::Line;

#[cfg(test)]
mod tests;

#[derive(Debug, Clone)]
pub(crate) struct Communicator {
    pub(crate) comm_hash: u64,
    pub(crate) rank: i32,
    pub(crate) ranks: Option<i32>,
    pub(crate) nodes: Option<i32>,
    pub(crate) name: String,
}

pub(crate) struct Context {
    handle: Handle,
    api: u32,
    directory: PathBuf,
    foreign: bool,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Known at init from v4 on, from the first call's descriptor before.
    communicator: Option<Communicator>,
    file: Option<File>,
    /// Writing failed, and this was reported.
    broken: bool,
    objects: u64,
    /// Ops and steps that have not stopped.
    open: HashMap<Handle, Open>,
    /// Finds an open step again when NCCL starts it a second time, which it does while a receive cannot be
    /// posted.
    steps: HashMap<(Handle, i32), Handle>,
}

#[derive(Default)]
struct Open {
    /// Op and number of a step.
    step: Option<(Handle, i32)>,
    /// The last state and its arguments: NCCL repeats some states while it waits.
    last: Option<Transition>,
}

impl Context {
    pub(crate) fn new(
        handle: Handle,
        api: u32,
        directory: PathBuf,
        communicator: Option<Communicator>,
    ) -> Self {
        let inner = Inner {
            communicator,
            file: None,
            broken: false,
            objects: 0,
            open: HashMap::new(),
            steps: HashMap::new(),
        };
        Self { handle, api, directory, foreign: false, inner: Mutex::new(inner) }
    }

    pub(crate) fn for_foreign_ops(&self, handle: Handle) -> Self {
        let anyone = Communicator { comm_hash: 0, rank: -1, ranks: None, nodes: None, name: String::new() };
        Self { foreign: true, ..Self::new(handle, self.api, self.directory.clone(), Some(anyone)) }
    }

    pub(crate) fn start(&self, start: &Start) -> Option<Handle> {
        let t = now();
        let mut inner = self.lock();
        if let Event::ProxyStep { step } = start.event
            && let Some(open) = inner.steps.get(&(start.parent?, step))
        {
            return Some(*open);
        }
        let handle = inner.next_handle(self.handle);
        let (id, parent, rank) = (handle.number(), start.parent.map(Handle::number), start.rank);
        match &start.event {
            Event::Group => {}
            Event::Coll(coll) => {
                inner.learn(coll.comm_hash, rank);
                let line = Line::Coll {
                    id,
                    group: parent,
                    rank,
                    seq_number: coll.seq_number,
                    send_buff: coll.send_buff,
                    func: &coll.func,
                    count: coll.count,
                    datatype: &coll.datatype,
                    red_op: coll.red_op,
                    root: coll.root,
                    algo: &coll.algo,
                    proto: &coll.proto,
                    n_channels: coll.channels,
                    n_max_channels: coll.max_channels,
                    n_warps: coll.warps,
                    traffic_bytes: coll.traffic_bytes,
                    t,
                };
                self.write(&mut inner, &line);
            }
            Event::P2p(p2p) => {
                inner.learn(p2p.comm_hash, rank);
                let line = Line::P2p {
                    id,
                    group: parent,
                    rank,
                    func: &p2p.func,
                    count: p2p.count,
                    datatype: &p2p.datatype,
                    peer: p2p.peer,
                    n_channels: p2p.channels,
                    t,
                };
                self.write(&mut inner, &line);
            }
            Event::ProxyOp(op) => {
                inner.open.insert(handle, Open::default());
                let line = Line::ProxyOp {
                    id,
                    parent,
                    parent_pid: op.origin_pid,
                    rank,
                    channel_id: op.channel,
                    peer: op.peer,
                    n_steps: op.steps,
                    chunk_size: op.chunk_size,
                    is_send: op.is_send,
                    t,
                };
                self.write(&mut inner, &line);
            }
            Event::ProxyStep { step } => {
                let op = start.parent?;
                inner.open.insert(handle, Open { step: Some((op, *step)), last: None });
                inner.steps.insert((op, *step), handle);
                self.write(&mut inner, &Line::ProxyStep { id, op: op.number(), step: *step, t });
            }
        }
        Some(handle)
    }

    pub(crate) fn record(&self, handle: Handle, state: i32, transition: Option<Transition>) {
        let t = now();
        let transition = transition.unwrap_or(Transition { state, trans_size: None, steps: None });
        let mut inner = self.lock();
        let Some(open) = inner.open.get_mut(&handle) else { return };
        if open.last.replace(transition) != Some(transition) {
            let Transition { state, trans_size, steps } = transition;
            self.write(&mut inner, &Line::State { id: handle.number(), state, trans_size, steps, t });
        }
    }

    pub(crate) fn stop(&self, handle: Handle) {
        let t = now();
        let mut inner = self.lock();
        if let Some(step) = inner.open.remove(&handle).and_then(|open| open.step) {
            inner.steps.remove(&step);
        }
        self.write(&mut inner, &Line::Stop { id: handle.number(), t });
    }

    pub(crate) fn finalize(&self) {
        let mut inner = self.lock();
        if inner.communicator.is_some() {
            self.write(&mut inner, &Line::Finalize { t: now() });
        }
        inner.file = None;
    }

    /// A lock that a panicked thread held is taken all the same: the rest of the truth matters more than what
    /// that thread left half done.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, inner: &mut Inner, line: &Line<'_>) {
        if inner.broken {
            return;
        }
        if let Err(error) = self.try_write(inner, line) {
            inner.broken = true;
            eprintln!("ncclflow truth: recording ends in `{}`: {error}", self.directory.display());
        }
    }

    fn try_write(&self, inner: &mut Inner, line: &Line<'_>) -> io::Result<()> {
        if inner.file.is_none() {
            inner.file = Some(self.create(inner.communicator.as_ref())?);
        }
        match &mut inner.file {
            Some(file) => put(file, line),
            None => Ok(()),
        }
    }

    /// Opens the file, a second time if something happens after finalize.
    fn create(&self, communicator: Option<&Communicator>) -> io::Result<File> {
        let Some(communicator) = communicator else {
            return Err(io::Error::other("a proxy op before the first call: no communicator is known"));
        };
        fs::create_dir_all(&self.directory)?;
        let path = self.directory.join(format!(
            "truth.{}.{:016x}.rank{}.{}.jsonl",
            process::id(),
            communicator.comm_hash,
            communicator.rank,
            self.handle.context()
        ));
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        if file.metadata()?.len() == 0 {
            let line = Line::Context {
                api: self.api,
                pid: process::id(),
                comm_hash: communicator.comm_hash,
                rank: communicator.rank,
                n_ranks: communicator.ranks,
                n_nodes: communicator.nodes,
                name: &communicator.name,
                foreign: self.foreign,
                t: now(),
            };
            put(&mut file, &line)?;
        }
        Ok(file)
    }
}

impl Inner {
    fn next_handle(&mut self, context: Handle) -> Handle {
        self.objects += 1;
        context.object(self.objects)
    }

    fn learn(&mut self, comm_hash: Option<u64>, rank: i32) {
        if let Some(comm_hash) = comm_hash
            && self.communicator.is_none()
        {
            self.communicator =
                Some(Communicator { comm_hash, rank, ranks: None, nodes: None, name: String::new() });
        }
    }
}

fn put(file: &mut File, line: &Line<'_>) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    file.write_all(&bytes)
}

fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the address of a local variable. CLOCK_MONOTONIC cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
