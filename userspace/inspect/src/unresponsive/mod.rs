//! Whatever may not answer: file systems and memory of tenants, drivers, the kernel.
//!
//! The rule is the same for all. The question is asked by a thread ([`Answerer`], [`within`]) or by a child
//! ([`end_within`], [`leave`]) and has a deadline. Whoever has not come back by then is left behind and
//! counted: once [`MAX_LEFT`] are, nobody is sent any more. A late answer is dropped. What did not answer is
//! not asked again, nor is anything else of an owner that has several such ([`Silent`]). What answered that
//! it cannot be done now is asked again after growing pauses ([`Backoff`]).

mod backoff;
mod child;
mod silent;
mod thread;

pub use backoff::Backoff;
pub(crate) use child::end_within;
pub use child::{leave, left_behind};
pub use silent::Silent;
pub use thread::{Answerer, within};

/// Most children, and most threads of one kind, that may be left behind.
pub const MAX_LEFT: usize = 64;
