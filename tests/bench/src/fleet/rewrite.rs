//! A recording's record, as another process of a larger job would have sent it.

use flow::{
    decode::{Event, PlanPart, RecordView, WorkKind},
    recording::Binding,
    wire::{CommunicatorSpans, ConnectorSpans, PlanNodeSpans, ProbeKind, Span},
};
use nccl_library::nccl::Pattern;
use ncclflow_common::RecordHeader;

use super::job::Job;

/// A process of the job that is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// How often the recording has happened before.
    pub(super) run: u32,
    /// The rank whose records these are.
    pub(super) original: u32,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) tgid: u32,
    pub(super) shift_ns: u64,
}

impl Place {
    fn before(&self) -> u32 {
        (self.rank + self.ranks - 1) % self.ranks
    }

    fn after(&self) -> u32 {
        (self.rank + 1) % self.ranks
    }

    /// To whom it sends what the original rank sent to `peer`, or from whom it receives.
    fn peer(&self, peer: i32, sends: bool) -> u32 {
        match u32::try_from(peer) {
            Ok(peer) if peer == self.original => self.rank,
            _ if sends => self.after(),
            _ => self.before(),
        }
    }
}

pub(super) fn communicator(kind: &ProbeKind) -> Option<&CommunicatorSpans> {
    match kind {
        ProbeKind::Plan(spans) => Some(&spans.comm),
        ProbeKind::ApiCall(spans) => Some(&spans.comm),
        ProbeKind::ApiLine(spans) => Some(&spans.comm),
        _ => None,
    }
}

/// The record as that process would have sent it.
pub(super) fn rewritten(
    original: &[u8],
    header: RecordHeader,
    bindings: &[Binding],
    place: Place,
    job: &Job,
) -> Vec<u8> {
    let Place { run, rank, ranks, tgid, shift_ns, .. } = place;
    let mut record = original.to_vec();
    let header = RecordHeader {
        tgid,
        tid: header.tid.wrapping_sub(header.tgid).wrapping_add(tgid),
        ts_ns: header.ts_ns + shift_ns,
        // Hits are counted by CPU, and here they begin anew: each process and time has its own.
        cpu: header.cpu + 64 * (rank + ranks * run),
        ..header
    };
    record[..RecordHeader::SIZE].copy_from_slice(&header.to_bytes());
    let Some(binding) = bindings.get(usize::from(header.probe)) else { return record };
    let Ok(view) = RecordView::new(original) else { return record };
    if let Some(spans) = communicator(&binding.kind) {
        put(&mut record, spans.rank, rank);
        put(&mut record, spans.n_ranks, ranks);
        let hash = view.optional(spans.hash.as_ref()).unwrap_or_default();
        // Of the counts by function the sum counts.
        let launched = spans.launched_per_function.map(|span| span.part(0, 8)).or(spans.posted_collectives);
        if let Some(span) = launched {
            add(&mut record, span, u64::from(run) * job.launched(hash));
        }
    }
    match &binding.kind {
        ProbeKind::Channel(spans) => {
            let ring = [place.before(), place.after(), rank];
            for (span, value) in spans.ring.iter().zip(ring) {
                put_if_any(&mut record, &view, *span, value);
            }
        }
        ProbeKind::Connectors(spans) if follows_ring(&spans.connectors) => {
            for connector in &spans.connectors {
                let Ok(peer) = view.int(&connector.peer) else { continue };
                put_if_any(&mut record, &view, connector.peer, place.peer(peer, connector.sends));
            }
        }
        ProbeKind::PlanNode(spans) => {
            // What cannot be decoded stays as it is: readers count it as well.
            let _ = node(&mut record, spans, binding, &view, place, job);
        }
        ProbeKind::ProxyStep(spans) => {
            let counts = job.posted();
            let posted =
                view.unsigned(&spans.op_count).map_or(0, |count| counts[usize::from(count % 2 == 1)]);
            add(&mut record, spans.op_count, 2 * u64::from(run) * posted);
        }
        _ => {}
    }
    record
}

/// A node of a plan: its peers, and what NCCL had posted before.
fn node(
    record: &mut [u8],
    spans: &PlanNodeSpans,
    binding: &Binding,
    view: &RecordView<'_>,
    place: Place,
    job: &Job,
) -> Option<()> {
    let Ok(Event::PlanPart(part)) = binding.decoder.decode(&binding.kind, view) else { return None };
    let fields = binding.decoder.plan_fields.as_ref()?;
    let (at, len) = (usize::from(spans.bytes.at), usize::from(spans.bytes.len));
    let bytes = record.get_mut(at..at + len)?;
    match part.part {
        PlanPart::P2pTask(task) => {
            let peer = place.peer(task.peer, task.function.as_deref() == Some("Send"));
            fields.p2p_task.root.put(bytes, peer.into())
        }
        PlanPart::Work(work) => {
            let WorkKind::P2p(work) = work.what else { return None };
            // First the receive, then the send.
            for (sends, (side, field)) in
                [false, true].into_iter().zip(work.sides.iter().zip(fields.work.p2p.peer))
            {
                field.put(bytes, place.peer(side.peer, sends).into())?;
            }
            Some(())
        }
        PlanPart::OpCounts(counts) => {
            let of = &fields.op_counts;
            let [collectives, p2p] = job.posted().map(|posted| posted * u64::from(place.run));
            of.collectives.put(bytes, counts.collectives + collectives)?;
            let channels = bytes.get_mut(of.p2p_at..of.p2p_at + of.p2p_bytes)?;
            for (count, place) in counts.p2p.iter().zip(channels.as_chunks_mut().0) {
                *place = (count + p2p).to_le_bytes();
            }
            Some(())
        }
        PlanPart::ProxyOp(queued) => {
            let sends = match queued.op.pattern {
                Pattern::Send => true,
                Pattern::Recv => false,
                _ => return None,
            };
            let root = binding.decoder.op_fields.as_ref()?.root;
            let at = usize::try_from(root.offset()).ok()?;
            let peer = place.peer(queued.op.root, sends).to_le_bytes();
            bytes.get_mut(at..at + root.size())?.get_mut(..4)?.copy_from_slice(&peer);
            Some(())
        }
        _ => None,
    }
}

/// Whether these are the connectors to a ring's neighbours, or to the peer of a send or receive. Those of the
/// other graphs lead along trees.
fn follows_ring(connectors: &[ConnectorSpans]) -> bool {
    let of = |connector: &ConnectorSpans| (connector.sends, connector.connection_index);
    // NCCL gives rings connectors of index 0, and sends and receives those of index 1.
    match connectors {
        [one] => of(one).1 == 1,
        [receives, sends] => of(receives) == (false, 0) && of(sends) == (true, 0),
        _ => false,
    }
}

/// A rank, where there is one: -1 stays.
fn put_if_any(record: &mut [u8], view: &RecordView<'_>, span: Span, value: u32) {
    if view.int(&span).is_ok_and(|rank| rank >= 0) {
        put(record, span, value);
    }
}

/// An `int` of the target's. Records have some in 4 bytes, and some in the low half of 8.
fn put(record: &mut [u8], span: Span, value: u32) {
    let at = usize::from(span.at);
    if let Some(place) = record.get_mut(at..at + 4).filter(|_| matches!(span.len, 4 | 8)) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

/// A count of the target's, of 64 bits.
fn add(record: &mut [u8], span: Span, more: u64) {
    let at = usize::from(span.at);
    if let Some(place) = record.get_mut(at..at + 8).filter(|_| span.len == 8)
        && let Some(place) = place.first_chunk_mut()
    {
        *place = u64::from_le_bytes(*place).wrapping_add(more).to_le_bytes();
    }
}
