//! `--graphs`: CUDA graphs that are captured, launched, updated and destroyed, and what that replays.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs;
use std::mem::{forget, transmute};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::data::Shape;
use crate::library;
use crate::options::{OpKind, Options};
use crate::rank::Comm;
use crate::runtime::graph;
use crate::setup::Nccl;
use crate::workload::{self, Flight};

/// How often a graph is launched in a row.
const TIMES: u64 = 5;

type Three = extern "C" fn(usize, usize, usize) -> c_int;

/// The exports of the driver's double.
struct Driver {
    instantiate: Three,
    launch: Three,
    update: Three,
    destroy_exec: Three,
    destroy_graph: Three,
    begin_capture: Three,
    end_capture: Three,
}

impl Driver {
    fn load(path: &Path) -> Result<Self> {
        let set = library::exported(path, c"ncclflow_double_set")?;
        // SAFETY: the double's function, which takes a table of seven functions.
        let set = unsafe { transmute::<usize, unsafe extern "C" fn(*const usize)>(set) };
        // SAFETY: as above.
        unsafe { set(graph::of_driver().as_ptr()) };
        // SAFETY: the double's functions take three words.
        let function =
            |name| library::exported(path, name).map(|at| unsafe { transmute::<usize, Three>(at) });
        Ok(Self {
            instantiate: function(c"cuGraphInstantiateWithFlags")?,
            launch: function(c"cuGraphLaunch")?,
            update: function(c"cuGraphExecUpdate_v2")?,
            destroy_exec: function(c"cuGraphExecDestroy")?,
            destroy_graph: function(c"cuGraphDestroy")?,
            begin_capture: function(c"cuStreamBeginCapture_v2")?,
            end_capture: function(c"cuStreamEndCapture")?,
        })
    }
}

/// An executable, and what each of its launches replays.
struct Exec {
    handle: Box<usize>,
    holds: Vec<Shape>,
}

struct Run<'a> {
    options: &'a Options,
    nccl: &'a Nccl,
    comm: &'a Comm,
    driver: Driver,
    flights: Vec<Flight<'a>>,
    /// Where the driver leaves the graphs of captures.
    captured: Box<usize>,
    launches: u64,
    unknown: u64,
    without: u64,
    replayed: BTreeMap<String, u64>,
}

impl Run<'_> {
    fn shape(&self, kind: OpKind, bytes: usize) -> Shape {
        let Options { dtype, .. } = *self.options;
        Shape {
            kind,
            ranks: self.comm.ranks,
            stage: self.options.ranks_of_stage(),
            count: bytes / dtype.size(),
            dtype,
            op: 0,
        }
    }

    fn stream(&self) -> usize {
        std::sync::Arc::as_ptr(&self.comm.stream) as usize
    }

    fn begin_capture(&self) {
        (self.driver.begin_capture)(self.stream(), 0, 0);
    }

    /// Ends a capture. Returns the graph.
    fn end_capture(&mut self) -> usize {
        let place = (&raw mut *self.captured) as usize;
        (self.driver.end_capture)(self.stream(), place, 0);
        *self.captured
    }

    fn issue(&mut self, shapes: &[Shape]) -> Result<()> {
        for shape in shapes {
            self.flights.push(workload::issue(self.nccl, *shape, self.comm)?);
        }
        Ok(())
    }

    /// Captures these operations, one after the other. Returns the graph.
    fn capture(&mut self, holds: &[Shape]) -> Result<usize> {
        self.begin_capture();
        self.issue(holds)?;
        Ok(self.end_capture())
    }

    fn instantiate(&self, graph: usize, holds: &[Shape]) -> Exec {
        let mut handle = Box::new(0usize);
        (self.driver.instantiate)((&raw mut *handle) as usize, graph, 0);
        Exec { handle, holds: holds.to_vec() }
    }

    fn made(&mut self, holds: &[Shape]) -> Result<Exec> {
        let graph = self.capture(holds)?;
        Ok(self.made_of(graph, holds))
    }

    fn made_of(&self, graph: usize, holds: &[Shape]) -> Exec {
        let exec = self.instantiate(graph, holds);
        (self.driver.destroy_graph)(graph, 0, 0);
        exec
    }

    /// Launches an executable whose content a recording can know, or not.
    fn launch(&mut self, exec: &Exec, is_known: bool, times: u64) {
        let stream = &self.comm.stream;
        for _ in 0..times {
            (self.driver.launch)(*exec.handle, self.stream(), 0);
        }
        stream.wait(stream.mark(), None);
        self.launches += times;
        match (is_known, exec.holds.is_empty()) {
            (false, _) => self.unknown += times,
            (true, true) => self.without += times,
            (true, false) => {
                for shape in &exec.holds {
                    *self.replayed.entry(format!("{:?} {}", shape.kind, shape.count)).or_default() += times;
                }
            }
        }
    }

    fn destroy(&self, exec: Exec) {
        let Exec { handle, .. } = exec;
        (self.driver.destroy_exec)(*handle, 0, 0);
    }

    fn go(&mut self, file: &Path) -> Result<()> {
        let few = [self.shape(OpKind::AllReduce, 4096)];
        let many = [
            self.shape(OpKind::AllReduce, 1 << 18),
            self.shape(OpKind::AllGather, 8192),
            self.shape(OpKind::AllReduce, 1 << 18),
        ];
        let peers = [self.shape(OpKind::SendRecv, 16384)];
        // Connections are made at the first use, outside of a graph.
        self.issue(&[few[0], many[1], peers[0]])?;
        self.comm.stream.wait(self.comm.stream.mark(), None);
        let early = self.made(&few)?;
        // One that is under way when the recording begins.
        self.begin_capture();
        self.issue(&few)?;
        let rank = self.comm.rank;
        let of_rank = |what: &str| format!("{}{what}.{rank}", file.display());
        fs::write(of_rank(".ready"), "")?;
        while !file.exists() {
            thread::sleep(Duration::from_millis(5));
        }
        self.issue(&few)?;
        let graph = self.end_capture();
        let partly = self.made_of(graph, &[few[0], few[0]]);
        self.launch(&early, false, TIMES);
        self.launch(&partly, false, TIMES);
        let empty = self.made(&[])?;
        self.launch(&empty, true, TIMES);
        let first = self.made(&few)?;
        self.launch(&first, true, TIMES);
        let second = self.made(&many)?;
        for _ in 0..TIMES {
            self.launch(&second, true, 1);
            self.launch(&first, true, 2);
        }
        // Outside of graphs, between them.
        self.issue(&few)?;
        self.comm.stream.wait(self.comm.stream.mark(), None);
        let with_peers = self.made(&peers)?;
        self.launch(&with_peers, true, TIMES);
        // An executable at the address of one that is no more.
        self.destroy(first);
        let mut same = 0;
        for turn in 0..8 {
            let exec = self.made(if turn % 2 == 0 { &many } else { &few })?;
            self.launch(&exec, true, turn + 1);
            let before = *exec.handle;
            self.destroy(exec);
            let again = self.made(&few)?;
            same += u32::from(*again.handle == before);
            self.launch(&again, true, 1);
            self.destroy(again);
        }
        ensure!(same > 0, "no executable came to the address of another");
        // One that gets the content of another graph, and one that does not fit it.
        let mut updated = self.made(&few)?;
        let holds = [self.shape(OpKind::AllReduce, 65536)];
        let graph = self.capture(&holds)?;
        let mut result = Box::new([-1 as c_int, 0, 0, 0, 0, 0]);
        (self.driver.update)(*updated.handle, graph, (&raw mut *result) as usize);
        ensure!(result[0] == 0, "the update was refused");
        updated.holds = holds.to_vec();
        self.launch(&updated, true, TIMES);
        let other = self.capture(&many)?;
        *result = [-1; 6];
        (self.driver.update)(*updated.handle, other, (&raw mut *result) as usize);
        ensure!(result[0] != 0, "the update was not refused");
        // What it holds now the driver's answer does not say.
        self.launch(&updated, false, 1);
        (self.driver.destroy_graph)(graph, 0, 0);
        (self.driver.destroy_graph)(other, 0, 0);
        // Launched by another thread than the one that has made it.
        let elsewhere = self.made(&many)?;
        thread::scope(|scope| {
            let ended = scope.spawn(|| self.launch(&elsewhere, true, TIMES)).join();
            ended.map_err(|_| anyhow::anyhow!("a thread panicked"))
        })?;
        for exec in [early, partly, empty, second, with_peers, updated, elsewhere] {
            self.destroy(exec);
        }
        let truth = serde_json::json!({
            "rank": rank,
            "launches": self.launches,
            "unknown": self.unknown,
            "without_ops": self.without,
            "replayed": self.replayed,
        });
        fs::write(of_rank(""), truth.to_string())?;
        Ok(())
    }
}

/// Runs the graphs of a rank.
pub(crate) fn run(options: &Options, file: &Path, nccl: &Nccl, _rank: u32, comms: &[Comm]) -> Result<()> {
    let [comm] = comms else { bail!("--graphs takes one communicator") };
    let driver = Driver::load(options.cuda.as_deref().context("--cuda is missing")?)?;
    let replayed = BTreeMap::new();
    let mut run = Run {
        options,
        nccl,
        comm,
        driver,
        flights: Vec::new(),
        captured: Box::new(0),
        launches: 0,
        unknown: 0,
        without: 0,
        replayed,
    };
    let result = run.go(file);
    // Kernels can still use their buffers.
    run.flights.drain(..).for_each(forget);
    result
}
