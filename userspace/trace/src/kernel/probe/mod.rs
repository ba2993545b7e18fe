//! Probes: where to attach, and what to copy there.
//!
//! NCCL passes every proxy op through `ncclProxySaveOp`, and from there each peer through `SaveProxy`: once
//! while it plans, and again after the launch if a peer needs a proxy. Each call is a trap: 28 for a 64 KiB
//! all-reduce over NVLink. From 2.23 on all that they show stands in memory at one later point, so one probe
//! reads the whole plan (`walk_probes`); `--probes per-call` keeps the single calls (`op_probes`).
//!
//! - Ops that need a proxy are in the plan's queue. NCCL has forgotten the others by then: they are *derived*
//!   from the device work. Where both ways give a value, the two are compared, and a difference is counted
//!   (`model.plans.derived_otherwise`).
//! - Graphs and connectors of channels do not change while a communicator lives. They are sent once for each
//!   algorithm or peer (the map `SEEN`).
//! - CUDA's callback thread posts the plans of graphs, which have a probe of their own.
//! - A launch waits for its hit. So the records of one launch travel together (three to an item), the walk
//!   takes what it needs of a node from the node's record, and counters are touched last, as they make the
//!   processor wait for its stores. Launches with one collective that needs no proxy take a short way
//!   (`short_walk`), which sends what the walk would send, or nothing.
//! - Launches without proxy ops (symmetric memory, copy engines, one-sided calls) say what they do in their
//!   arguments, which the launch's own record has (`launch_args`).
//!
//! A fetch plan has at most 48 steps over 32 words: load, add, scale, emit, copy. Each record carries the
//! communicator's identity, as an address can come to mean another communicator.

mod api_probes;
mod connector;
mod graph_probes;
mod launch_args;
mod lookup;
mod op_probes;
mod op_work;
mod plan_builder;
mod send_sizes;
mod set;
mod short_walk;
mod step_places;
mod step_probes;
mod walk_probes;
mod walk_rows;

pub use graph_probes::of_driver;
pub use set::{Part, Probe, ProbeSet, WalkProgram, add_api_calls, add_api_returns, compile, take_stacks};
pub use step_places::add_steps;
