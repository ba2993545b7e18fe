//! Where the fields of an `ncclProxyOp` are, in the traced library's layout.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{signed, unsigned};
use nccl_library::layouts::Layouts;

/// A field that the known layouts of the library lack, and that nothing works without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingField(pub &'static str);

impl fmt::Display for MissingField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no `ncclProxyOp.{}` in the layouts that are known of this library", self.0)
    }
}

impl std::error::Error for MissingField {}

/// An integer inside an `ncclProxyOp`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct IntField {
    at: usize,
    size: usize,
}

impl IntField {
    pub fn unsigned(self, op: &[u8]) -> Option<u64> {
        op.get(self.at..self.at.checked_add(self.size)?).and_then(unsigned)
    }

    pub fn signed(self, op: &[u8]) -> Option<i64> {
        op.get(self.at..self.at.checked_add(self.size)?).and_then(signed)
    }
}

/// The fields of `ncclProxyOp` that events are made of. Optional ones came with a later version or left with one.
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
    /// 2.20 and later.
    pub coll: Option<IntField>,
    /// 2.28 and later.
    pub coll_api: Option<IntField>,
    /// 2.24 and later.
    pub algorithm: Option<IntField>,
    /// 2.20 and later.
    pub reg: Option<IntField>,
    /// 2.24 and later.
    pub channel_size: Option<IntField>,
    /// 2.24 and later.
    pub loop_offset: Option<IntField>,
    /// `specifics.bcast.sendSlices` and `recvSlices`: 2.29 and later.
    pub slices: Option<[IntField; 2]>,
}

impl ProxyOpFields {
    /// From the traced library's layout.
    pub fn from_layouts(layouts: &Layouts) -> Result<Self, MissingField> {
        let find = |name: &str| {
            let field = layouts.field("ncclProxyOp", name)?;
            Some(IntField {
                at: usize::try_from(field.offset).ok()?,
                size: usize::try_from(field.size).ok()?,
            })
        };
        let need = |name: &'static str| find(name).ok_or(MissingField(name));
        Ok(Self {
            op_count: need("opCount")?,
            channel_id: need("channelId")?,
            nsteps: need("nsteps")?,
            nbytes: need("nbytes")?,
            chunk_size: need("chunkSize")?,
            slice_steps: need("sliceSteps")?,
            chunk_steps: need("chunkSteps")?,
            root: need("root")?,
            dtype: need("dtype")?,
            red_op: need("redOp")?,
            pattern: need("pattern")?,
            protocol: need("protocol")?,
            coll: find("coll"),
            coll_api: find("collAPI"),
            algorithm: find("algorithm"),
            reg: find("reg"),
            channel_size: find("channelSize"),
            loop_offset: find("loopOffset"),
            slices: find("specifics.bcast.sendSlices")
                .zip(find("specifics.bcast.recvSlices"))
                .map(|(sent, received)| [sent, received]),
        })
    }
}
