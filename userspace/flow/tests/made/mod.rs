//! Events and flow records made by hand, for tests of this crate and of those that build on it.

pub mod calls;
pub mod elsewhere;
pub mod ops;
pub mod rows;
