//! Values of the bed's options, parsed.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

pub(crate) fn parse_stall(text: &str) -> Result<(u32, PathBuf)> {
    let (rank, file) = text.split_once('=').context("expected RANK=FILE")?;
    Ok((rank.parse()?, file.into()))
}

pub(crate) fn parse_ms(text: &str) -> Result<f64> {
    let ms: f64 = text.parse()?;
    if !(0.0..=60_000.0).contains(&ms) {
        bail!("from 0 to 60000 ms");
    }
    Ok(ms)
}

pub(crate) fn parse_pair(text: &str) -> Result<(u32, u32)> {
    let (rank, other) = text.split_once('=').context("expected RANK=NUMBER")?;
    Ok((rank.parse()?, other.parse()?))
}

pub(crate) fn parse_absent(text: &str) -> Result<(u32, u64)> {
    let (rank, after) = text.split_once('@').unwrap_or((text, "0"));
    Ok((rank.parse()?, after.parse()?))
}

pub(crate) fn parse_size_of(text: &str) -> Result<(u32, usize, u64)> {
    let (rank, rest) = text.split_once('=').context("expected RANK=BYTES@N")?;
    let (bytes, op) = rest.split_once('@').context("expected RANK=BYTES@N")?;
    Ok((rank.parse()?, bytes.parse()?, op.parse()?))
}

pub(crate) fn parse_variable(text: &str) -> Result<(String, String)> {
    let (key, value) = text.split_once('=').context("expected KEY=VALUE")?;
    if key.is_empty() {
        bail!("the variable has no name");
    }
    Ok((key.to_owned(), value.to_owned()))
}
