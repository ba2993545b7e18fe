//! The places of the probes on steps.
//!
//! A hook is called for every state of every message; at the hook itself each of them is a trap. A probe at
//! one of the *calls* of a hook, in `sendProxyProgress` or `recvProxyProgress`, is hit only for the states
//! that are told there. And both a call and a jump are cheaper to put a breakpoint on than other instructions
//! are: see `symbols::probe_point`. At a call the parameters are in the same registers as at the hook's
//! entry.

use flow::{session::StepDetail, wire::StepHook};
use iced_x86::Register;

use super::{
    send_sizes::add_send_sizes,
    set::ProbeSet,
    step_probes::{era, proxy_step, state_parameter},
};
use nccl_library::{
    elf::{FileOffset, Machine},
    nccl::{NameTables, StepState},
    parameter::ParamLocation,
    symbols::{CallSite, Code, Function, MachineCode, Resolution, x86_register},
};

/// Functions that call the hooks (src/transport/net.cc).
pub(super) const CALLERS: [&str; 2] = ["sendProxyProgress", "recvProxyProgress"];

/// States of `ncclProxyProfileState` (up to 2.22): sent or arrived, and done. [`RECORD_ALL`] also has begun,
/// and handed to the GPU. State 0 is told of every step of an op when it begins.
const RECORD_WAITS: [i64; 2] = [RECORD_SENT, 4];
pub(super) const RECORD_SENT: i64 = 2;
const RECORD_ALL: [i64; 4] = [1, 2, 3, 4];

/// Adds the probes of the steps. Without the library's code they are at the hooks' entries, and those that
/// need another place are left out.
pub fn add_steps(set: &mut ProbeSet, resolution: &Resolution, code: Option<&Code>, detail: StepDetail) {
    if let Some(code) = code {
        add_send_sizes(set, resolution, code);
    }
    let code = code.filter(|_| resolution.machine == Machine::X86_64);
    for &(name, hook) in era(resolution) {
        let lost = "measured times and sizes of messages";
        for function in set.functions(resolution, name, lost) {
            let places = code
                .and_then(|code| at_calls(resolution, code, function, hook, detail))
                .unwrap_or_else(|| vec![Instruction::in_hook(function)]);
            for place in places {
                let compiled = proxy_step(resolution, function, hook, place.in_send);
                let compiled = compiled.map_err(|error| error.to_string());
                set.add_probe(name, (place.symbol, place.file_offset), compiled, lost);
            }
        }
    }
}

/// An instruction to probe.
pub(super) struct Instruction {
    pub(super) symbol: String,
    pub(super) file_offset: FileOffset,
    /// Set if only sends come by.
    in_send: bool,
}

impl Instruction {
    /// Returns the entry of the hook, which every call hits.
    fn in_hook(function: &Function) -> Self {
        Self {
            symbol: symbol_at(function, function.uprobe_offset),
            file_offset: function.uprobe_place(),
            in_send: false,
        }
    }

    pub(super) fn inside(function: &Function, address: u64) -> Option<Self> {
        let distance = address.checked_sub(function.vaddr.0).filter(|distance| *distance < function.size)?;
        let file_offset = FileOffset(function.file_offset.0.checked_add(distance)?);
        let in_send = function.name == CALLERS[0];
        Some(Self { symbol: symbol_at(function, distance), file_offset, in_send })
    }
}

fn symbol_at(function: &Function, distance: u64) -> String {
    if distance == 0 { function.symbol.clone() } else { format!("{}+{distance:#x}", function.symbol) }
}

/// Returns the calls at which a wanted state is told, if every wanted state is known to be told at one.
fn at_calls(
    resolution: &Resolution,
    code: &Code,
    function: &Function,
    hook: StepHook,
    detail: StepDetail,
) -> Option<Vec<Instruction>> {
    let state = function.param(state_parameter(hook)?)?;
    let (state, wanted) = (register(&state.location)?, wanted(resolution, hook, detail)?);
    let mut places = Vec::new();
    for (name, wanted) in CALLERS.iter().zip(wanted) {
        let mut told: Vec<i64> = Vec::new();
        for caller in resolution.functions(name) {
            let code = MachineCode::of_kept(code, caller)?;
            for CallSite { address, constants } in code.calls_of(function.vaddr.0, state) {
                // A state that is not known may be a wanted one.
                if constants.is_empty() || constants.iter().any(|state| wanted.contains(state)) {
                    places.push(Instruction::inside(caller, address)?);
                }
                told.extend(constants);
            }
        }
        if !wanted.iter().all(|state| told.contains(state)) {
            return None;
        }
    }
    Some(places)
}

/// Returns the states that are wanted of sends and of receives, or `None` for all that are told.
fn wanted(resolution: &Resolution, hook: StepHook, detail: StepDetail) -> Option<[Vec<i64>; 2]> {
    match (hook, detail) {
        (StepHook::Record, StepDetail::Waits) => Some([RECORD_WAITS.to_vec(), RECORD_WAITS.to_vec()]),
        (StepHook::Record, StepDetail::Transitions) => {
            // A send has no third state.
            Some([RECORD_ALL.into_iter().filter(|state| *state != 3).collect(), RECORD_ALL.to_vec()])
        }
        (StepHook::State, StepDetail::Waits) => {
            let names = NameTables::from_layouts(&resolution.layouts);
            // 2.27 and later tell when the buffer is ready.
            let ready = names.step_state_number(StepState::SendPeerWait);
            let sends = ready.into_iter().chain(names.step_state_number(StepState::SendWait)).collect();
            Some([sends, vec![names.step_state_number(StepState::RecvFlushWait)?]])
        }
        (StepHook::State, StepDetail::Transitions) | (StepHook::Stop, _) => None,
    }
}

pub(super) fn register(location: &ParamLocation) -> Option<Register> {
    match location {
        ParamLocation::Register(number) => x86_register(*number),
        ParamLocation::EntryStack { .. } | ParamLocation::Unknown(_) => None,
    }
}
