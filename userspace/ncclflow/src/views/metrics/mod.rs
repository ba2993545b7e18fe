//! Live statistics for Prometheus: an exposition in the OpenMetrics text format, and its server.
//!
//! The number of series is bounded by what the statistics keep apart.

mod exposition;
mod families;
mod gpu_families;
mod server;

#[cfg(test)]
mod tests;

pub use exposition::Exposition;
pub use server::MetricsServer;
