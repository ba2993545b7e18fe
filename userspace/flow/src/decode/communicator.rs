//! The communicator that a record is of.

use super::{DecodeError, RecordView, Result};
use crate::wire::CommunicatorSpans;
use nccl_library::fields::{IntField, comm};

/// A communicator as one of its ranks' processes has it at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommunicatorId {
    /// Address of the `ncclComm`; can become another communicator's after this one is destroyed.
    pub pointer: u64,
    /// Equal on all ranks; `None` before 2.18.
    pub hash: Option<u64>,
    pub rank: i32,
    pub n_ranks: i32,
    /// NCCL's count of collectives that were launched on the communicator so far (see [`CommunicatorSpans`]).
    pub launched: Option<u64>,
}

pub(super) fn communicator(spans: &CommunicatorSpans, record: &RecordView<'_>) -> Result<CommunicatorId> {
    let launched = match (&spans.launched_per_function, &spans.posted_collectives) {
        (Some(span), _) => {
            let (counts, _) = record.bytes(span)?.as_chunks();
            Some(counts.iter().copied().map(u64::from_le_bytes).fold(0, u64::wrapping_add))
        }
        (None, posted) => record.optional(posted.as_ref())?,
    };
    let id = CommunicatorId {
        pointer: record.unsigned(&spans.pointer)?,
        hash: record.optional(spans.hash.as_ref())?,
        rank: record.int(&spans.rank)?,
        n_ranks: record.int(&spans.n_ranks)?,
        launched,
    };
    // All three are zero when the memory could not be read, and nRanks never is for a communicator in use.
    if id.n_ranks <= 0 || id.rank < 0 || id.rank >= id.n_ranks {
        return Err(DecodeError::Unreadable("the communicator"));
    }
    Ok(id)
}

places! {
    /// `ncclComm`.
    pub struct CommunicatorPlaces {
        start_magic: Option<IntField> = comm::START_MAGIC;
        end_magic: Option<IntField> = comm::END_MAGIC;
        hash: Option<IntField> = comm::HASH;
        rank: IntField = comm::RANK;
        n_ranks: IntField = comm::N_RANKS;
        local_rank: Option<IntField> = comm::LOCAL_RANK;
        node: Option<IntField> = comm::NODE;
        n_nodes: Option<IntField> = comm::N_NODES;
        cuda_dev: Option<IntField> = comm::CUDA_DEV;
        nvml_dev: Option<IntField> = comm::NVML_DEV;
        bus_id: Option<IntField> = comm::BUS_ID;
        /// Pointer to the text.
        name: Option<IntField> = comm::NAME;
    }
}
