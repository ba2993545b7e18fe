//! What is shown while a recording goes on: in the terminal ([`top`]) and to a Prometheus ([`metrics`]).

pub mod metrics;
pub mod top;
