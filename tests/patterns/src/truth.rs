//! The line that is written for each op.

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::cases::Case;
use crate::expected::Call;

/// A line of the truth.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Told {
    /// In ncclflow's spelling: `RING_TWICE`.
    pub(crate) pattern: String,
    /// What NCCL runs; `None` where the version's ops do not say.
    pub(crate) coll: Option<&'static str>,
    /// The function that was called; `None` where the version's ops do not say.
    pub(crate) coll_api: Option<&'static str>,
    pub(crate) channel: usize,
    pub(crate) root: i32,
    /// In the plan pass, where the op was not posted; final where it was.
    pub(crate) op_count: u64,
    pub(crate) posted: bool,
    pub(crate) slice_steps: u32,
    pub(crate) chunk_steps: u32,
    /// Of the communicator. Peers from this number on are none.
    pub(crate) ranks: i32,
    /// In the order of the calls.
    pub(crate) calls: Vec<Call>,
}

/// `RING_TWICE` for `RingTwice`.
pub(crate) fn pattern_name(enumerator: &str) -> String {
    let mut name = String::new();
    for char in enumerator.chars() {
        if char.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(char.to_ascii_uppercase());
    }
    name
}

/// The calls with the numbers of steps that the library itself gave to what it queued. They must be the
/// expected ones.
pub(crate) fn agreed(case: &Case, expected: &[Call], queued: &[(bool, i32, i32, u32)]) -> Result<Vec<Call>> {
    let mut queued = queued.iter();
    let mut calls = expected.to_vec();
    for call in calls.iter_mut().filter(|call| call.proxy) {
        let (sends, peer, conn_index, nsteps) = *queued.next().context("the library queued less")?;
        if (sends, peer, conn_index) != (call.sends, call.peer, call.conn_index)
            || call.nsteps.is_some_and(|expected| expected != nsteps)
        {
            bail!("the library queued {nsteps} steps to or from {peer} ({conn_index}), expected {call:?}");
        }
        call.nsteps = Some(nsteps);
    }
    // An op without a proxy is not queued, so its steps cannot be read back.
    if case.is_pat() && calls.iter().any(|call| call.nsteps.is_none()) {
        calls.retain(|call| call.proxy);
    }
    match queued.next() {
        Some(more) => bail!("the library also queued {more:?}"),
        None => Ok(calls),
    }
}
