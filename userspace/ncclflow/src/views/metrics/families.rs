//! Metric families: a name, a text, and a value for each set of labels.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, TypedMetric, gauge::ConstGauge},
    registry::Unit,
};

use crate::views::seconds;
use flow::statistics::Histogram;

pub(super) struct Families<'a> {
    pub(super) encoder: DescriptorEncoder<'a>,
}

impl Families<'_> {
    /// Encodes a family. `help` says whether the numbers are planned, derived or measured.
    pub(super) fn family<L: EncodeLabelSet, M: EncodeMetric + TypedMetric>(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        series: impl IntoIterator<Item = (L, M)>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, unit, M::TYPE)?;
        series.into_iter().try_for_each(|(labels, metric)| metric.encode(family.encode_family(&labels)?))
    }

    /// Encodes a metric without labels, the only one of its family.
    pub(super) fn single<M: EncodeMetric + TypedMetric>(
        &mut self,
        name: &str,
        help: &str,
        metric: &M,
    ) -> fmt::Result {
        metric.encode(self.encoder.encode_descriptor(name, help, None, M::TYPE)?)
    }
}

/// Makes a gauge of a count.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
pub(super) fn gauge(count: u64) -> ConstGauge<f64> {
    ConstGauge::new(count as f64)
}

/// Durations, which are served in seconds.
pub(super) struct Durations<'a>(pub(super) &'a Histogram);

impl TypedMetric for Durations<'_> {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Durations<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bound = |bound: Option<u64>| bound.map_or(f64::INFINITY, seconds);
        let buckets: Vec<(f64, u64)> = self.0.buckets().map(|(until, count)| (bound(until), count)).collect();
        encoder.encode_histogram::<NoLabelSet>(seconds(self.0.sum_ns), self.0.count(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}
