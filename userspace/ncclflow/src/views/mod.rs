//! Live views of a recording: in the terminal ([`top`]) and for a Prometheus server ([`metrics`]).

pub mod metrics;
pub mod top;
