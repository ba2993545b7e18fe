//! What NCCL's kernels would do, on the host: the device side of the step protocol, with real arithmetic.
//!
//! A launch is read into a plan per channel ([`batches`], or [`lists`] before NCCL 2.22), and the
//! channels run side by side on the thread of the launch's stream ([`executor`]): [`ring`], [`tree`] and
//! [`p2p`] say what moves when, [`primitives`] how, [`connection`] through what. Offsets are the
//! library's own ([`layout`]).

mod arithmetic;
mod batches;
mod bcast;
mod connection;
mod executor;
mod functions;
mod gpu_states;
mod kernel;
mod layout;
mod lists;
mod ll;
mod memory;
mod p2p;
mod pat;
mod primitives;
mod profiler;
mod ring;
mod transfer_log;
mod tree;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::executor::Control;
use self::functions::Functions;
use self::gpu_states::{GpuState, GpuStates, KernelOf, Running};
use self::kernel::Kernel;
use self::layout::{HostComm, Layout, Work};
use self::transfer_log::{LaunchName, TransferLog};
use crate::call_log;
use crate::library::Library;
use crate::link;
use crate::options::Options;
use crate::runtime::launch::{Arguments, Executor, Launch, LaunchShape};
use crate::runtime::lock;

#[derive(Debug)]
struct State {
    host_comm: HostComm,
    /// None where kernels complete at once, so that versions can run whose device structs are not known here.
    emulation: Option<(Layout, Functions)>,
    /// The rank of this process; its communicators can have other numbers for it.
    child: Option<u32>,
    stalls: Vec<(u32, PathBuf)>,
    /// Files while which kernels of a rank wait behind another kernel, or behind something else.
    computes: Vec<(u32, PathBuf)>,
    spins: Vec<(u32, PathBuf)>,
    holds: Vec<(u32, PathBuf)>,
    /// By rank.
    gpus: Vec<Option<GpuState>>,
    log: TransferLog,
    /// By the address of the device's communicator.
    comms: Mutex<HashMap<usize, KnownComm>>,
}

#[derive(Debug, Default)]
struct KnownComm {
    hash: String,
    launches: u64,
}

/// The emulator of this process.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<State>);

pub(crate) fn prepare(options: &Options, library: &Library) -> Result<Shared> {
    let context = || format!("struct layouts of `{}`", options.symbols().display());
    let host_comm = HostComm::read(options.symbols()).with_context(context)?;
    let emulation = if options.no_emulate {
        None
    } else {
        let layout = Layout::read(options.symbols()).with_context(context)?;
        let functions = Functions::read(library, &layout)?;
        Some((layout, functions))
    };
    if std::env::var_os("NCCLFLOW_BED_VERBOSE").is_some() {
        crate::say(&format!("layout: {host_comm:?} {emulation:?}"));
    }
    Ok(Shared(Arc::new(State {
        host_comm,
        emulation,
        child: options.child,
        stalls: options.stall.clone(),
        computes: options.compute.clone(),
        spins: options.spin.clone(),
        holds: options.hold.clone(),
        gpus: gpus(options)?,
        log: TransferLog::new(options.transfer_log.clone()),
        comms: Mutex::default(),
    })))
}

/// The slots of all ranks; of those that are other processes nothing is written.
fn gpus(options: &Options) -> Result<Vec<Option<GpuState>>> {
    let Some(path) = &options.gpu_states else { return Ok(Vec::new()) };
    let states = GpuStates::open(path)?;
    let is_ours = |rank: &u32| options.child.is_none_or(|child| child == *rank);
    let slot = |rank: u32| is_ours(&rank).then(|| states.of(options.device_of(rank))).flatten();
    Ok((0..options.ranks).map(slot).collect())
}

/// Called by the runtime at each launch.
pub(crate) fn executor(shared: &Shared) -> Executor {
    let state = Arc::clone(&shared.0);
    Box::new(move |launch: Launch| {
        let state = Arc::clone(&state);
        let name = state.name(&launch);
        Box::new(move || {
            if let Err(error) = state.run(&launch, name) {
                // A kernel that does not do its work would leave the other ranks waiting.
                link::give_up(&format!("{}: {error:#}", launch.kernel));
            }
        })
    })
}

impl Shared {
    /// Notes a communicator and returns its hash.
    pub(crate) fn register(&self, comm: usize) -> String {
        let host = &self.0.host_comm;
        let hash = format!("{:016x}", host.hash.map_or(0, |hash| hash.get(comm)));
        let known = KnownComm { hash: hash.clone(), launches: 0 };
        lock(&self.0.comms).insert(host.dev_comm.get_usize(comm), known);
        hash
    }

    /// What the GPU of a rank does is counted from now on, for GPM's metrics.
    pub(crate) fn counts(&self, rank: u32) {
        if let Some(gpu) = self.0.gpus.get(rank as usize).copied().flatten() {
            gpu.counts();
        }
    }

    /// A kernel that is not NCCL's runs on the GPU of a rank until what this gives is dropped. `time`: how long
    /// it takes; the GPU has ended it then, also if this process does not run.
    pub(crate) fn compute(&self, rank: u32, time: Duration) -> Option<Computing> {
        let gpu = self.0.gpus.get(rank as usize).copied().flatten()?;
        gpu.computes(true);
        let ends_ns = call_log::now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        Some(Computing {
            _running: gpu.run(KernelOf::Program, LaunchShape { blocks: 132, threads: 256 }, Some(ends_ns)),
            gpu,
        })
    }
}

/// A kernel that is not NCCL's.
#[derive(Debug)]
pub(crate) struct Computing {
    gpu: GpuState,
    _running: Running,
}

impl Drop for Computing {
    fn drop(&mut self) {
        self.gpu.computes(false);
    }
}

impl State {
    /// The address of the device's communicator, in a launch of one of NCCL's collective kernels.
    fn comm_of(&self, launch: &Launch) -> Option<usize> {
        let (layout, _) = self.emulation.as_ref()?;
        match (&launch.arguments, &layout.work) {
            (Arguments::Buffer(bytes), Work::Batches(form)) if bytes.len() >= form.args.size => {
                Some(form.args.comm.get_usize(bytes.as_ptr() as usize))
            }
            (Arguments::Words(words), _) => words.first().map(|word| *word as usize),
            _ => None,
        }
    }

    /// Numbers the launch, in the order in which the host makes them.
    fn name(&self, launch: &Launch) -> LaunchName {
        let mut comms = lock(&self.comms);
        let known = self.comm_of(launch).map(|comm| comms.entry(comm).or_default());
        let Some(known) = known else { return LaunchName { comm_hash: String::new(), rank: -1, launch: 0 } };
        known.launches += 1;
        LaunchName { comm_hash: known.hash.clone(), rank: -1, launch: known.launches - 1 }
    }

    fn run(&self, launch: &Launch, name: LaunchName) -> Result<()> {
        if launch.kernel.contains("ncclProgressCounterCaptureGpuTime") {
            return capture_time(launch);
        }
        let Some((layout, functions)) = &self.emulation else { return Ok(()) };
        if !["ncclDevKernel_", "ncclKernel_"].iter().any(|name| launch.kernel.contains(name)) {
            bail!("this kernel is not emulated");
        }
        let comm = self.comm_of(launch).context("a launch without arguments")?;
        let rank = layout.comm.rank.get_i32(comm);
        let owner = self.child.map_or(i64::from(rank), i64::from);
        let gpu = usize::try_from(owner).ok().and_then(|owner| self.gpus.get(owner).copied().flatten());
        let of_rank = |files: &[(u32, PathBuf)]| -> Vec<PathBuf> {
            files.iter().filter(|(of, _)| i64::from(*of) == owner).map(|(_, file)| file.clone()).collect()
        };
        let control = Control::new(layout.comm.abort_flag.get_usize(comm), of_rank(&self.stalls), gpu);
        if !control.wait_while(&of_rank(&self.holds)) {
            return Ok(());
        }
        if let Some(gpu) = gpu {
            let computes = of_rank(&self.computes);
            let before = gpu.run(KernelOf::Program, LaunchShape { blocks: 132, threads: 256 }, None);
            gpu.computes(computes.iter().any(|file| crate::environment::exists(file)));
            let goes_on = control.wait_while(&computes);
            gpu.computes(false);
            drop(before);
            let _before = gpu.run(KernelOf::Program, LaunchShape { blocks: 1, threads: 32 }, None);
            if !goes_on || !control.wait_while(&of_rank(&self.spins)) {
                return Ok(());
            }
        }
        let _running = gpu.map(|gpu| gpu.run(KernelOf::Nccl, launch.shape, None));
        let kernel = Kernel {
            layout,
            functions,
            control,
            comm,
            rank,
            name: LaunchName { rank, ..name },
            logs: self.log.is_on(),
            lines: RefCell::default(),
        };
        let plans = match (&layout.work, &launch.arguments) {
            (Work::Batches(form), Arguments::Buffer(bytes)) => batches::read(form, functions, bytes)?,
            (Work::Lists(form), Arguments::Words(words)) => {
                let [_, channels, head] = words[..] else { bail!("expected three arguments") };
                lists::read(form, &kernel, channels, head as usize)?
            }
            _ => bail!("launched in a way that does not fit this version's work structs"),
        };
        if kernel.run(&plans) {
            self.log.write(rank, &kernel.lines.into_inner());
        }
        Ok(())
    }
}

/// NCCL 2.32 calibrates its progress counters with a kernel that stores the device's clock.
fn capture_time(launch: &Launch) -> Result<()> {
    let place = match &launch.arguments {
        Arguments::Words(words) => words.first().copied(),
        Arguments::Buffer(_) => None,
    };
    let place = place.context("expected one argument")? as usize;
    memory::store(place, profiler::now());
    Ok(())
}
