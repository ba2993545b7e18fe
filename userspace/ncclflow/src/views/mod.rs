//! Live views of a recording: in the terminal ([`top`]) and for a Prometheus server ([`metrics`]).

pub mod metrics;
pub mod top;

#[expect(clippy::cast_precision_loss, reason = "seconds for people and for Prometheus")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
