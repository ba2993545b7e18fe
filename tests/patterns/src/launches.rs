//! Launches without proxy ops, which need GPUs that reach each other's memory: their plans are made up, and
//! the real functions are called that NCCL calls for each plan.
//!
//! `ncclLaunchKernelAfter_NoCuda` does nothing for a plan whose ops a callback posts. `ncclLaunchRma` looks
//! at the function of the arguments, finds one that is not one-sided, and says so, before it touches a call.

use std::ffi::c_void;

use anyhow::{Context as _, Result, bail};
use nccl_library::elf::{Budget, Image, SymbolTable};
use serde_json::{Value, json};

use crate::communicator::Communicator;
use crate::library::Library;
use crate::memory::{Memory, size_of};

const PLAN: &str = "ncclKernelPlan";
/// Times that each launch is made.
const TIMES: u64 = 20;
/// `ncclFloat32`.
const FLOAT32: u64 = 7;

type OfPlan = unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32;

/// Functions of the library, by their symbols, in this process.
struct Functions {
    launched: OfPlan,
    one_sided: Option<OfPlan>,
    /// `reclaimPlan`, and the host function of a kernel, by its name.
    reclaim: usize,
    kernels: Vec<(String, usize)>,
}

impl Functions {
    fn find(library: &Library, image: &Image) -> Result<Self> {
        let table =
            SymbolTable::read(image, &mut Budget::default())?.context("the library has no symbols")?;
        let mut all: Vec<(String, usize)> = Vec::new();
        for symbol in table.functions() {
            let at = library.runtime(usize::try_from(symbol.address.0)?);
            all.push((symbol.name.to_owned(), at));
        }
        let of = |part: &str| {
            let mut found = all.iter().filter(|(name, _)| name.contains(part) && !name.contains(".cold"));
            found.next().filter(|_| found.next().is_none()).map(|(_, at)| *at)
        };
        let function = |at: usize| {
            // SAFETY: the address of a function of this signature, which all versions that have it share.
            unsafe { std::mem::transmute::<*const c_void, OfPlan>(at as *const c_void) }
        };
        Ok(Self {
            launched: function(of("28ncclLaunchKernelAfter_NoCudaP").context("no launches")?),
            one_sided: of("13ncclLaunchRmaP").map(function),
            reclaim: of("11reclaimPlanP").context("no reclaimPlan")?,
            kernels: all.into_iter().filter(|(name, _)| name.contains("DevKernel_")).collect(),
        })
    }

    fn kernel(&self, name: &str) -> Result<usize> {
        let is_it = |symbol: &str| {
            // `_Z`, the length, the name, then the types of its parameters.
            ["ncclSymDevKernel_", "ncclSymkDevKernel_"].iter().any(|prefix| {
                let whole = format!("{prefix}{name}");
                symbol.starts_with(&format!("_Z{}{whole}", whole.len()))
            })
        };
        let found = self.kernels.iter().find(|(symbol, _)| is_it(symbol));
        found.map(|(_, at)| *at).with_context(|| format!("no kernel {name}"))
    }
}

/// Makes every kind of launch that the library has. Gives what was launched, in order.
pub(crate) fn make(library: &Library, image: &Image, communicator: &Communicator) -> Result<Vec<Value>> {
    let functions = Functions::find(library, image)?;
    let mut told = Vec::new();
    if functions.one_sided.is_some() {
        // `ncclLaunchRma` looks at the first stream, and does nothing with it here.
        communicator.set(library, "planner.streams", Memory::zeroed(64).address as u64)?;
    }
    for number in 0..TIMES {
        symmetric(library, &functions, communicator, 1000 + number, &mut told)?;
        if library.is_from(28) {
            by_copy_engine(library, &functions, communicator, 300 + number, &mut told)?;
        }
        if let Some(one_sided) = functions.one_sided {
            one_sided_calls(library, &functions, one_sided, communicator, 4096 + number, &mut told)?;
        }
    }
    Ok(told)
}

fn plan(library: &Library, functions: &Functions, communicator: &Communicator, flag: &str) -> Result<Memory> {
    let layouts = &library.layouts;
    let plan = Memory::of(layouts, PLAN, 1)?;
    let fields = [
        ("comm", communicator.address() as u64),
        ("reclaimer.fn", functions.reclaim as u64),
        ("isHostCbEnq", 1),
        ("channelMask", 0b1),
        (flag, 1),
    ];
    for (field, value) in fields {
        plan.set(layouts, PLAN, field, value)?;
    }
    Ok(plan)
}

fn launch(of: OfPlan, communicator: &Communicator, plan: Memory) -> i32 {
    // SAFETY: both are memory of the sizes that the library's structs have, filled as it fills them.
    unsafe { of(communicator.address() as *mut c_void, plan.address as *mut c_void) }
}

fn symmetric(
    library: &Library,
    functions: &Functions,
    communicator: &Communicator,
    count: u64,
    told: &mut Vec<Value>,
) -> Result<()> {
    let layouts = &library.layouts;
    let plan = plan(library, functions, communicator, "isSymColl")?;
    plan.set(layouts, PLAN, "kernelFn", functions.kernel("AllReduce_AGxLL_R_sum_f16")? as u64)?;
    let (args, size) = if layouts.struct_size("ncclSymDevArgs").is_some() {
        let args = Memory::of(layouts, "ncclSymDevArgs", 1)?;
        args.set(layouts, "ncclSymDevArgs", "nElts", count)?;
        (args, size_of(layouts, "ncclSymDevArgs")?)
    } else {
        let size = |name: &str| size_of(layouts, name);
        let ranges = 4 * size("ncclSymkChannelWorkRange")?;
        let works = size("ncclSymkDevWorkArgs")?.next_multiple_of(16) + ranges.next_multiple_of(16);
        let whole = works + size("ncclSymkDevWork")?;
        let args = Memory::zeroed(whole);
        args.set(layouts, "ncclSymkDevWorkArgs", "nMaxChannels", 4)?;
        args.at(works)?.set(layouts, "ncclSymkDevWork", "nElts", count)?;
        (args, whole)
    };
    plan.set(layouts, PLAN, "kernelArgs", args.address as u64)?;
    plan.set(layouts, PLAN, "kernelArgsSize", size as u64)?;
    if launch(functions.launched, communicator, plan) != 0 {
        bail!("ncclLaunchKernelAfter_NoCuda failed");
    }
    told.push(json!({ "launch": "symmetric", "coll": "AllReduce", "bytes": 2 * count, "peers": [] }));
    Ok(())
}

fn by_copy_engine(
    library: &Library,
    functions: &Functions,
    communicator: &Communicator,
    count: u64,
    told: &mut Vec<Value>,
) -> Result<()> {
    const ARGS: &str = "ncclCeCollArgs";
    let layouts = &library.layouts;
    let plan = plan(library, functions, communicator, "isCeColl")?;
    let args = Memory::of(layouts, ARGS, 1)?;
    let gather = library.value("ncclFunc_t", "ncclFuncAllGather").context("no AllGather")?;
    for (field, value) in [("func", gather), ("nElts", count), ("eltSize", 1)] {
        args.set(layouts, ARGS, field, value)?;
    }
    plan.set(layouts, PLAN, "kernelArgs", args.address as u64)?;
    if launch(functions.launched, communicator, plan) != 0 {
        bail!("ncclLaunchKernelAfter_NoCuda failed");
    }
    told.push(json!({ "launch": "copy_engine", "coll": "AllGather", "bytes": count, "peers": [] }));
    Ok(())
}

fn one_sided_calls(
    library: &Library,
    functions: &Functions,
    one_sided: OfPlan,
    communicator: &Communicator,
    bytes: u64,
    told: &mut Vec<Value>,
) -> Result<()> {
    const TASK: &str = "ncclTaskRma";
    let layouts = &library.layouts;
    let plan = plan(library, functions, communicator, "isRma")?;
    // A function that is none of the one-sided: `ncclFuncBroadcast`.
    let args = Memory::of(layouts, "ncclRmaArgs", 1)?;
    plan.set(layouts, PLAN, "kernelArgs", args.address as u64)?;
    let value = |name: &str| library.value("ncclFunc_t", name).with_context(|| format!("no {name}"));
    let [put, wait] = [Memory::of(layouts, TASK, 1)?, Memory::of(layouts, TASK, 1)?];
    let peers = Memory::zeroed(64);
    for (at, peer) in [1u64, 3].into_iter().enumerate() {
        peers.write(4 * at, peer, 4)?;
    }
    for (task, field, value) in [
        (put, "func", value("ncclFuncPutSignal")?),
        (put, "peer", 1),
        (put, "bytes", bytes),
        (put, "count", bytes / 4),
        (put, "datatype", FLOAT32),
        (wait, "func", value("ncclFuncWaitSignal")?),
        (wait, "peers", peers.address as u64),
        (wait, "npeers", 2),
    ] {
        task.set(layouts, TASK, field, value)?;
    }
    plan.set(layouts, PLAN, "rmaTaskQueueProxy.head", put.address as u64)?;
    plan.set(layouts, PLAN, "rmaTaskQueueCe.head", wait.address as u64)?;
    if launch(one_sided, communicator, plan) == 0 {
        bail!("ncclLaunchRma launched what was made up");
    }
    // NCCL has taken them out by now.
    plan.set(layouts, PLAN, "rmaTaskQueueProxy.head", 0)?;
    plan.set(layouts, PLAN, "rmaTaskQueueCe.head", 0)?;
    if launch(functions.launched, communicator, plan) != 0 {
        bail!("ncclLaunchKernelAfter_NoCuda failed");
    }
    told.push(
        json!({ "launch": "one_sided_proxy", "coll": "PutSignal", "bytes": bytes, "peers": [["SEND", 1]] }),
    );
    told.push(json!({
        "launch": "one_sided_copy", "coll": "WaitSignal", "bytes": 0, "peers": [["RECV", 1], ["RECV", 3]]
    }));
    Ok(())
}
