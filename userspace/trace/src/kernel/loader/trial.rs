//! Attaches a uprobe to a function of this program, to tell whether the kernel allows tracing and how long a
//! hit takes.

use flow::session::LinkKind;
use std::{
    hint::black_box,
    io,
    num::NonZeroU32,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use ncclflow_common::{FetchPlan, RecordHeader, STACK_POINTER_SLOT, Step, StepOp};

use super::{
    buffer::{Buffer, best_buffer},
    link::{Site, best_links},
    object::{Gate, LoadedObject},
    programs::Program,
};
use inspect::process::maps::{self, Mapping};

/// Hits of one round. Their records fit into the buffer.
const HITS: u32 = 2000;
/// Rounds. The fastest one counts, because other programs share the machine.
const ROUNDS: u32 = 3;

/// Measurements of a trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The kind of link that attached it.
    pub links: LinkKind,
    /// Time to load the object and its programs.
    pub load: Duration,
    /// Programs that the kernel refused, with its reason; never [`Program::Fetch`], without which there is no
    /// trial.
    pub refused: Vec<(Program, String)>,
    pub attach: Duration,
    /// Time of a hit that writes a record.
    pub hit: Duration,
    /// Hits that the eBPF side counted.
    pub counted: u64,
    /// Hits that the trial made.
    pub made: u64,
    pub detach: Duration,
}

/// The step at which a trial failed.
#[derive(Debug)]
pub enum TrialError {
    /// The kernel refused the eBPF object or [`Program::Fetch`].
    Load(anyhow::Error),
    /// The kernel refused the uprobe.
    Attach(io::Error),
    Other(anyhow::Error),
}

/// The probed function. Like NCCL's functions it begins with an instruction that the kernel emulates
/// (`push` on x86-64: since 4.16). Others are single-stepped, which costs a second trap: on a
/// virtual machine some 20 us.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn probed(value: u32) -> u32 {
    std::arch::naked_asm!("push rbp", "lea eax, [rdi + 2 * rdi]", "pop rbp", "ret")
}

/// The probed function on aarch64, see above. (Kernels from 6.14 on emulate `stp`.)
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn probed(value: u32) -> u32 {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "add w0, w0, w0, lsl #1",
        "ldp x29, x30, [sp], #16",
        "ret"
    )
}

/// Attaches to this process, calls the function, and detaches.
pub fn try_uprobe() -> Result<Trial, TrialError> {
    let begun = Instant::now();
    let links = best_links();
    let buffer = Buffer { kind: best_buffer(), bytes: 4 << 20, rings: 1 };
    let mut object = LoadedObject::load(buffer, links, false, false).map_err(TrialError::Load)?;
    object.set_plan(0, &plan()).map_err(TrialError::Other)?;
    object.load_programs(&[Program::Fetch]).map_err(TrialError::Load)?;
    // Some kernels' verifiers refuse some programs.
    let refused = Program::ALL.into_iter().filter_map(|program| {
        let error = object.load_programs(&[program]).err()?;
        Some((program, format!("{error:#}")))
    });
    let refused = refused.collect();
    let load = begun.elapsed();

    let offset = file_offset(probed as *const () as usize).map_err(TrialError::Other)?;
    let site =
        Site { path: Path::new("/proc/self/exe"), held: None, pid: NonZeroU32::new(std::process::id()) };
    let begun = Instant::now();
    let link = object.link(Program::Fetch, site, &[(offset, 0)]);
    let link = link.map_err(|(_, refused)| TrialError::Attach(refused.error))?;
    let attach = begun.elapsed();
    object.set_gate(Gate::Open).map_err(TrialError::Other)?;
    let hit = (0..ROUNDS).map(|_| round()).min().unwrap_or_default();
    let counted = object.counters(0).context("reading the counters").map_err(TrialError::Other)?;
    let counted = counted.iter().map(|cpu| cpu.hits).sum();
    let begun = Instant::now();
    drop(link);
    let made = u64::from(HITS) * u64::from(ROUNDS);
    Ok(Trial { links, load, refused, attach, hit, counted, made, detach: begun.elapsed() })
}

/// Returns a plan that reads a register and a few words of memory. Probes on NCCL read more, but most of a
/// hit's time is the trap.
fn plan() -> FetchPlan {
    const WORDS: u16 = 64;
    let header = u16::try_from(size_of::<RecordHeader>()).unwrap_or(u16::MAX);
    let mut plan = FetchPlan { record_len: header + 8 + WORDS, n_steps: 2, ..FetchPlan::default() };
    let (emit, copy) = (StepOp::Emit as u8, StepOp::Copy as u8);
    plan.steps[0] = Step { op: emit, src: 0, at: header, ..Step::default() };
    plan.steps[1] = Step { op: copy, src: STACK_POINTER_SLOT, at: header + 8, len: WORDS, ..Step::default() };
    plan
}

/// Measures the mean time of a call in one round.
fn round() -> Duration {
    let begun = Instant::now();
    for value in 0..HITS {
        black_box(probed(value));
    }
    begun.elapsed() / HITS
}

/// Returns the offset of this address in the program's file.
fn file_offset(address: usize) -> Result<u64> {
    let address = address as u64;
    let mappings = maps::read_own().context("reading our own mappings")?;
    let of_mapping = |mapping: &Mapping| {
        let is_in = (mapping.start.0..mapping.end.0).contains(&address);
        is_in.then(|| address - mapping.start.0 + mapping.file_offset.0)
    };
    mappings.iter().find_map(of_mapping).context("the probed function is in no mapping of this process")
}
