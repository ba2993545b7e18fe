//! The sizes of sends of NCCL 2.16 to 2.19.
//!
//! There the size stands in `sizesFifo` only until the network has taken the message: it is reset before the
//! hook tells that the message was sent. So the size is taken at the instruction that resets it. This is one
//! hit for each message, whatever the network. Calls of the network's `isend` are no place for a probe: a
//! send that is refused is tried again at the rate of the proxy's poll loop.

use super::{
    lookup::Compiled,
    plan_builder::PlanBuilder,
    set::ProbeSet,
    step_places::{CALLERS, Instruction, RECORD_SENT, register},
};
use flow::wire::{ProbeKind, SendSizeSpans};
use nccl_library::{
    elf::Machine,
    fields::recv_mem,
    layouts::Field,
    symbols::{Code, Function, MachineCode, Resolution, SlotReset},
};

/// Bytes of an entry of `sizesFifo`, and of a store into it.
const SIZE_BYTES: u16 = 4;

/// Adds the probe, if the library needs it.
pub(super) fn add_send_sizes(set: &mut ProbeSet, resolution: &Resolution, kept: &Code) {
    let Some(sizes) = recv_mem::SIZES_FIFO.find(&resolution.layouts) else { return };
    let name = CALLERS[0];
    let lost = "measured sizes of messages; their times are there";
    match place(resolution, kept, &sizes) {
        Ok((place, reset)) => {
            let compiled = send_size(resolution, &reset).map_err(|error| error.to_string());
            set.add_probe(name, (place.symbol, place.file_offset), compiled, lost);
        }
        Err(why) => set.add_missing(name, why, lost),
    }
}

/// Finds the instruction that resets a size. The function has one copy that tells of steps; that of CollNet
/// does not.
fn place(resolution: &Resolution, kept: &Code, sizes: &Field) -> Result<(Instruction, SlotReset), String> {
    if resolution.machine != Machine::X86_64 {
        return Err("machine code of this processor is not read".to_owned());
    }
    if sizes.array.as_ref().is_none_or(|array| array.elem_size != u64::from(SIZE_BYTES)) {
        return Err("the sizes of slots are no numbers of 32 bits".to_owned());
    }
    let [hook] = resolution.functions("ncclProfilingRecord") else {
        return Err("`ncclProfilingRecord` is not known".to_owned());
    };
    let state = hook.param("state").and_then(|state| register(&state.location));
    let state = state.ok_or("the parameters of `ncclProfilingRecord` are not known")?;
    let mut found: Vec<(&Function, SlotReset)> = Vec::new();
    for function in resolution.functions(CALLERS[0]) {
        let code = MachineCode::of_kept(kept, function).ok_or("its code cannot be read")?;
        for call in code.calls_of(hook.vaddr.0, state) {
            if call.constants == [RECORD_SENT] {
                found.push((function, code.slot_reset_before(call.address, sizes.offset)?));
            }
        }
    }
    let [(function, reset)] = &found[..] else {
        return Err("it is not one call there that tells of a message that it was sent".to_owned());
    };
    let place = Instruction::inside(function, reset.address).ok_or("its code is not in the file")?;
    Ok((place, reset.clone()))
}

fn send_size(resolution: &Resolution, reset: &SlotReset) -> Compiled {
    let mut plan = PlanBuilder::new(resolution.machine);
    let base = plan.parameter(&reset.holder);
    let bytes = plan.copy(base, reset.displacement, SIZE_BYTES);
    Ok((plan.finish()?, ProbeKind::SendSize(SendSizeSpans { bytes }), None))
}
