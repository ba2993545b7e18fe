//! Where the fields of an `ncclProxyOp` are, in the traced library's layout.

use serde::{Deserialize, Serialize};

use nccl_library::{
    fields::{IntField, MissingField, proxy_op as op},
    layouts::Layouts,
};

/// The fields of `ncclProxyOp` that events are made of. Optional ones are not in all versions: [`op`] says in
/// which.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ProxyOpFields {
    pub op_count: IntField,
    pub channel_id: IntField,
    pub nsteps: IntField,
    pub nbytes: IntField,
    pub chunk_size: IntField,
    pub slice_steps: IntField,
    pub chunk_steps: IntField,
    pub root: IntField,
    pub dtype: IntField,
    pub red_op: IntField,
    pub pattern: IntField,
    pub protocol: IntField,
    pub coll: Option<IntField>,
    pub coll_api: Option<IntField>,
    pub algorithm: Option<IntField>,
    pub reg: Option<IntField>,
    pub channel_size: Option<IntField>,
    pub loop_offset: Option<IntField>,
    /// `specifics.bcast.sendSlices` and `recvSlices`.
    pub slices: Option<[IntField; 2]>,
}

impl ProxyOpFields {
    /// From the traced library's layout.
    pub fn from_layouts(layouts: &Layouts) -> Result<Self, MissingField> {
        Ok(Self {
            op_count: op::OP_COUNT.int(layouts)?,
            channel_id: op::CHANNEL_ID.int(layouts)?,
            nsteps: op::N_STEPS.int(layouts)?,
            nbytes: op::N_BYTES.int(layouts)?,
            chunk_size: op::CHUNK_SIZE.int(layouts)?,
            slice_steps: op::SLICE_STEPS.int(layouts)?,
            chunk_steps: op::CHUNK_STEPS.int(layouts)?,
            root: op::ROOT.int(layouts)?,
            dtype: op::DATATYPE.int(layouts)?,
            red_op: op::REDUCTION_OP.int(layouts)?,
            pattern: op::PATTERN.int(layouts)?,
            protocol: op::PROTOCOL.int(layouts)?,
            coll: op::COLL.find_int(layouts),
            coll_api: op::COLL_API.find_int(layouts),
            algorithm: op::ALGORITHM.find_int(layouts),
            reg: op::REGISTERED.find_int(layouts),
            channel_size: op::CHANNEL_SIZE.find_int(layouts),
            loop_offset: op::LOOP_OFFSET.find_int(layouts),
            slices: op::BROADCAST_SEND_SLICES
                .find_int(layouts)
                .zip(op::BROADCAST_RECV_SLICES.find_int(layouts))
                .map(|(sent, received)| [sent, received]),
        })
    }
}
