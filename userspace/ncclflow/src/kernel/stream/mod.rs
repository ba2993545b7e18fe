//! Moves records from the kernel's buffer to those who take them.
//!
//! A [`Drain`] does nothing but move records out of the kernel, in batches, into a bounded [`Queue`] for each
//! taker. It never waits for a taker while records can come: where a queue is full it drops, counts, and says
//! so in the stream itself.

mod batch;
mod drain;
mod mailbox;
mod order;
mod outlet;
mod perf;
mod probe_counts;
mod queue;
mod rings;
mod shares;
mod source;
mod waker;

#[cfg(test)]
mod tests;

pub use batch::{Batch, MAX_FRAME};
pub use drain::{Drain, DrainMessage, MAX_PAUSE};
pub use mailbox::{MailSender, Mailbox};
pub use outlet::Outlet;
pub use perf::PerfBuffers;
pub use probe_counts::ProbeCounts;
pub use queue::{Popped, Queue};
pub use rings::Rings;
pub use source::Source;
#[doc(hidden)]
pub use source::records_of;
pub use waker::Waker;
pub(crate) use waker::wait_for;
