//! Symbols of one library: where its functions are, how their parameters arrive, how its structs lie.
//!
//! A caller states what it wants in a [`Request`]; ncclflow's own is [`nccl_request`]. [`resolve`] looks it
//! up, and the [`Resolution`] states what was found, from which source ([`SymbolSource`]), and what is lost
//! for each thing missing. Nothing here knows of processes, probes or the kernel.

mod catalog;
mod code;
mod convention;
mod copies;
mod debug_file;
mod entry_code;
mod function;
mod identity;
mod machine_code;
mod mangled;
mod params;
mod probe_point;
mod problems;
mod prototypes;
mod registers;
mod report;
mod request;
mod resolution;
mod resolve;
pub mod shipped;
mod slot_reset;
mod stripped;
mod symmetric_kernels;

pub use catalog::{
    driver_request, lost_without_type, nccl_request, nccl_request_of_memory, nccl_request_with_api,
};
pub use code::{Code, PLACE_BYTES, Resolved};
pub use convention::{argument_registers, integer_argument};
pub use debug_file::DebugFiles;
pub use function::{FoundBy, Function, Param, ParamSource};
pub use machine_code::{CallSite, MachineCode};
pub use probe_point::{refuses_probe, x86_register};
pub use registers::register_name;
pub use report::render;
pub use request::{Called, Declared, FunctionSpec, Request};
pub use resolution::{LayoutSource, Problem, ProblemKind, Resolution, SymbolSource};
pub use resolve::{resolve, resolve_exports, resolve_with};
pub use slot_reset::SlotReset;
pub use symmetric_kernels::SymmetricKernel;

pub use crate::elf::{Error, ErrorKind};
