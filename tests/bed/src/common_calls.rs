//! Calls that all ranks of a communicator must make, and that only some make.

use anyhow::{Context as _, Result};
use clap::ValueEnum;

/// A call, made by some ranks.
#[derive(Debug, Clone)]
pub(crate) struct CommonCall {
    pub(crate) ranks: Vec<u32>,
    pub(crate) call: CommonCallKind,
    pub(crate) comm: usize,
    /// Operation before which it is made.
    pub(crate) at: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum CommonCallKind {
    Split,
    /// A split that leaves this rank out (`NCCL_SPLIT_NOCOLOR`).
    SplitOut,
    Finalize,
    Destroy,
}

/// Reads `RANK,…=CALL:COMM@N`.
pub(crate) fn parse(text: &str) -> Result<CommonCall> {
    let expected = "expected RANK,…=CALL:COMM@N";
    let (ranks, rest) = text.split_once('=').context(expected)?;
    let (call, rest) = rest.split_once(':').context(expected)?;
    let (comm, at) = rest.split_once('@').context(expected)?;
    let ranks = ranks.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let call = CommonCallKind::from_str(call, false).map_err(anyhow::Error::msg)?;
    Ok(CommonCall { ranks, call, comm: comm.parse()?, at: at.parse()? })
}
