//! Metric families: a name, a text, and a value for each set of labels.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

use flow::statistics::Histogram;

pub(super) type Labels<'a> = Vec<(&'static str, &'a str)>;

pub(super) struct Families<'a> {
    pub(super) encoder: DescriptorEncoder<'a>,
}

impl Families<'_> {
    /// Encodes a family of counters. `help` says whether the numbers are planned, derived or measured.
    pub(super) fn counters<'l>(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, u64)>,
    ) -> fmt::Result {
        let encode = |mut family: MetricEncoder<'_>, value| {
            family.encode_counter::<NoLabelSet, u64, f64>(&value, None)
        };
        self.family((name, unit, help), MetricType::Counter, series, encode)
    }

    pub(super) fn gauges<'l>(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        let encode = |mut family: MetricEncoder<'_>, value| family.encode_gauge(&value);
        self.family((name, unit, help), MetricType::Gauge, series, encode)
    }

    /// Encodes a family of histograms of durations, in seconds.
    pub(super) fn histograms<'l>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l>, &'l Histogram)>,
    ) -> fmt::Result {
        let encode = |mut family: MetricEncoder<'_>, histogram: &Histogram| {
            let bound = |bound: Option<u64>| bound.map_or(f64::INFINITY, seconds);
            let buckets: Vec<(f64, u64)> =
                histogram.buckets().map(|(until, count)| (bound(until), count)).collect();
            let (sum, count) = (seconds(histogram.sum_ns()), histogram.count());
            family.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        };
        self.family((name, Some(&Unit::Seconds), help), MetricType::Histogram, series, encode)
    }

    fn family<'l, V>(
        &mut self,
        (name, unit, help): (&str, Option<&Unit>, &str),
        kind: MetricType,
        series: impl IntoIterator<Item = (Labels<'l>, V)>,
        encode: impl Fn(MetricEncoder<'_>, V) -> fmt::Result,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, unit, kind)?;
        for (labels, value) in series {
            if labels.is_empty() {
                // The only one of its family.
                return encode(family, value);
            }
            encode(family.encode_family(&labels)?, value)?;
        }
        Ok(())
    }

    pub(super) fn info(&mut self, name: &str, help: &str, labels: &Labels<'_>) -> fmt::Result {
        self.encoder.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(labels)
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds as Prometheus has them")]
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
