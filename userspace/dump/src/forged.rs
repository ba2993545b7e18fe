//! A dump of memory that somebody has made up, for fuzzing.

use std::{collections::BTreeSet, sync::Arc};

use nccl_library::{layouts::Layouts, nccl::NcclVersion};

use super::{
    DumpReport, SCHEMA, communicator, communicators, motion,
    process::{Found, Layout, Target},
    verdict,
};
use inspect::{
    host::host_name,
    memory::{AddressSpace, Memory, ReadError, ScanLimits},
    process::{Process, maps::Mapping},
};

/// Looks for communicators in these mappings of a process, reads them twice and judges.
///
/// # Errors
/// The layouts lack what a dump needs, or the process cannot be read.
pub fn dump_of_forged_memory(
    process: Process,
    layouts: &Layouts,
    version: NcclVersion,
    mappings: &[Mapping],
) -> anyhow::Result<DumpReport> {
    let layout = Arc::new(Layout::of(layouts, Some(version))?);
    let space = AddressSpace::of(mappings);
    let memory = Memory::new(&process);
    let (found, _) =
        communicator::find(memory, &layout.comm, &space, ScanLimits::default(), false, &mut |_| ())?;
    let found = found.into_iter().map(|comm| Found::new(comm, &layout, Some(version.to_string()), None));
    let target = Target::made(process, found.collect());
    let readings = (0..2).map(|_| {
        let ranks = target.read_in(&space)?;
        Ok(motion::Reading { at: std::time::Instant::now(), ranks })
    });
    let ranks = motion::over(readings.collect::<Result<Vec<_>, ReadError>>()?);
    let communicators = communicators(ranks, &[]);
    Ok(DumpReport {
        schema: SCHEMA,
        hosts: vec![host_name()],
        job: verdict::over_all(&communicators),
        communicators,
        ..DumpReport::default()
    })
}

impl Target {
    fn made(process: Process, found: Vec<Found>) -> Self {
        Self {
            process,
            report: super::ProcessReport::default(),
            found,
            inodes: BTreeSet::new(),
            started: None,
            samples: Vec::new(),
        }
    }
}
