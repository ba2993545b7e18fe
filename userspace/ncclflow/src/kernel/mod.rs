//! The kernel's part: what is probed and copied ([`probe`]), how it gets there ([`loader`]), and how
//! records come back ([`stream`]).

pub mod loader;
pub mod probe;
pub mod stream;
