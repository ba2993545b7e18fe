//! Encoding of records in a recording: the same bytes in a fraction of the room.
//!
//! Records of one probe are alike, and a training step is like the one before. So a block of records is
//! stored by columns ([`columns`]): values that do not change, or change by the same amount each time, cost
//! next to nothing, and any general method compresses the rest well. Encoding is lossless for records of any
//! content: [`decode_records`] gives back the bytes that [`encode_records`] was given. [`block`] compresses
//! blocks and verifies their checksums; nothing here touches files.

mod batch;
mod block;
mod columns;
mod contents;
mod known;
mod members;
mod records;
mod varint;

pub use batch::{Batch, MAX_FRAME};
pub use block::{Block, BlockAbout, BlockHeader, BlockKind, HEADER_BYTES, MAX_BODY, MAX_INDEX, append_block};
pub use contents::{
    Binding, BoundCookies, Event, FirstHit, LostRecords, NewBindings, RemovedRecords, Session,
};
pub use known::{Known, MAX_KNOWN};
pub use members::{Member, MemberRank, Members, communicator_spans};
pub use records::{RecordsError, decode_records, encode_records};
