//! Reads the rings of a process.

use std::time::Duration;

use cpython::Python;
use rustix::time::ClockId;
use torch::{NO_RECORDER, Patience, RingReport, Tried};

use super::{Builds, NotesReport, find::Build};
use inspect::{
    clock::now_ns,
    memory::AddressSpace,
    process::{Process, why_unread},
    python::{Runtimes, TargetMemory},
    resolver,
};

/// Time that one process may take: a ring of 2,000 entries takes some tens of milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads torch's notes in a process; `None` if it has no torch.
pub(crate) fn look(process: &Process, builds: &mut Builds, runtimes: &Runtimes) -> Option<NotesReport> {
    let unknown = |why: String| Some(NotesReport { unknown: Some(why), ..NotesReport::default() });
    let mappings = match resolver::maps(process.pid()) {
        Ok(mappings) => mappings,
        Err(error) => return unknown(format!("its mappings cannot be read{}", why_unread(&error))),
    };
    let build = match builds.find(process, &mappings) {
        Ok(build) => build?,
        Err(why) => return unknown(why),
    };
    // Programs that are not Python's can have torch, too.
    let python = runtimes.find(process).ok().flatten().map(|found| found.python);
    let (rings, unknown) = match rings(process, &build, python) {
        Ok(rings) if rings.is_empty() => (rings, Some(NO_RECORDER.to_string())),
        Ok(rings) if rings.iter().all(|ring| !ring.enabled) => (rings, Some(is_off(&build.release))),
        Ok(rings) => (rings, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    Some(NotesReport {
        layouts_were_run: build.row.as_ref().is_ok_and(|row| row.tried == Tried::Run),
        torch: Some(build.release),
        read_ns: i64::try_from(now_ns(ClockId::Realtime)).unwrap_or(i64::MAX),
        rings,
        unknown,
    })
}

/// Says that the flight recorder is off. By the headers of its releases, torch takes notes by default from
/// 2.11 on.
fn is_off(release: &str) -> String {
    let by_default =
        torch::Version::from_release(release).is_some_and(|version| version < torch::Version::new(2, 11));
    let why = if by_default { ", as is usual before torch 2.11" } else { "" };
    format!(
        "torch {release}'s flight recorder is off{why}: start the job with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 in its \
         environment"
    )
}

fn rings(process: &Process, build: &Build, python: Option<Python>) -> Result<Vec<RingReport>, String> {
    let offsets = &build.row.as_ref().map_err(ToString::to_string)?.offsets;
    let memory = TargetMemory::new(process);
    let space = AddressSpace::read(process).map_err(|error| error.to_string())?;
    let mut regions: Vec<(u64, u64)> =
        space.regions.iter().map(|region| (region.start, region.end)).collect();
    regions.sort_unstable();
    let may_be_data = |address: u64| {
        let after = regions.partition_point(|(start, _)| *start <= address);
        after.checked_sub(1).and_then(|before| regions.get(before)).is_some_and(|(_, end)| address < *end)
    };
    let patience = Patience::of(PATIENCE);
    // Up to 2.7 only collectives on GPUs are noted.
    let cpu = build.cpu.filter(|_| offsets.version >= torch::Version::new(2, 8));
    let (mut rings, mut why_not) = (Vec::new(), None);
    for base in build.cuda.into_iter().chain(cpu) {
        let found = match torch::find(&memory, base, offsets, &may_be_data, patience) {
            Ok(found) => found,
            Err(why) => {
                why_not.get_or_insert(why);
                continue;
            }
        };
        for found in found {
            match torch::read(&memory, found.address, offsets, python, patience) {
                Ok(ring) => rings.push(RingReport { backend: found.backend.or(ring.backend), ..ring }),
                Err(why) => _ = why_not.get_or_insert(why),
            }
        }
    }
    // Each library that uses the template has a ring of its own, which stays empty in most.
    let is_used = |ring: &RingReport| ring.recorded > 0 || !ring.groups.is_empty();
    if rings.iter().any(is_used) {
        rings.retain(is_used);
    } else {
        rings.sort_by_key(|ring| !ring.enabled);
        rings.truncate(1);
    }
    match why_not {
        Some(why) if rings.is_empty() => Err(why.to_string()),
        _ => Ok(rings),
    }
}
