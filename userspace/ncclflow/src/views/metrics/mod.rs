//! Live statistics for Prometheus: expositions in the OpenMetrics text format, and their server.
//!
//! The number of series is bounded by what is kept apart.

mod exposition;
mod families;
mod gpu_families;
mod server;
mod watched;

#[cfg(test)]
mod tests;

use std::fmt;

use prometheus_client::{collector::Collector, encoding::text, registry::Registry};

pub use exposition::Exposition;
pub use server::MetricsServer;
pub use watched::{Watched, WatchedMetrics};

/// Metrics that can be served.
pub trait Expose: fmt::Debug + Send + Sync {
    /// Returns them in the OpenMetrics text format.
    ///
    /// # Errors
    /// Those of the encoder.
    fn text(&self) -> Result<String, fmt::Error>;
}

fn encoded(metrics: impl Collector) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("ncclflow");
    registry.register_collector(Box::new(metrics));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}
