//! Recordings, read: files for other programs ([`export`]), findings ([`check`]), a page for people
//! ([`report`]). It needs no root, no kernel and no process.

// What is read.
mod sources;

// From rows to verdicts.
mod code_lines;
mod in_order;
mod iterations;
mod not_recorded;

pub mod slow;

pub mod check;

pub mod export;

pub mod report;
