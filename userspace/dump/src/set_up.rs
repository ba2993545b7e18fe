//! Progress of a communicator's set-up: which ranks wait for whose handshake (src/bootstrap.cc).
//!
//! Each rank tells the root where it listens, and gets from the root where the next rank of a ring does. It
//! connects to that one, and is connected to by the one before. Then all tell each other their addresses
//! along the ring. From 2.23 on the root answers a rank as soon as the next one has come, before when all
//! have.

use serde::{Deserialize, Serialize};

use super::{
    RankReport,
    places::{self, Places, Wanted},
};
use flow::known;
use inspect::memory::Memory;
use nccl_library::{
    fields::{bootstrap_state, comm},
    layouts::Layouts,
};

/// A set-up that is not done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetUp {
    /// Stage; null where the library's layouts do not tell.
    #[serde(default, deserialize_with = "known")]
    pub stage: Option<Stage>,
}

/// Stages of a rank's set-up, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// The rank has made nothing but the communicator's memory.
    Beginning,
    /// The rank waits for the address of the next rank, or is connecting to it.
    NextRank,
    /// The rank waits for the rank before it to connect.
    PreviousRank,
    /// The rank has both neighbours, and waits for the addresses of all ranks, which go along the ring.
    Exchange,
    /// The rank knows all ranks, and makes the connections for collectives.
    Connecting,
}

/// `ncclSocketStateConnected` to `ncclSocketStateReady`: the states of a connected socket
/// (src/include/socket.h).
const CONNECTED: std::ops::RangeInclusive<u64> = 6..=7;
/// The last of the states.
const LAST_STATE: u64 = 10;

/// Rank, number of ranks, state of the socket to the next rank, and addresses.
const STATE: [Wanted; 4] = [
    (bootstrap_state::RANK, true),
    (bootstrap_state::N_RANKS, true),
    (bootstrap_state::NEXT_STATE, true),
    (bootstrap_state::ADDRESSES, true),
];

#[derive(Debug)]
pub(super) struct SetUpLayout {
    /// State of the bootstrap, and table of the ranks.
    comm: Places<2>,
    state: Option<Places<4>>,
}

impl SetUpLayout {
    pub(super) fn new(layouts: &Layouts) -> Self {
        Self {
            comm: [comm::BOOTSTRAP, comm::PEER_INFO].map(|field| field.find_int(layouts)),
            state: places::find(STATE, layouts).ok(),
        }
    }

    /// Reads the set-up; `None` if it is done, or has failed.
    pub(super) fn read(&self, memory: Memory<'_>, comm: &RankReport) -> Option<SetUp> {
        let is_open = is_open(comm.status.init.as_deref(), comm.n_channels);
        is_open.then(|| SetUp { stage: self.stage(memory, comm) })
    }

    fn stage(&self, memory: Memory<'_>, comm: &RankReport) -> Option<Stage> {
        let [bootstrap, peers] = places::read(memory, comm.address, self.comm).ok()?;
        match (bootstrap?, peers?) {
            (0, _) => return Some(Stage::Beginning),
            (_, 0) => {}
            _ => return Some(Stage::Connecting),
        }
        let [rank, n_ranks, next, addresses] = places::read(memory, bootstrap?, self.state?).ok()?;
        // The struct is proven by what it must have in common with the communicator.
        let is_own = rank? == u64::from(comm.rank) && n_ranks? == u64::from(comm.n_ranks);
        is_own.then(|| stage_of(next?, addresses? != 0)).flatten()
    }
}

/// Tells whether a set-up goes on, by the name of its result and the number of channels: the result is
/// `ncclInProgress` until it is done or, of some, `ncclInternalError` (see [`comm::INIT_STATE`]).
pub(super) fn is_open(init: Option<&str>, n_channels: u32) -> bool {
    match init {
        Some("ncclInProgress") => true,
        Some("ncclInternalError") => n_channels == 0,
        _ => false,
    }
}

/// Tells the stage by the state of the socket to the next rank, and by whether the addresses are there.
fn stage_of(next: u64, has_addresses: bool) -> Option<Stage> {
    match (CONNECTED.contains(&next), has_addresses) {
        (true, true) => Some(Stage::Exchange),
        (true, false) => Some(Stage::PreviousRank),
        (false, false) if next <= LAST_STATE => Some(Stage::NextRank),
        // Connections over another network (NCCL_OOB_NET_ENABLE) have no sockets.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_stage_that_a_newer_version_knows_is_none_that_is_known() {
        let read = |text| serde_json::from_str::<super::SetUp>(text).unwrap().stage;
        assert_eq!(read(r#"{"stage": "exchange"}"#), Some(super::Stage::Exchange));
        assert_eq!(read(r#"{"stage": "dancing"}"#), None);
        assert_eq!(read(r#"{"stage": null}"#), None);
    }

    use super::*;

    #[test]
    fn stages_are_told_by_the_socket_and_the_addresses() {
        assert_eq!(stage_of(0, false), Some(Stage::NextRank));
        assert_eq!(stage_of(5, false), Some(Stage::NextRank));
        assert_eq!(stage_of(7, false), Some(Stage::PreviousRank));
        assert_eq!(stage_of(7, true), Some(Stage::Exchange));
        // Contradictory values tell nothing.
        assert_eq!((stage_of(0, true), stage_of(0x1234, false)), (None, None));
    }
}
