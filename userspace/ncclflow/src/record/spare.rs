//! Cookies of libraries that are over, for the next file with the same build of NCCL.
//!
//! Their number is limited, while under `--all` files come and go with the environments and the containers of jobs, for months.

use crate::kernel::probe::ProbePlace;
use nccl_library::{
    elf::{BuildId, FileOffset},
    symbols::LayoutSource,
};

use super::setup::LibraryInUse;

/// What the probes of a library are, as far as cookies stand for it.
#[derive(Debug, PartialEq, Eq)]
struct Build {
    id: BuildId,
    layouts_from: LayoutSource,
    probes: Vec<(String, FileOffset, ProbePlace)>,
}

impl Build {
    /// A library that does not say which build it is is like no other.
    fn of(library: &LibraryInUse) -> Option<Self> {
        let probes = library.probes.probes.iter();
        Some(Self {
            id: library.resolution.build_id.clone()?,
            layouts_from: library.resolution.layouts_from,
            probes: probes.map(|probe| (probe.symbol.clone(), probe.file_offset, probe.place())).collect(),
        })
    }
}

/// The cookies of a library that is over. It does not hold the file.
#[derive(Debug)]
pub(super) struct Spare {
    build: Build,
    pub(super) cookies: Vec<u32>,
}

impl Spare {
    pub(super) fn of(library: &LibraryInUse, cookies: Vec<u32>) -> Option<Self> {
        Some(Self { build: Build::of(library)?, cookies })
    }

    /// Whether the cookies can stand for this library's probes.
    pub(super) fn fits(&self, library: &LibraryInUse) -> bool {
        Build::of(library).is_some_and(|build| build == self.build)
    }
}
