//! Items of the kernel's buffers: packs, records, what the model makes of them.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ncclflow_fuzz::kernel_records::use_items(bytes));
