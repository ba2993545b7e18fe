//! What was measured of an op, against what was planned.

use serde::Serialize;

use super::{BytesKind, FlowRecord, transfers};

/// How an op came out, where its messages are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As many messages as planned came to their end; of those whose size was seen, each has as many bytes as planned, or, where a
    /// capacity is planned, not more.
    AsPlanned,
    /// All messages came to their end, and one had another size.
    OtherBytes,
    /// Messages were on their way when the session ended: the job goes on, hangs, has aborted or is gone.
    SessionEnded,
    /// Records of its process were lost while it ran: what is missing is ours.
    RecordsLost,
    /// Given up: too many ops were on their way, as in a job that hangs.
    GivenUp,
    /// It has more messages than are kept.
    TooManyMessages,
    /// How many messages it has is not known.
    MessagesUnknown,
    /// Another process's proxy executes it (PXN), and no recorded process has told that it is that one, or more than one has.
    ProxyNotKnown,
    /// Its number was left out by what was asked for.
    LeftOut,
}

/// Of an op of which every message has come to its end.
pub(super) fn of_whole(record: &FlowRecord) -> Outcome {
    let agrees = record.peers.iter().all(|peer| {
        let Some(measured) = &peer.measured else { return true };
        transfers(record, peer).zip(&measured.messages).all(|(planned, message)| match message.bytes {
            None => true,
            Some(bytes) if planned.bytes_kind == BytesKind::Exact => bytes == planned.bytes,
            Some(bytes) => bytes <= planned.bytes,
        })
    });
    if agrees { Outcome::AsPlanned } else { Outcome::OtherBytes }
}
