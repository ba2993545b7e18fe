//! What was measured of an op, against what was planned.

use super::named::named;

named! {
    /// How an op came out, where its messages are measured. In the order of the names: so are keys of JSON
    /// objects.
    #[derive(PartialOrd, Ord, Hash)]
    Outcome {
        /// As many messages as planned came to their end; of those whose size was seen, each has as many
        /// bytes as planned, or, where a capacity is planned, not more.
        AsPlanned = "as_planned",
        /// Given up: too many ops were on their way, as in a job that hangs.
        GivenUp = "given_up",
        /// `--steps-every`, `--channels` or `--min-bytes` left it out.
        LeftOut = "left_out",
        /// How many messages it has is not known.
        MessagesUnknown = "messages_unknown",
        /// All messages came to their end, and one had another size.
        OtherBytes = "other_bytes",
        /// Another process's proxy executes it (PXN), and no recorded process has told that it is that one,
        /// or more than one has.
        ProxyNotKnown = "proxy_not_known",
        /// Records of its process were lost while it ran: ncclflow misses them, not the job.
        RecordsLost = "records_lost",
        /// In a part of a recording: messages were on their way at its end, and what came later was not read.
        SelectionEnded = "selection_ended",
        /// Messages were on their way when the session ended: the job goes on, hangs, has aborted or is gone.
        SessionEnded = "session_ended",
        /// It has more messages than are kept.
        TooManyMessages = "too_many_messages",
    }
}
