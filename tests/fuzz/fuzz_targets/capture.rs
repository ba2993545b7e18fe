//! Captures: header, bindings, records, report.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ncclflow_fuzz::capture::use_capture(bytes));
