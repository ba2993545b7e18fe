//! Sizes, algorithms and protocols: how often they occurred, and how long they took.

use flow::{
    schema::{ApiCall, LaunchKind, Op},
    statistics::{Durations as _, Quantiles},
};
use nccl_library::nccl::{Algorithm, Name};
use serde::{Serialize, Serializer};

use super::{
    counted::Numbered,
    data::KindData,
    open_ops::{OpTotals, join_waits},
};

/// Most kinds with exact sizes; sizes of further ones are rounded to powers of two.
const MAX_EXACT: usize = 1024;

const MAX_KINDS: usize = 2048;

/// Properties that the ops of a kind have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KindKey {
    #[serde(serialize_with = "or_others")]
    function: Option<Name>,
    /// Function that NCCL runs it as, where that is another one.
    runs_as: Option<Name>,
    algorithm: Option<&'static str>,
    protocol: Option<&'static str>,
    dtype: Option<Name>,
    red_op: Option<Name>,
    pub(super) bytes: Option<u64>,
    /// Set if there were too many sizes: this one is a power of two that the real sizes do not exceed.
    rounded: bool,
    channels: u32,
    is_call: bool,
}

impl KindKey {
    pub(super) fn of_op(op: &Op) -> Self {
        let row = &op.row;
        let reduces = row.red_op.as_ref().filter(|_| {
            let name = row.coll.as_ref().map(Name::as_str);
            matches!(name, Some("AllReduce" | "Reduce" | "ReduceScatter"))
        });
        Self {
            function: row.called().cloned(),
            runs_as: row.coll.clone().filter(|coll| row.coll_api.as_ref().is_some_and(|api| api != coll)),
            algorithm: row.launch.map(LaunchKind::name).or(row.algorithm.map(Algorithm::name)),
            protocol: row.launch.is_none().then(|| row.protocol.name()),
            dtype: row.dtype.clone(),
            red_op: reduces.cloned(),
            bytes: op.call_bytes,
            ..Self::default()
        }
    }

    pub(super) fn of_call(call: &ApiCall) -> Self {
        let row = &call.row;
        Self {
            function: Some(row.function.clone()),
            dtype: row.datatype.clone(),
            bytes: row.bytes,
            is_call: true,
            ..Self::default()
        }
    }

    pub(super) fn function(&self) -> &str {
        self.function.as_ref().map_or("?", |name| name.as_str())
    }

    fn rounded(&self) -> Self {
        let bytes = self.bytes.map(|bytes| bytes.checked_next_power_of_two().unwrap_or(u64::MAX));
        Self { bytes, rounded: true, ..self.clone() }
    }
}

#[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
fn or_others<S: Serializer>(function: &Option<Name>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(function.as_ref().map_or("others", |name| name.as_str()))
}

#[derive(Debug, Default)]
struct Kind {
    ops: u64,
    times: Quantiles,
    waits_ns: [u64; 8],
}

#[derive(Debug)]
pub(super) struct Kinds(Numbered<KindKey, Kind, MAX_KINDS>);

impl Default for Kinds {
    fn default() -> Self {
        let mut kinds = Numbered::default();
        // The kind of all for which there is no room.
        kinds.number(&KindKey::default());
        Self(kinds)
    }
}

impl Kinds {
    /// Counts an op. Returns the number of its kind.
    pub(super) fn add(&mut self, op: &OpTotals) -> usize {
        let key = KindKey { channels: op.channels.count_ones(), ..op.kind.clone() };
        let key = if self.0.len() >= MAX_EXACT && self.0.find(&key).is_none() { key.rounded() } else { key };
        let number = self.0.number(&key).unwrap_or(0);
        if let Some(kind) = self.0.at(number) {
            kind.ops += 1;
            if let Some((begin, end)) = op.span_ns {
                kind.times.note(end.saturating_sub(begin));
            }
            join_waits(&mut kind.waits_ns, &op.waits_ns);
        }
        number
    }

    /// Tells whether sizes were put together.
    pub(super) fn has_rounded(&self) -> bool {
        self.0.iter().any(|(key, _)| key.rounded)
    }

    pub(super) fn data(&self) -> Vec<KindData> {
        let data = |(key, kind): &(KindKey, Kind)| KindData {
            key: key.clone(),
            ops: kind.ops,
            measured: kind.times.count,
            p50_ns: kind.times.percentile(50),
            p99_ns: kind.times.percentile(99),
            max_ns: (kind.times.count > 0).then_some(kind.times.max),
            total_ns: kind.times.total,
            waits_ns: kind.waits_ns,
        };
        self.0.iter().map(data).collect()
    }
}
