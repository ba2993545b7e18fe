//! NCCL's vocabulary. The numbers of patterns, functions and data types shift between versions, so every
//! number is turned into a name by the enums of the very library that is traced, and only names go further.

mod api_function;
mod direction;
mod name;
mod named;
mod names;
mod p2p_part;
mod pat;
mod pattern;
mod protocol;
mod transport;
mod version;

pub use api_function::{ApiFunction, Argument};
pub use direction::Direction;
pub use name::Name;
pub use names::{NameTables, P2P_NAMES, P2pNames, StepState, datatype_bytes};
pub use p2p_part::p2p_part_bytes;
pub use pat::PatRule;
pub use pattern::Pattern;
pub use protocol::{Algorithm, Protocol};
pub use transport::Transport;
pub use version::{NcclVersion, Versions, find_versions};

/// FIFO slots of a connection: `NCCL_STEPS`, 8 in every version from 2.16 to 2.32 (src/include/device.h,
/// devcomm.h before).
pub const FIFO_STEPS: u64 = 8;
