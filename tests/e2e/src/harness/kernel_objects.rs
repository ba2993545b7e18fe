//! BPF programs and links of a process, and whether the kernel still has them.

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result};

/// Ids of kernel objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelObjects {
    pub programs: BTreeSet<u32>,
    pub links: BTreeSet<u32>,
}

/// What the process holds, as the kernel says in `/proc/PID/fdinfo`.
pub fn of_process(pid: u32) -> Result<KernelObjects> {
    let mut objects = KernelObjects::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).context("listing the tracer's descriptors")? {
        // A descriptor can be closed while we look.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let number =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u32>().ok());
        objects.programs.extend(number("prog_id:"));
        objects.links.extend(number("link_id:"));
    }
    Ok(objects)
}

impl KernelObjects {
    /// Those of these that the kernel still has.
    pub fn still_there(&self) -> Result<Self> {
        let mut left = Self::default();
        // One that vanishes between its number and its descriptor, another tracer's for instance, is not there.
        left.programs
            .extend(aya::programs::loaded_programs().filter_map(Result::ok).map(|program| program.id()));
        left.links.extend(aya::programs::loaded_links().filter_map(Result::ok).map(|link| link.id()));
        left.programs.retain(|id| self.programs.contains(id));
        left.links.retain(|id| self.links.contains(id));
        Ok(left)
    }
}
