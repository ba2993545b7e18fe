//! Places of a communicator's identity, for reading it in the target's memory.

use nccl_library::fields::{IntField, comm};

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
