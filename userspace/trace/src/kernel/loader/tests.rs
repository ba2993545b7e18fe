//! Bounds the stack that the programs of the committed objects use, counted as the verifier does.
//!
//! The frames of a chain of calls, each rounded up to 32 bytes, may have 512 bytes together. Kernels from
//! 6.13 on give the programs of probes a stack of their own and allow more. Only older kernels refuse a
//! program with larger frames, so this test counts them.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::Path,
};

use aya_obj::{Object, generated::bpf_insn};

/// Limits of the verifier: `MAX_BPF_STACK`, and `MAX_CALL_FRAMES` (include/linux/filter.h,
/// include/linux/bpf_verifier.h).
const STACK: usize = 512;
const FRAMES: usize = 8;

const FRAME_POINTER: u8 = 10;
const CALL: u8 = 0x85;
const PSEUDO_CALL: u8 = 1;
const MOVE: u8 = 0xbf;
const ADD_CONSTANT: u8 = 0x07;

/// A function: bytes of its frame, and the first instructions of the functions that it calls.
#[derive(Default)]
struct Frame {
    bytes: usize,
    calls: Vec<usize>,
}

/// Returns the functions of a program, by first instruction.
fn frames(instructions: &[bpf_insn]) -> BTreeMap<usize, Frame> {
    let target = |at: usize, call: &bpf_insn| at.strict_add_signed(call.imm as isize + 1);
    let is_call = |insn: &bpf_insn| insn.code == CALL && insn.src_reg() == PSEUDO_CALL;
    let calls = || instructions.iter().enumerate().filter(|(_, insn)| is_call(insn));
    let mut frames = BTreeMap::from([(0, Frame::default())]);
    frames.extend(calls().map(|(at, call)| (target(at, call), Frame::default())));
    let mut of_pointer = None;
    for (at, insn) in instructions.iter().enumerate() {
        let frame = frames.range_mut(..=at).next_back().unwrap().1;
        if is_call(insn) {
            frame.calls.push(target(at, insn));
        }
        let class = insn.code & 7;
        // Class 1 has the loads, classes 2 and 3 the stores.
        let through_pointer = match class {
            1 => insn.src_reg() == FRAME_POINTER && insn.code != 0x18,
            2 | 3 => insn.dst_reg() == FRAME_POINTER,
            _ => false,
        };
        let lowest = if through_pointer {
            isize::from(insn.off)
        } else if insn.code == ADD_CONSTANT && of_pointer == Some(insn.dst_reg()) {
            insn.imm as isize
        } else {
            0
        };
        frame.bytes = frame.bytes.max(usize::try_from(-lowest).unwrap_or(0));
        of_pointer = (insn.code == MOVE && insn.src_reg() == FRAME_POINTER).then(|| insn.dst_reg());
    }
    frames
}

/// Returns the deepest chain of calls from a function: its bytes, and those of each frame in it.
fn deepest(frames: &BTreeMap<usize, Frame>, function: usize) -> (usize, Vec<usize>) {
    let frame = frames.get(&function).unwrap();
    let below = frame.calls.iter().map(|call| deepest(frames, *call)).max().unwrap_or_default();
    let bytes = frame.bytes.max(1).next_multiple_of(32);
    (bytes + below.0, [vec![bytes], below.1].concat())
}

#[test]
fn every_kernel_has_room_for_the_frames_of_the_programs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ebpf/obj");
    let mut seen = 0;
    for file in ["ncclflow.x86_64.o", "ncclflow.aarch64.o"] {
        let mut object = Object::parse(&fs::read(folder.join(file)).unwrap()).unwrap();
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        object.relocate_calls(&text).unwrap();
        for (name, program) in &object.programs {
            let function = object.functions.get(&program.function_key()).unwrap();
            let (bytes, chain) = deepest(&frames(&function.instructions), 0);
            eprintln!("{file} {name}: {bytes} bytes in frames of {chain:?}");
            assert!(bytes <= STACK && chain.len() <= FRAMES, "{file} {name}: {bytes} bytes: {chain:?}");
            seen += 1;
        }
    }
    assert!(seen >= 6, "two objects, three programs each");
}
