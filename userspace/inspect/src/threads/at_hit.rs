//! Native stacks at probes' hits, unwound from a copy of the stack and the registers of the same moment.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use gimli::{Register, X86_64};
use nccl_library::symbols::DebugFiles;

use super::{
    modules::Modules,
    names::NamesAt,
    unwind::{self, Ended, Stack},
};
use crate::{
    memory::Memory,
    process::{Process, maps::Mapping, printable},
};

/// Time for which the mappings of a process are believed, while the program counter is in their code.
const FRESH: Duration = Duration::from_secs(2);

/// The stack of a thread at a hit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HitStack {
    /// Registers in the order of [`ncclflow_common::PieceHead::registers`].
    pub registers: [u64; ncclflow_common::PIECE_REGISTERS],
    /// Bytes from the stack pointer on.
    pub copy: Vec<u8>,
}

/// Place of a frame's code.
#[derive(Clone, Debug)]
pub struct Place {
    /// File of the code; `None`: it is of none.
    mapping: Option<Mapping>,
    /// Address in the file's own terms, or in memory where there is no file.
    address: u64,
}

impl Place {
    pub fn inode(&self) -> Option<u64> {
        self.mapping.as_ref().map(|mapping| mapping.inode)
    }
}

/// Result of unwinding.
#[derive(Clone, Debug, Default)]
pub struct Unwound {
    /// Places of the frames, innermost first.
    pub places: Vec<Place>,
    /// Words above the stack pointer at which return addresses stand, in the order of the frames.
    pub slots: Vec<u16>,
    /// The outermost frame is among them.
    pub is_whole: bool,
    /// More frames are behind the end of the copy.
    pub is_cut: bool,
}

/// Unwinds the stacks of one process.
#[derive(Debug)]
pub struct Unwinder {
    modules: Modules,
    read: Instant,
}

impl Unwinder {
    pub fn new(process: &Process) -> std::io::Result<Self> {
        Ok(Self { modules: Modules::read(process)?, read: Instant::now() })
    }

    /// Reads the mappings again if they are old, or `pc` is in none of them: libraries come and go.
    pub fn refreshed(self, process: &Process, pc: u64) -> std::io::Result<Self> {
        if self.read.elapsed() < FRESH && self.modules.is_code(pc) {
            return Ok(self);
        }
        Ok(Self { modules: self.modules.read_again(process)?, read: Instant::now() })
    }

    pub fn unwind(&mut self, process: &Process, hit: &HitStack) -> Unwound {
        let [ip, sp, bp, bx, r12, r13, r14, r15] = hit.registers;
        let mut stack = Stack::at(ip, sp);
        let known = [(X86_64::RBP, bp), (X86_64::RBX, bx)];
        let numbered = (12..).map(Register).zip([r12, r13, r14, r15]);
        for (register, value) in known.into_iter().chain(numbered) {
            if let Some(slot) = stack.registers.get_mut(usize::from(register.0)) {
                *slot = Some(value);
            }
        }
        stack.copy.clone_from(&hit.copy);
        stack.is_past = true;
        let memory = Memory::new(process);
        let (frames, ended) = unwind::unwind_surely(memory, &mut self.modules, &stack);
        let slots = frames.iter().filter_map(|frame| {
            let offset = frame.found_at?.checked_sub(sp)?;
            u16::try_from(offset / 8).ok()
        });
        let slots = slots.collect();
        let places = frames.iter().map(|frame| match self.modules.locate(memory, frame.lookup()) {
            Some((mapping, address)) => Place { mapping: Some(mapping.clone()), address },
            None => Place { mapping: None, address: frame.pc },
        });
        Unwound {
            places: places.collect(),
            slots,
            is_whole: ended == Ended::Outermost,
            is_cut: stack.is_short.get(),
        }
    }

    /// Returns the inode of the file whose variable is at an address.
    pub fn file_of_variable(&self, address: u64) -> Option<u64> {
        self.modules.inode_at_or_below(address)
    }
}

/// A native frame with names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeFrame {
    pub function: Option<String>,
    /// Name of the file; empty: the code is of no file.
    pub module: String,
    pub inode: Option<u64>,
    /// Address in the file's own terms, or in memory where there is no file.
    pub address: u64,
}

/// Addresses to be named in one file.
struct Asked<'a> {
    mapping: &'a Mapping,
    addresses: Vec<u64>,
    is_nccl: bool,
}

/// Names of native frames.
#[derive(Debug, Default)]
pub struct NativeNames(NamesAt);

impl NativeNames {
    pub fn new(debug_files: DebugFiles) -> Self {
        Self(NamesAt::new(debug_files))
    }

    /// Names the frames of stacks of a process, with one look at each file. The innermost frame of a stack is
    /// in NCCL's library.
    pub fn name(&mut self, process: &Process, stacks: &[&[Place]]) -> Vec<Vec<NativeFrame>> {
        let mut files: BTreeMap<((u32, u32), u64), Asked<'_>> = BTreeMap::new();
        for stack in stacks {
            for (depth, place) in stack.iter().enumerate() {
                let Some(mapping) = &place.mapping else { continue };
                let key = (mapping.device, mapping.inode);
                let asked = files.entry(key).or_insert_with(|| Asked {
                    mapping,
                    addresses: Vec::new(),
                    is_nccl: false,
                });
                asked.addresses.push(place.address);
                asked.is_nccl |= depth == 0;
            }
        }
        for Asked { mapping, addresses, is_nccl } in files.into_values() {
            self.0.learn(process, mapping, &addresses, is_nccl);
        }
        let named = |place: &Place| {
            let Place { mapping, address } = place;
            let (function, module) = match mapping {
                Some(mapping) => (
                    self.0.at(mapping, *address).map(printable),
                    mapping.path.file_name().map(|name| printable(&name.to_string_lossy())),
                ),
                None => (None, None),
            };
            let module = module.unwrap_or_default();
            NativeFrame { function, module, inode: place.inode(), address: *address }
        };
        stacks.iter().map(|stack| stack.iter().map(named).collect()).collect()
    }
}
