//! Files of `/proc`: mappings and mounts.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ncclflow_fuzz::proc_files::use_file(bytes));
