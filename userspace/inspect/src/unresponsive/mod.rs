//! Whatever may not answer: file systems and memory of tenants, drivers, the kernel.
//!
//! The rule is the same for all. The question is asked by a thread ([`Answerer`], [`within`]) or by a child
//! ([`end_within`], [`leave`]) and has a deadline. Whoever has not come back by then is left behind and
//! counted: once [`MAX_LEFT`] are, nobody is sent any more. A late answer is dropped. Who had no processor is
//! not counted as stuck (`deadline`). What did not answer is not asked again while somebody waits for it, nor
//! is anything else of an owner that has several such ([`Silent`]); once they have come back, and what
//! answered that it cannot be done now, is asked again after growing pauses ([`Backoff`]).

mod backoff;
mod child;
mod deadline;
mod returns;
mod silent;
mod thread;

pub use backoff::Backoff;
pub(crate) use child::{end_within, is_left};
pub use child::{leave, left_behind};
pub(crate) use deadline::{Asked, Deadline, Whom};
pub(crate) use returns::Returns;
pub use silent::Silent;
pub use thread::{Answerer, within};

/// Most children, and most threads of one kind, that may be left behind.
pub const MAX_LEFT: usize = 64;
