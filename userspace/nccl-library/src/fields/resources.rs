//! What communicators share that were split from each other.

use super::field_ref::fields;

fields! {
    /// State that communicators share which were split from each other (src/include/comm.h).
    Both shared_resources = "ncclSharedResources", lost "op counters that split communicators share" {
        /// Count of collectives that were launched: see [`crate::fields::counts_always`] for which.
        COLL_OP_COUNT = "collOpCount" since "2.18";
        /// Count of plans that CUDA graphs hold.
        PERSISTENT_REFS = "persistentRefs" since "2.26";
        /// Count of sends and receives that were launched, a `uint64_t` for each channel.
        P2P_OP_COUNT = "p2pOpCount" since "2.18";
        /// Pointer to the communicator that made them, by whose ranks GIN counts.
        OWNER = "owner" since "2.18";
        /// The first [`super::gin_dev_comm`].
        GIN_DEV_COMMS = "ginState.devComms" since "2.30";
        /// [`super::GIN_BY_PROXY`], or another way.
        GIN_TYPE = "ginState.ginType" since "2.28.7" until "2.30";
        /// Ways of GIN, of which each [`super::gin_dev_comm`] has one, and the type of the first.
        GIN_BACKENDS = "ginState.backends" since "2.31";
        GIN_BACKEND_TYPE = "ginState.backends.ginType" since "2.31";
    }
}
