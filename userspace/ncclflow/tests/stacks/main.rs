//! `ncclflow stacks TRACE` against an independent reader in Python (`tests/stacks/reader.py`), on real traces
//! of two H200s and on Perfetto traces made of them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod memory;
mod messages;
mod readers;
mod run;
