//! Looks into a process: has the kernel put a breakpoint there?

use std::{fs::File, os::unix::fs::FileExt as _, path::Path, process::Command};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::schemas::assert_valid;

/// The x86-64 breakpoint instruction, which a uprobe places.
pub const BREAKPOINT: u8 = 0xcc;

/// Addresses of the first byte of `functions` in the file of `library`.
pub fn function_addresses(ncclflow: &Path, library: &Path, functions: &[&str]) -> Result<Vec<u64>> {
    let output = Command::new(ncclflow).args(["symbols", "--json"]).arg(library).output()?;
    let json: Value = serde_json::from_slice(&output.stdout).context("reading `ncclflow symbols --json`")?;
    assert_valid("symbols", &json);
    functions
        .iter()
        .map(|function| {
            let vaddr = &json["functions"][function][0]["vaddr"];
            vaddr.as_u64().with_context(|| format!("`{function}` is not in {}", library.display()))
        })
        .collect()
}

/// First byte at each of these addresses of the library, as the process has it now.
pub fn first_bytes(pid: u32, library: &Path, addresses: &[u64]) -> Result<Vec<u8>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let name = library.to_string_lossy().into_owned();
    let base = maps
        .lines()
        .find(|line| line.ends_with(&name))
        .and_then(|line| u64::from_str_radix(line.split('-').next()?, 16).ok())
        .with_context(|| format!("process {pid} has not mapped {name}"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    addresses
        .iter()
        .map(|address| {
            let mut byte = [0];
            memory.read_exact_at(&mut byte, base + address).context("reading the process's memory")?;
            Ok(byte[0])
        })
        .collect()
}
