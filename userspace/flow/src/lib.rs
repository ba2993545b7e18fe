//! From records to flows: pure, without files, clocks, threads or locks.
//!
//! The modules stand in the order of the data's way: a record's bytes as a probe wrote them ([`wire`]); the
//! event that it tells of ([`decode`]); calls put together to ops, messages and API calls ([`model`]); the
//! rows that are written and read ([`schema`]); and counters of what passed ([`statistics`]).

// The order of the data's way; rustfmt sorts modules that stand together.
pub mod wire;

pub mod decode;

pub mod model;

pub mod schema;

pub mod statistics;

pub mod iterations;

// Records as a recording keeps them.
pub mod recording;

#[cfg(any(test, feature = "made"))]
pub mod made;
