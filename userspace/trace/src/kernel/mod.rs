//! The kernel's part: the probes and what they copy ([`probe`]), how they get into the kernel ([`loader`]),
//! and how records come back ([`stream`]).

pub mod loader;
pub mod probe;
pub mod stream;
