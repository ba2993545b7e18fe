//! Memory of a process that is dumped: communicators, channels, peers, proxies, planners.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ncclflow_fuzz::dump::use_memory(bytes));
