//! Finds the torch that a process has loaded, and its libraries.

use std::{collections::BTreeMap, os::unix::ffi::OsStrExt as _};

use cpython::Unreadable;
use nccl_library::elf::RuntimeAddr;
use torch::{ShippedRow, Version};

use inspect::{
    memory::Memory,
    process::{Process, maps::Mapping, printable},
    resolver,
};

/// Memory of a process, in the form that the crate `torch` reads it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TorchMemory<'p>(pub(super) Memory<'p>);

impl cpython::Memory for TorchMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read(RuntimeAddr(address), into).map_err(|_| Unreadable(address))
    }
}

impl torch::Memory for TorchMemory<'_> {
    fn gather(&self, pieces: &[(u64, usize)]) -> Result<Vec<u8>, Unreadable> {
        let first = pieces.first().map_or(0, |(at, _)| *at);
        let pieces: Vec<(RuntimeAddr, usize)> =
            pieces.iter().map(|(at, length)| (RuntimeAddr(*at), *length)).collect();
        self.0.gather(&pieces).map_err(|_| Unreadable(first))
    }
}

/// A torch that is loaded.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    /// Version as `torch/version.py` states it: `2.11.0+cu130`.
    pub(super) release: String,
    /// Layouts of this version, or why they are not known.
    pub(super) row: Result<ShippedRow, torch::Unknown>,
    /// Base addresses of libtorch_cuda.so, for collectives on GPUs, and of libtorch_cpu.so, for the others.
    pub(super) cuda: Option<u64>,
    pub(super) cpu: Option<u64>,
}

/// Versions of files that were read before: the processes of a job map the same ones.
#[derive(Debug, Default)]
pub struct Builds {
    /// Version, by device and inode of the library whose folder has the file.
    releases: BTreeMap<((u32, u32), u64), Result<String, String>>,
}

impl Builds {
    /// Finds the torch of a process; `None` if it has none.
    ///
    /// # Errors
    /// A sentence that says why a torch that is loaded is not understood.
    pub(super) fn find(&mut self, process: &Process, mappings: &[Mapping]) -> Result<Option<Build>, String> {
        let first = |name: &[u8]| {
            let is_it = |mapping: &&Mapping| {
                mapping.inode != 0
                    && mapping.file_offset.0 == 0
                    && mapping.path.file_name().is_some_and(|found| found.as_bytes() == name)
            };
            mappings.iter().find(is_it)
        };
        let (cuda, cpu) = (first(b"libtorch_cuda.so"), first(b"libtorch_cpu.so"));
        let Some(library) = cuda.or(cpu) else { return Ok(None) };
        let ask = || release(process, library);
        let release = self.releases.entry((library.device, library.inode)).or_insert_with(ask).clone()?;
        let version = Version::from_release(&release);
        let row = version.and_then(torch::shipped).ok_or(torch::Unknown::Version(version));
        let base = |mapping: Option<&Mapping>| mapping.map(|mapping| mapping.start.0);
        Ok(Some(Build { release, row, cuda: base(cuda), cpu: base(cpu) }))
    }
}

fn release(process: &Process, library: &Mapping) -> Result<String, String> {
    let name = || printable(&library.path.to_string_lossy());
    let text = resolver::package_version(process, library)
        .map_err(|error| format!("`version.py` beside `{}` cannot be read: {error}", name()))?;
    torch::release_of(&String::from_utf8_lossy(&text))
        .ok_or_else(|| format!("`version.py` beside `{}` states no version", name()))
}
