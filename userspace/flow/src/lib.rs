//! Turns records into flows: pure, without files, clocks, threads or locks.
//!
//! The modules stand in the order in which data passes them: a record's bytes as a probe wrote them
//! ([`wire`]); the event that the record tells of ([`decode`]); calls put together to ops, messages and API
//! calls ([`model`]); the rows that are written and read ([`schema`]); and counters of what passed
//! ([`statistics`]). [`quota`] is for all of them: what a process may take from others.

// In the order in which data passes them; the empty lines keep rustfmt from sorting them.
pub mod wire;

pub mod decode;

pub mod model;

pub mod schema;

pub mod statistics;

pub mod iterations;

pub mod quota;

// Records as a recording stores them, whose they are, and the report of it all.
pub mod recording;

pub mod identity;

pub mod session;

// Text for people.
pub mod text;

#[cfg(any(test, feature = "made"))]
pub mod made;
