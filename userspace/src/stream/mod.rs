//! From the kernel's ring buffer to whoever takes the records.

mod drain;

pub use drain::{Drain, Pause, Waker};
