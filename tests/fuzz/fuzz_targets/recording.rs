//! Segments of recordings: blocks, bindings, events, columns, records, and what the model makes of them.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ncclflow_fuzz::recording::use_recording(bytes));
