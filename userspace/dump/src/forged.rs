//! A dump of memory that somebody has made up, for fuzzing.

use std::{collections::BTreeSet, sync::Arc};

use nccl_library::{layouts::Layouts, nccl::NcclVersion};

use super::{
    DumpReport, ProcessReport, budget::Budget, communicator, libraries::Layout, motion, process::Target,
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
    let mut target = Target::new(process, ProcessReport::default());
    target.add(found, &layout);
    let readings = (0..2).map(|_| {
        let ranks = target.read_in(&space, &mut BTreeSet::new(), &mut Budget::default())?;
        Ok(motion::Reading { at: std::time::Instant::now(), ranks })
    });
    let mut ranks = motion::over(readings.collect::<Result<Vec<_>, ReadError>>()?);
    target.look_at_nics(&mut ranks, &[]);
    Ok(DumpReport { hosts: vec![host_name()], ..DumpReport::judged(ranks, Vec::new()) })
}
