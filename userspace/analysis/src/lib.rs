//! Recordings, read: files for other programs ([`export`]), findings ([`check`]), a page for people
//! ([`report`]). It needs no root, no kernel and no process.

pub mod export;

// From rows to verdicts.
mod in_order;
mod iterations;
mod not_recorded;

pub mod slow;

pub mod check;

pub mod report;
