//! NCCL profiler plugin of the end-to-end tests: it writes down which operations NCCL reports to it.
//!
//! ncclflow watches a job from outside. This library is the independent witness inside: loaded with
//! `NCCL_PROFILER_PLUGIN=/path/libncclflow_truth_profiler.so`, it writes one file of JSON lines per process
//! and communicator into `$NCCLFLOW_TRUTH_DIR`, and the tests compare the two accounts. Without that variable
//! it asks NCCL for no events.
//!
//! NCCL looks for the data symbols `ncclProfiler_v6`, `_v5` … `_v1` and takes the highest one it knows:
//! v1 in 2.23, v2 in 2.24–2.25, v3 in 2.26, v4 in 2.27, v5 in 2.28, v6 from 2.29. All six are exported,
//! so every version answers with its native descriptors, and each file says which version they came
//! from: `nSteps` counts FIFO steps in v1 and network messages from v2 on, sizes are running sums up to
//! v3 and per message from v4 on.
//!
//! It must not interpret anything. Units, sums and joins are the readers' work (`ncclflow-e2e`,
//! `truth::plugin`).

mod abi;
mod callbacks;
mod context;
mod event;
mod handle;
mod line;
mod registry;
