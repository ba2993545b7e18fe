//! Estimates of the memory that a model holds: by number of entries, not byte by byte. They are good enough
//! to tell who holds most, and that all models together hold no more than they may.

use super::flow::{FlowRecord, PeerFlow};

/// Bytes of an op, with as many peers as most ops have.
pub(super) const RECORD_BYTES: usize = size_of::<FlowRecord>() + 2 * size_of::<PeerFlow>();

/// Bytes of a map's entry of a few numbers.
pub(super) const WORDS_BYTES: usize = 64;
