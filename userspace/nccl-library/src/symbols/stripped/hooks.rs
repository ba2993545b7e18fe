//! The search for the hooks of NCCL's profiler. They do not refer to their own names, and are recognised by
//! who calls them, with which constants, and by what they do.
//!
//! `sendProxyProgress` and `recvProxyProgress` (src/transport/net.cc, 2.16 to 2.30) call them for every
//! message. The hook that is told of states is the only function that both call with the states of a send and
//! of a receive, and with no other constants. The hook that is told of the end is the only one that both call
//! with a step and that calls `stopEvent` of a plugin, the fourth word of every version of `ncclProfiler_t`
//! (src/include/plugin/nccl_profiler.h). If there is not exactly one function of a kind, that hook is not
//! found.

use std::collections::BTreeSet;

use iced_x86::Register;

use super::{FoundFunction, Search, frames::Frames};
use crate::elf::{Budget, Image, Machine};
use crate::{
    nccl::NcclVersion,
    symbols::{FoundBy, MachineCode},
};

/// Longest hook; NCCL's have 170 bytes at most.
const MAX_HOOK: u64 = 512;

const SENDER: &str = "sendProxyProgress";
const RECEIVER: &str = "recvProxyProgress";

/// Offsets in `ncclProfiler_t`.
const STOP_EVENT: u64 = 24;
const RECORD_EVENT_STATE: u64 = 32;

/// The hooks of an era (src/include/profiler.h).
struct Era {
    /// First minor version of NCCL 2.
    since: u32,
    /// Name of the hook that is told of states, and the register with the state.
    state: (&'static str, Register),
    /// Name of the hook that is told of the end; in the first era the end is told as a state.
    stop: Option<&'static str>,
    /// States that are told of every send (then of every receive), and all that can be told.
    sends: (&'static [i64], &'static [i64]),
    receives: (&'static [i64], &'static [i64]),
}

const ERAS: [Era; 3] = [
    Era {
        since: 24,
        state: ("ncclProfilerRecordProxyStepEventState", Register::RCX),
        stop: Some("ncclProfilerStopProxyStepEvent"),
        sends: (&[8, 9], &[8, 9, 20]),
        receives: (&[10, 11, 12], &[10, 11, 12]),
    },
    Era {
        since: 23,
        state: ("ncclProfilerRecordProxyStepEventStates", Register::R8),
        stop: Some("ncclProfilerStopProxyStepEvents"),
        sends: (&[8, 9], &[8, 9]),
        receives: (&[10, 11, 12], &[10, 11, 12]),
    },
    Era {
        since: 16,
        state: ("ncclProfilingRecord", Register::RCX),
        stop: None,
        sends: (&[0, 1, 2, 4], &[0, 1, 2, 4]),
        receives: (&[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]),
    },
];

/// Adds the hooks to the answer, or why they were not found. Their callers must have been looked for.
pub(super) fn add(
    answer: &mut Search,
    image: &Image,
    version: Option<NcclVersion>,
    frames: &Frames,
    budget: &mut Budget,
) {
    let era = |version: NcclVersion| ERAS.iter().find(|era| version.major == 2 && version.minor >= era.since);
    let Some(era) = version.and_then(era) else { return };
    let hooks = find(answer, image, era, frames, budget);
    answer.insert(era.state.0, hooks.map(|(state, _)| vec![state]));
    if let Some(name) = era.stop {
        let stop =
            hooks.and_then(|(_, stop)| stop.ok_or("no function that is called there does what it does"));
        answer.insert(name, stop.map(|function| vec![function]));
    }
}

/// Finds the hook that is told of states, and the one that is told of the end.
fn find(
    answer: &Search,
    image: &Image,
    era: &Era,
    frames: &Frames,
    budget: &mut Budget,
) -> Result<(FoundFunction, Option<FoundFunction>), &'static str> {
    if image.machine() != Machine::X86_64 {
        return Err("it holds no name, and is looked for by its calls in x86-64 code only");
    }
    let mut read =
        |function: &FoundFunction| MachineCode::of_function(image, function.address, function.size, budget);
    let mut callers = |name: &str| -> Vec<MachineCode> {
        let found = answer.get(name).and_then(|found| found.as_ref().ok());
        found.into_iter().flatten().filter_map(&mut read).collect()
    };
    let (senders, receivers) = (callers(SENDER), callers(RECEIVER));
    let mut found = Vec::new();
    for (sender, receiver) in senders.iter().flat_map(|sender| receivers.iter().map(move |one| (sender, one)))
    {
        let called: Vec<u64> = sender.callees().intersection(&receiver.callees()).copied().collect();
        let told = called.iter().filter(|callee| era.is_told(sender, receiver, **callee)).copied();
        found.extend(told.map(|callee| (callee, called.clone())));
    }
    let [(state, called)] = found.as_slice() else {
        return Err(match found.len() {
            0 if senders.is_empty() || receivers.is_empty() => "its callers were not found",
            0 => "no function is called like it",
            _ => "several functions are called like it",
        });
    };
    let function_at = |address: u64| {
        let frame = frames.at(address).filter(|frame| frame.start == address)?;
        Some(frame.function(FoundBy::Calls))
    };
    let state_function = function_at(*state).ok_or("what is called like it is no function")?;
    if era.stop.is_none() {
        return Ok((state_function, None));
    }
    let mut stops = Vec::new();
    for callee in called {
        let Some(function) = function_at(*callee).filter(|function| function.size <= MAX_HOOK) else {
            continue;
        };
        let Some(code) = read(&function) else { continue };
        let tables = code.called_from_tables();
        if callee == state && !tables.contains(&RECORD_EVENT_STATE) {
            return Err("what is called like it does something else");
        }
        // The hook that is told of the end of a whole op has no step.
        if callee != state && tables.contains(&STOP_EVENT) && code.takes(Register::RDX) {
            stops.push(function);
        }
    }
    if stops.len() > 1 {
        return Err("several functions are called like it");
    }
    Ok((state_function, stops.pop()))
}

impl Era {
    /// Tells whether a function that both call is told of all states of both, and of nothing else.
    fn is_told(&self, sender: &MachineCode, receiver: &MachineCode, callee: u64) -> bool {
        [(sender, self.sends), (receiver, self.receives)].into_iter().all(|(code, (always, ever))| {
            let calls = code.calls_of(callee, self.state.1);
            let told: BTreeSet<i64> = calls.iter().flat_map(|call| &call.constants).copied().collect();
            calls.iter().all(|call| !call.constants.is_empty())
                && always.iter().all(|state| told.contains(state))
                && told.iter().all(|state| ever.contains(state))
        })
    }
}
