//! Payload of an op's channel, from the device work that was copied with the op: see [`OpWorkSpans`].

use serde::{Deserialize, Serialize};

use super::{ProxyOp, RecordView, Result, WorkKind, device_work, places::Place, plan_fields::WorkFields};
use crate::wire::OpWorkSpans;
use nccl_library::{
    fields::{
        BitField, FieldRef, MissingField, StructRef, ops_say_their_share, signed, work, work_elem,
        work_elem_p2p, work_elem_reg,
    },
    layouts::Layouts,
    nccl::{Pattern, datatype_bytes},
};

/// `ncclWorkType` (src/include/device.h, 2.20 and 2.21), whose enumeration is not in the debugging
/// information.
const COLLECTIVE: u64 = 1;
const P2P: u64 = 2;
const REGISTERED_COLLECTIVE: u64 = 3;

/// Places of the fields of device work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum OpWorkFields {
    /// `ncclWork` of 2.20 and 2.21.
    Elements(Box<ElementFields>),
    /// `ncclWorkList` of 2.22 and later.
    Nodes(Box<WorkFields>),
}

places! {
    /// Fields of `ncclWork`, and of its elements.
    pub struct ElementFields {
        kind: BitField = work::TYPE;
        collectives: Elements = (work::COLLECTIVES, work_elem::STRUCT);
        registered: Elements = (work::REGISTERED_COLLECTIVES, work_elem_reg::STRUCT);
        p2p: Elements = (work::SENDS_AND_RECEIVES, work_elem_p2p::STRUCT);
        chunk_count: BitField = work_elem::CHUNK_COUNT;
        work_count: BitField = work_elem::WORK_COUNT;
        last_chunk_count: BitField = work_elem::LAST_CHUNK_COUNT;
        peer: BitField = work_elem_p2p::PEER;
        /// High and low half of the bytes of a p2p element.
        p2p_bytes: [BitField; 2] = [work_elem_p2p::COUNT_HIGH, work_elem_p2p::COUNT_LOW];
    }
}

/// Elements of one kind: offset of the first, and bytes of each.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Elements {
    at: usize,
    size: usize,
}

impl Place<(FieldRef, StructRef)> for Elements {
    fn find(named: (FieldRef, StructRef), layouts: &Layouts, _base: u64) -> Result<Self, MissingField> {
        let (field, strukt) = named;
        let whole = |number: u64| usize::try_from(number).map_err(|_| field.missing());
        let size = strukt.size(layouts).map_err(|_| field.missing())?;
        Ok(Self { at: whole(field.need(layouts)?.offset)?, size: whole(size)? })
    }
}

impl Elements {
    fn get(self, work: &[u8], index: i32) -> Option<&[u8]> {
        let at = usize::try_from(index).ok()?.checked_mul(self.size)?.checked_add(self.at)?;
        work.get(at..at.checked_add(self.size)?)
    }
}

impl OpWorkFields {
    /// Finds the places in the library's layouts; `None` where its device work is of neither kind, or its ops
    /// need none.
    pub fn from_layouts(layouts: &Layouts) -> Option<Self> {
        if ops_say_their_share(layouts) {
            return None;
        }
        let nodes = || WorkFields::from_layouts(layouts).map(Box::new).map(Self::Nodes);
        ElementFields::find(layouts, 0).ok().map(Box::new).map(Self::Elements).or_else(nodes)
    }
}

/// Adds to the op what its device work says of its channel. Work that is not that of the op is ignored.
pub(super) fn complete(
    op: &mut ProxyOp,
    fields: &OpWorkFields,
    spans: &OpWorkSpans,
    record: &RecordView<'_>,
) -> Result<()> {
    let (OpWorkSpans::Elements { address, .. } | OpWorkSpans::Node { address, .. }) = spans;
    if record.unsigned(address)? == 0 {
        return Ok(());
    }
    // Without its device work the op is still an op.
    let _known = match (fields, spans) {
        (OpWorkFields::Elements(of), OpWorkSpans::Elements { work, counts, .. }) => {
            from_element(op, of, record.bytes(work)?, record.bytes(counts)?)
        }
        (OpWorkFields::Nodes(of), OpWorkSpans::Node { bytes, .. }) => from_node(op, of, record.bytes(bytes)?),
        _ => None,
    };
    Ok(())
}

fn from_element(op: &mut ProxyOp, of: &ElementFields, work: &[u8], counts: &[u8]) -> Option<()> {
    let count = |at: usize| signed(counts.get(at..at + 4)?).and_then(|count| i32::try_from(count).ok());
    let kind = of.kind.of(work)?;
    if op.pattern.is_p2p() {
        // Sends and receives alternate in the elements; each count is the place of the next one of its kind.
        let next = count(if op.pattern == Pattern::Send { 0 } else { 4 })?;
        let element = of.p2p.get(work, next.checked_sub(2)?)?;
        if kind != P2P || of.peer.int_of(element)? != op.root {
            return None;
        }
        let [high, low] = of.p2p_bytes;
        op.part_bytes = Some(high.of(element)? << 32 | low.of(element)?);
        return Some(());
    }
    let elements = match kind {
        COLLECTIVE => of.collectives,
        REGISTERED_COLLECTIVE => of.registered,
        _ => return None,
    };
    let element = elements.get(work, count(0)?.checked_sub(1)?)?;
    let bytes = datatype_bytes(op.dtype.as_deref()?)?;
    let in_bytes = |field: BitField| field.of(element)?.checked_mul(bytes);
    if !deals_out(op.pattern) || in_bytes(of.chunk_count)? != op.chunk_size {
        return None;
    }
    op.last_chunk = (op.pattern == Pattern::RingTwice).then(|| in_bytes(of.last_chunk_count)).flatten();
    op.channel_size = Some(in_bytes(of.work_count)?);
    Some(())
}

fn from_node(op: &mut ProxyOp, of: &WorkFields, node: &[u8]) -> Option<()> {
    let WorkKind::Coll(work) = device_work::work(of, node)?.what else { return None };
    let share = work.share_of(op.channel)?;
    if !deals_out(op.pattern) || share.chunk_grains.checked_mul(op.protocol.grain_bytes())? != op.chunk_size {
        return None;
    }
    op.channel_size = Some(share.count.checked_mul(datatype_bytes(op.dtype.as_deref()?)?)?);
    Some(())
}

/// Tells whether each channel has a part of its own. With CollNet and NVLS all channels can share the payload
/// evenly, which the work does not tell.
fn deals_out(pattern: Pattern) -> bool {
    matches!(
        pattern,
        Pattern::Ring
            | Pattern::RingTwice
            | Pattern::PipelineFrom
            | Pattern::PipelineTo
            | Pattern::TreeUp
            | Pattern::TreeDown
            | Pattern::TreeUpDown
            | Pattern::PatUp
            | Pattern::PatDown
    )
}
