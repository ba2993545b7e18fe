//! Outcome of an op: what was measured against what was planned.

use super::named::named;

named! {
    /// Outcome of an op whose messages are measured. Variants are in the order of their names, as keys of
    /// JSON objects are.
    #[derive(PartialOrd, Ord, Hash)]
    Outcome {
        /// All planned messages came to their end; each of those whose size was seen has as many bytes as
        /// planned, or, where a capacity is planned, not more.
        AsPlanned = "as_planned",
        /// Measuring was given up: too many ops were on their way, as in a job that hangs.
        GivenUp = "given_up",
        /// Left out by `--steps-every`, `--channels` or `--min-bytes`.
        LeftOut = "left_out",
        /// The number of the op's messages is not known.
        MessagesUnknown = "messages_unknown",
        /// All messages came to their end, and one had another size.
        OtherBytes = "other_bytes",
        /// Another process's proxy executes a part of the op (PXN), and no recorded process claims to be that
        /// process, or several do.
        ProxyNotKnown = "proxy_not_known",
        /// Records of the op's process were lost while the op ran: ncclflow misses them, not the job.
        RecordsLost = "records_lost",
        /// Messages were on their way at the end of the part of a recording that was read; what came later
        /// was not read.
        SelectionEnded = "selection_ended",
        /// Messages were on their way when the session ended: the job goes on, hangs, has aborted or is gone.
        SessionEnded = "session_ended",
        /// The op has more messages than are kept.
        TooManyMessages = "too_many_messages",
    }
}
