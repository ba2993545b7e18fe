//! Files made of real recordings (`tests/traces`): two H200s over NVLink and over sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::manual_assert_eq, reason = "thousands of lines would be printed")]

mod checked;
mod compat;
mod flight_recorder;
mod hostile;
mod parts;
#[expect(unreachable_pub, reason = "shared with the fuzz target")]
#[path = "../../../../tests/fuzz/src/recording_blocks.rs"]
mod recording_blocks;
mod report;
mod several;
mod torch_traces;
mod traces;
mod views;
