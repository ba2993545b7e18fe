//! Dumps of other hosts: their JSON, the verdict over them, the text.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ncclflow_fuzz::merge::use_dumps(bytes));
