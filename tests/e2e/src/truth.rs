//! What others say about the run that ncclflow traced.

pub mod call_log;
pub mod debug_log;
pub mod pat_counts;
pub mod pattern_calls;
pub mod plugin;
pub mod transfer_log;
