//! What is shown during a recording: in the terminal ([`top`]) and to a Prometheus server ([`metrics`]).

pub mod metrics;
pub mod top;
