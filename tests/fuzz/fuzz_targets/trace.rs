//! Traces of profilers: JSON, Perfetto's protobuf, and what is made of their slices.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ncclflow_fuzz::trace::use_trace(bytes));
