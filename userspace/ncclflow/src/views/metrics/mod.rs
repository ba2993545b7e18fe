//! Live statistics for Prometheus: an exposition in the OpenMetrics text format, and its server.
//!
//! The number of series is bounded by what the statistics keep apart.

mod address;
mod exposition;
mod families;
mod gpu_families;
mod server;

#[cfg(test)]
mod tests;

pub use address::parse_address;
pub use exposition::Exposition;
pub use server::MetricsServer;
