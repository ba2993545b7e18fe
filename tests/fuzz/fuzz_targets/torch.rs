//! Memory of a process that has torch loaded: rings of its flight recorder, their entries, maps and strings, and the status
//! of process groups.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ncclflow_fuzz::torch::use_memory(bytes));
