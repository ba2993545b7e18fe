//! The independent truth of the end-to-end tests, and its comparison with what ncclflow wrote.
//!
//! Nothing here depends on ncclflow's own code: [`tracer`] reads the files that ncclflow wrote as a
//! stranger would, [`truth`] reads what others say about the same run, and [`compare`] puts them side
//! by side. Five witnesses:
//!
//! - [`truth::plugin`]: NCCL's profiler interface, through `tests/profiler` (what the proxy threads ran);
//! - [`truth::debug_log`]: the lines of `NCCL_DEBUG=INFO` (rings, trees, connections, API calls);
//! - [`truth::call_log`]: the test bed's own list of its calls, with results and times;
//! - [`truth::transfer_log`]: the test bed's device emulator (the bytes that went through each slot);
//! - [`truth::pattern_calls`]: what the library itself queued for a communicator that was made up (every
//!   pattern).

pub mod api_trace;
pub mod communicator;
pub mod compare;
pub mod direction;
pub mod harness;
pub mod json_lines;
pub mod tracer;
pub mod truth;
