//! Reads the rings of a process.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cpython::Python;
use rustix::time::ClockId;
use torch::{
    Found, Library, Patience, Recorder, Tried, dtype_name,
    flight_recorder::{Entry, GroupStatus, ProcessGroup, State, Work},
};

use super::{
    find::{Build, Builds, TorchMemory},
    report::{NotesReport, RingReport},
};
use flow::schema::PythonFrame;
use inspect::{
    clock::now_ns,
    memory::{AddressSpace, Memory},
    process::{Process, printable},
    python::Runtimes,
    resolver,
};

/// Time that one process may take: a ring of 2,000 entries takes some tens of milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads torch's notes in a process; `None` if it has no torch.
pub(crate) fn look(process: &Process, builds: &mut Builds, runtimes: &Runtimes) -> Option<NotesReport> {
    let unknown = |why: String| Some(NotesReport { unknown: Some(why), ..NotesReport::default() });
    let mappings = match resolver::maps(process.pid()) {
        Ok(mappings) => mappings,
        Err(error) => return unknown(format!("its mappings cannot be read: {error}")),
    };
    let build = match builds.find(process, &mappings) {
        Ok(build) => build?,
        Err(why) => return unknown(why),
    };
    let mut report = NotesReport { torch: Some(build.release.clone()), ..NotesReport::default() };
    report.layouts_were_run = build.row.as_ref().is_ok_and(|row| row.tried == Tried::Run);
    // Programs that are not Python's can have torch, too.
    let python = runtimes.find(process).ok().flatten().map(|found| found.python);
    match rings(process, &build, python) {
        Ok(rings) => {
            report.rings = rings.into_iter().map(|(found, ring)| RingReport::new(&found, &ring)).collect();
        }
        Err(why) => report.unknown = Some(why),
    }
    report.read_ns = i64::try_from(now_ns(ClockId::Realtime)).unwrap_or(i64::MAX);
    if report.unknown.is_none() && report.rings.iter().all(|ring| !ring.enabled) {
        let why = if report.rings.is_empty() {
            torch::Unknown::NotFound.to_string()
        } else {
            is_off(&build.release)
        };
        report.unknown = Some(why);
    }
    Some(report)
}

/// Reports rings that were read already.
pub fn report_of(rings: &[(Found, Recorder)]) -> NotesReport {
    let rings = rings.iter().map(|(found, ring)| RingReport::new(found, ring)).collect();
    NotesReport { rings, ..NotesReport::default() }
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

fn rings(process: &Process, build: &Build, python: Option<Python>) -> Result<Vec<(Found, Recorder)>, String> {
    let offsets = &build.row.as_ref().map_err(ToString::to_string)?.offsets;
    let memory = TorchMemory(Memory::new(process));
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
        let found = match torch::find(&memory, Library { base }, offsets, &may_be_data, patience) {
            Ok(found) => found,
            Err(why) => {
                why_not.get_or_insert(why);
                continue;
            }
        };
        for found in found {
            match torch::read(&memory, found.address, offsets, python, patience) {
                Ok(ring) => rings.push((found, ring)),
                Err(why) => _ = why_not.get_or_insert(why),
            }
        }
    }
    // Each library that uses the template has a ring of its own, which stays empty in most.
    let is_used = |(_, ring): &(Found, Recorder)| ring.recorded > 0 || !ring.groups.is_empty();
    if rings.iter().any(is_used) {
        rings.retain(is_used);
    } else {
        rings.sort_by_key(|(_, ring)| !ring.enabled);
        rings.truncate(1);
    }
    match why_not {
        Some(why) if rings.is_empty() => Err(why.to_string()),
        _ => Ok(rings),
    }
}

impl RingReport {
    fn new(found: &Found, ring: &Recorder) -> Self {
        let noticed = |entry: &torch::Entry| entry.time_completed_ns.max(entry.time_started_ns);
        let named = ring.entries.last().and_then(|entry| entry.profiling_name.split_once(':'));
        let (mut names, mut stacks) = (HashMap::new(), HashMap::new());
        // Numbers of groups, as entries tell them.
        let mut numbers: HashMap<(&str, &str), u64> = HashMap::new();
        for entry in &ring.entries {
            numbers.insert((&entry.group_name, &entry.group_description), entry.pg_id);
        }
        let groups = ring.groups.iter().map(|group| {
            let pg_id = numbers.get(&(&*group.name, &*group.description)).copied();
            let status = pg_id.and_then(|id| ring.statuses.iter().find(|status| status.pg_id == id));
            ProcessGroup {
                name: printable(&group.name).into(),
                description: printable(&group.description).into(),
                pg_id,
                ranks: group.ranks.clone(),
                status: status.map(group_status),
            }
        });
        let groups = groups.collect();
        let entries = ring.entries.iter();
        let entries = entries.map(|entry| report_entry(entry, &mut names, &mut stacks)).collect();
        Self {
            backend: found.backend.clone().or_else(|| named.map(|(backend, _)| printable(backend))),
            enabled: ring.enabled,
            max_entries: ring.max_entries,
            recorded: ring.recorded,
            library_version: ring.library_version.as_deref().map(printable),
            torn: ring.torn,
            noticed_ns: ring.entries.iter().filter_map(noticed).max(),
            rank: ring.rank,
            groups,
            entries,
        }
    }
}

/// Makes a report's status of that in memory.
fn group_status(status: &torch::Status) -> GroupStatus {
    let work = |work: &torch::Work| Work {
        seq: work.seq,
        name: printable(&work.name),
        elements_in: work.elements_in,
        elements_out: work.elements_out,
    };
    GroupStatus {
        last_enqueued: work(&status.enqueued),
        last_started: work(&status.started),
        last_completed: work(&status.completed),
    }
}

/// Names that many entries share.
type Names = HashMap<String, Arc<str>>;

/// Stacks that many entries share, by their address in the crate `torch`.
type Stacks = HashMap<usize, Arc<[PythonFrame]>>;

/// Makes a report's entry of that in memory.
fn report_entry(entry: &torch::Entry, names: &mut Names, stacks: &mut Stacks) -> Entry {
    let dtypes = |dtypes: &[u8]| dtypes.iter().map(|dtype| dtype_name(*dtype).to_owned()).collect();
    let state = match entry.state() {
        torch::State::Scheduled => State::Scheduled,
        torch::State::Started => State::Started,
        torch::State::Completed => State::Completed,
    };
    let mut shared =
        |name: &String| Arc::clone(names.entry(name.clone()).or_insert_with(|| printable(name).into()));
    let frames = entry.frames.as_ref().map(|stack| {
        let known = stacks.entry(Arc::as_ptr(stack).addr());
        Arc::clone(known.or_insert_with(|| stack.iter().map(|frame| python_frame(frame)).collect()))
    });
    Entry {
        record_id: entry.record_id,
        pg_id: entry.pg_id,
        process_group: [&entry.group_name, &entry.group_description].map(&mut shared),
        collective_seq_id: entry.collective_seq,
        p2p_seq_id: entry.p2p_seq,
        op_id: entry.op_id,
        profiling_name: printable(&entry.profiling_name),
        input_sizes: entry.input_sizes.clone(),
        input_dtypes: dtypes(&entry.input_dtypes),
        output_sizes: entry.output_sizes.clone(),
        output_dtypes: dtypes(&entry.output_dtypes),
        state,
        time_created_ns: entry.time_created_ns,
        time_discovered_started_ns: entry.time_started_ns,
        time_discovered_completed_ns: entry.time_completed_ns,
        duration_ms: entry.duration_ms,
        timeout_ms: entry.timeout_ms,
        is_p2p: entry.is_p2p,
        retired: entry.retired,
        thread_id: entry.thread_id,
        thread_name: entry.thread_name.as_deref().map(printable),
        frames,
    }
}

fn python_frame(frame: &torch::Frame) -> PythonFrame {
    PythonFrame {
        function: printable(&frame.name),
        qualname: frame.qualname.as_deref().map(printable),
        file: printable(&frame.file),
        line: frame.line,
    }
}
