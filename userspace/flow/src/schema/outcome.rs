//! What was measured of an op, against what was planned.

use serde::{Deserialize, Serialize};

/// How an op came out, where its messages are measured. In the order of the names: so are keys of JSON
/// objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As many messages as planned came to their end; of those whose size was seen, each has as many bytes as
    /// planned, or, where a capacity is planned, not more.
    AsPlanned,
    /// Given up: too many ops were on their way, as in a job that hangs.
    GivenUp,
    /// `--steps-every`, `--channels` or `--min-bytes` left it out.
    LeftOut,
    /// How many messages it has is not known.
    MessagesUnknown,
    /// All messages came to their end, and one had another size.
    OtherBytes,
    /// Another process's proxy executes it (PXN), and no recorded process has told that it is that one, or
    /// more than one has.
    ProxyNotKnown,
    /// Records of its process were lost while it ran: ncclflow misses them, not the job.
    RecordsLost,
    /// In a part of a recording: messages were on their way at its end, and what came later was not read.
    SelectionEnded,
    /// Messages were on their way when the session ended: the job goes on, hangs, has aborted or is gone.
    SessionEnded,
    /// It has more messages than are kept.
    TooManyMessages,
}
