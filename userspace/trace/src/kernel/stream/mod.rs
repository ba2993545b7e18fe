//! Moves records from the kernel's buffer to those who take them.
//!
//! A [`Drain`] does nothing but move records out of the kernel, in batches, into a bounded [`Queue`] for each
//! taker. It never waits for a taker while records can come: where a queue is full it drops, counts, and says
//! so in the stream itself.
//!
//! Waking the drain costs the job microseconds. The kernel side wakes it only when a quarter of a ring
//! buffer, 4 MiB at most, is filled: the record that passes the mark does, and the next ones do not until the
//! drain has come. A timer fetches smaller amounts: every 50 ms while records come, every 500 ms while none
//! do. The perf event array wakes the drain for each record, so it waits to be woken only while no records
//! come.
//!
//! Records are in the order of their reservations in the ring buffer of their process. Ranks of a host launch
//! at the same moment and a ring buffer has one lock, so up to eight processes have one each (`--all`: four
//! buffers).
//!
//! A mark in the stream replaces records that were dropped. What walks send only once for a communicator is
//! then sent again. At the end, when nothing more can come, the drain does wait for its takers.

mod consumer_queue;
mod drain;
mod mailbox;
mod moved;
mod order;
mod perf;
mod probe_counts;
mod queue;
mod rings;
mod shares;
mod source;
mod waker;

#[cfg(test)]
mod tests;

pub use consumer_queue::Outlet;
pub use drain::{Drain, DrainMessage, MAX_PAUSE};
pub use mailbox::{MailSender, Mailbox};
pub use moved::Moved;
pub use perf::PerfBuffers;
pub use probe_counts::ProbeCounts;
pub use queue::{Popped, Queue, Room};
pub use rings::Rings;
pub use source::Source;
#[doc(hidden)]
pub use source::records_of;
pub use waker::{Waker, wait_for};
