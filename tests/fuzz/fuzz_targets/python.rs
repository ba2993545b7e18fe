//! Memory of an interpreter: layouts that it states itself, lists of threads and frames, code objects, strings and
//! tables of lines.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ncclflow_fuzz::python::use_memory(bytes));
