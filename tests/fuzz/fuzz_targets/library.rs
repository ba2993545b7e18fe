//! Whole files: ELF headers, program headers, section headers, notes.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ncclflow_fuzz::use_library(bytes));
