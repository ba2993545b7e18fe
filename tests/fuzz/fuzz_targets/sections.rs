//! What is in the sections, of files whose headers are right: symbols, DWARF, unwind tables, code.

#![no_main]

const MACHINES: [u16; 2] = [62, 183];

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((first, input)) = input.split_first() else { return };
    let machine = MACHINES[usize::from(first & 1)];
    ncclflow_fuzz::use_library(&ncclflow_fuzz::assembly::library(input, machine));
});
