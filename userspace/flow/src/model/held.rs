//! How much memory a model holds, about. It is counted by what it keeps and not byte by byte: good enough to tell
//! who holds most, and that all together hold no more than they may.

use super::flow::{FlowRecord, PeerFlow};

/// Of an op, with the peers that most ops have.
pub(super) const RECORD_BYTES: usize = size_of::<FlowRecord>() + 2 * size_of::<PeerFlow>();

/// Of an entry of a map that has some numbers.
pub(super) const WORDS_BYTES: usize = 64;
