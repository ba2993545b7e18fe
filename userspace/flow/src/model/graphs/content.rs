//! What a graph holds: its captured ops, as they are replayed.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use foldhash::HashMap;

use crate::{
    decode::{ProxyOp, Ring, Tree},
    model::flow::FlowRecord,
    schema::Observed,
};

/// Captured ops that are kept, in all graphs.
pub(super) const MAX_OPS: usize = 65_536;

/// Ops, counted among all that are kept.
#[derive(Debug, Default)]
pub(super) struct Ops {
    records: Vec<FlowRecord>,
    kept: Arc<AtomicUsize>,
}

impl Ops {
    pub(super) fn records(&self) -> &[FlowRecord] {
        &self.records
    }
}

impl Drop for Ops {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.records.len(), Ordering::Relaxed);
    }
}

/// What a graph holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) ops: Arc<Ops>,
    /// Number of the capture; `None`: no plan is tied to the graph.
    pub(super) capture: Option<u64>,
    /// Captures of the process that had begun when the first plan was tied to the graph.
    pub(super) begun: u64,
    /// The capture was seen from its beginning to its end.
    pub(super) is_ended: bool,
    /// It is not known what else the graph holds.
    pub(super) is_mixed: bool,
    /// Ops that the proxy is posted at each replay, which tells them.
    pub(super) by_proxy: u64,
    /// Ops beyond the number that is kept.
    pub(super) left_out: u64,
    /// Records of the process that were lost when it began.
    pub(super) lost: u64,
}

impl Content {
    pub(super) fn new(kept: &Arc<AtomicUsize>, lost: u64) -> Self {
        let ops = Arc::new(Ops { records: Vec::new(), kept: Arc::clone(kept) });
        Self { ops, lost, ..Self::default() }
    }

    pub(super) fn has_ops(&self) -> bool {
        !self.ops.records.is_empty() || self.by_proxy + self.left_out > 0
    }

    /// Tells whether it is all that the graph holds. What was captured while records were lost can lack something;
    /// and a plan that is tied to a graph has ops.
    pub(super) fn is_whole(&self, lost: u64) -> bool {
        self.is_ended && !self.is_mixed && self.lost == lost && (self.has_ops() || self.capture.is_none())
    }

    /// Adds ops that were captured, given channel by channel. `is_cut`: there were others beside them. `kept`: the
    /// number of ops that are kept in all.
    pub(super) fn add(
        &mut self,
        records: impl IntoIterator<Item = FlowRecord>,
        is_cut: bool,
        kept: &AtomicUsize,
    ) {
        self.is_mixed |= is_cut;
        let mut ops: Vec<FlowRecord> = Vec::new();
        let mut places = HashMap::default();
        for record in records {
            let key = (record.comm.hash, record.comm.instance, record.seq);
            if let Some(op) = places.get(&key).and_then(|at: &usize| ops.get_mut(*at)) {
                op.needed |= record.needed;
                op.incomplete |= record.incomplete;
            } else {
                places.insert(key, ops.len());
                ops.push(record);
            }
        }
        // An executable has been made of it already, and holds less.
        let Some(of_graph) = Arc::get_mut(&mut self.ops) else {
            self.is_mixed = true;
            return;
        };
        for op in ops {
            if op.needed {
                self.by_proxy += 1;
            } else if kept.load(Ordering::Relaxed) >= MAX_OPS {
                self.left_out += 1;
            } else {
                kept.fetch_add(1, Ordering::Relaxed);
                of_graph.records.push(op);
            }
        }
    }
}

/// Makes the record that stands for the op on all its channels when it is replayed.
pub(super) fn condensed(record: &FlowRecord) -> FlowRecord {
    let none = -1;
    let FlowRecord { op, .. } = record;
    let op = ProxyOp {
        pattern: op.pattern,
        protocol: op.protocol,
        algorithm: op.algorithm,
        root: op.root,
        dtype: op.dtype.clone(),
        red_op: op.red_op.clone(),
        coll: op.coll.clone(),
        coll_api: op.coll_api.clone(),
        registered: op.registered,
        launch: op.launch.clone(),
        ..ProxyOp::default()
    };
    FlowRecord {
        op,
        peers: Vec::new(),
        ring: Ring { prev: none, next: none, index: none },
        tree: Tree { up: none, down: [none; 3] },
        planned_at: None,
        posted_at: None,
        captured_seq: Some(record.seq),
        api_call: if record.api_call.is_absent() { Observed::Absent } else { Observed::Unknown },
        p2p_part: None,
        ..record.clone()
    }
}
