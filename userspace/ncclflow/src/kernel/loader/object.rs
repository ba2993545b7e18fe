//! The embedded eBPF object in the kernel: its maps, its programs, and links to them.

use std::{collections, fmt};

use anyhow::{Context as _, Result};
use aya::{
    Pod,
    maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, PerfEventArray, RingBuf},
};
use aya_log::EbpfLogger;
use log::Log;
use ncclflow_common::{
    FetchPlan, MAX_RINGS, ProbeCounters, SCRATCH_SLOTS, Seen, WIRE_VERSION, Walk, loss_slot, wakeup_bytes,
};

use super::{
    bpf,
    buffer::{Buffer, BufferKind},
    image::{self, Programs, Settings},
    link::{self, Link, LinkError, LinkKind, Place, Site},
};
use crate::kernel::stream::{PerfBuffers, Rings, Source};

/// Built by `cargo xtask build-ebpf`, checked by the build script.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ncclflow.o"));

/// [`FetchPlan`] as a value of aya's maps.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct PlanValue(FetchPlan);

/// [`Walk`] as a value of aya's maps.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct WalkValue(Walk);

/// [`ProbeCounters`] as a value of aya's maps.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct CountersValue(pub(crate) ProbeCounters);

// SAFETY: repr(C) of integers without padding, so any bytes are a value and every byte is initialised.
unsafe impl Pod for PlanValue {}
// SAFETY: as above.
unsafe impl Pod for WalkValue {}
// SAFETY: as above.
unsafe impl Pod for CountersValue {}

/// [`Seen`] as a key of aya's maps.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct SeenValue(Seen);

// SAFETY: as above.
unsafe impl Pod for SeenValue {}

/// The programs of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Runs a fetch plan at an instruction.
    Fetch,
    /// Runs a fetch plan at a function's return.
    Return,
    /// Walks lists.
    Walk,
}

impl Program {
    pub(super) const ALL: [Self; 3] = [Self::Fetch, Self::Return, Self::Walk];

    fn name(self) -> &'static str {
        match self {
            Self::Fetch => "fetch_record",
            Self::Return => "fetch_return",
            Self::Walk => "walk",
        }
    }
}

/// Why no link was made.
#[derive(Debug)]
pub(super) enum LinkRefusal {
    /// The kernel refused the place with this index.
    Place(usize, LinkError),
    Other(anyhow::Error),
}

/// The maps that are not taken yet, by name.
type Maps = collections::HashMap<String, Map>;

/// The object in the kernel.
pub struct LoadedObject {
    programs: Programs,
    maps: Maps,
    links: LinkKind,
    plans: Array<MapData, PlanValue>,
    walks: Array<MapData, WalkValue>,
    armed: Array<MapData, u32>,
    losses: Array<MapData, u64>,
    seen: HashMap<MapData, SeenValue, u32>,
    buffer: Buffer,
    log: Option<EbpfLogger<StandardError>>,
}

/// Prints the eBPF side's development log on standard error.
#[derive(Debug)]
struct StandardError;

impl Log for StandardError {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        eprintln!("eBPF: {}", record.args());
    }

    fn flush(&self) {}
}

impl fmt::Debug for LoadedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedObject").finish_non_exhaustive()
    }
}

impl LoadedObject {
    /// Makes the maps; programs are loaded on first use. `development_log`: prints the eBPF
    /// side's log on standard error.
    pub fn load(buffer: Buffer, links: LinkKind, development_log: bool) -> Result<Self> {
        let log_level = if development_log { log::Level::Debug as u8 } else { 0 };
        // The maps of the other kind of buffer are as small as possible.
        let (ring_bytes, scratch_slots, through_perf) = match buffer.kind {
            BufferKind::Ring => (buffer.bytes_per_ring(), 1, 0u32),
            BufferKind::Perf => (4096, SCRATCH_SLOTS, 1),
        };
        let in_use = ring_names(buffer.rings).map(|name| (name, ring_bytes));
        let entries: Vec<_> = in_use.chain([("SCRATCH", scratch_slots)]).collect();
        let settings = Settings {
            globals: &[
                (aya_log::LEVEL, &[log_level]),
                ("THROUGH_PERF", &through_perf.to_ne_bytes()),
                ("RINGS", &buffer.rings.to_ne_bytes()),
                ("WAKEUP_BYTES", &wakeup_bytes(ring_bytes.into()).to_ne_bytes()),
                ("LOADER_WIRE_VERSION", &WIRE_VERSION.to_ne_bytes()),
            ],
            entries: &entries,
            links,
        };
        let (mut programs, mut maps) = image::open(OBJECT, settings).context(
            "loading the eBPF object: the kernel must have BPF, a ring buffer (5.8) and cookies (5.15), \
             and the caller CAP_BPF and CAP_PERFMON (or be root)",
        )?;
        let log = if development_log { Some(open_log(&mut programs)?) } else { None };
        let plans = Array::try_from(take_map(&mut maps, "PLANS")?).context("opening the map `PLANS`")?;
        let walks = Array::try_from(take_map(&mut maps, "WALKS")?).context("opening the map `WALKS`")?;
        let armed = Array::try_from(take_map(&mut maps, "ARMED")?).context("opening the map `ARMED`")?;
        let losses = Array::try_from(take_map(&mut maps, "LOSSES")?).context("opening the map `LOSSES`")?;
        let seen = HashMap::try_from(take_map(&mut maps, "SEEN")?).context("opening the map `SEEN`")?;
        Ok(Self { programs, maps, links, plans, walks, armed, losses, seen, buffer, log })
    }

    /// Opens or closes the session. Hits are recorded only while it is open.
    pub fn set_armed(&mut self, armed: bool) -> Result<()> {
        self.armed.set(0, u32::from(armed), 0).context("arming the probes")
    }

    /// Stores the plan of the probe with this cookie. Call it once, before the probe is attached.
    pub fn set_plan(&mut self, cookie: u32, plan: &FetchPlan) -> Result<()> {
        self.plans.set(cookie, PlanValue(*plan), 0).with_context(|| format!("storing fetch plan {cookie}"))
    }

    /// Stores the walk of the probe with this cookie. Call it once, before the probe is attached.
    pub fn set_walk(&mut self, cookie: u32, walk: &Walk) -> Result<()> {
        self.walks.set(cookie, WalkValue(*walk), 0).with_context(|| format!("storing walk {cookie}"))
    }

    /// Loads those of these programs that are not loaded yet.
    pub(crate) fn load_programs(&mut self, programs: &[Program]) -> Result<()> {
        let names: Vec<_> = programs.iter().map(|program| program.name()).collect();
        self.programs.load(&names)
    }

    /// Attaches a loaded program to all of these places, or to none.
    pub(super) fn link(
        &self,
        program: Program,
        site: Site<'_>,
        places: &[Place],
    ) -> Result<Vec<Link>, LinkRefusal> {
        let program = self.programs.get(program.name()).map_err(LinkRefusal::Other)?;
        link::attach(self.links, program, site, places).map_err(|(at, error)| LinkRefusal::Place(at, error))
    }

    /// Prints the eBPF side's development log, if it is on.
    pub(crate) fn print_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// The buffers to read records from. Can be taken once.
    pub(crate) fn take_source(&mut self) -> Result<Source> {
        match self.buffer.kind {
            BufferKind::Ring => {
                let open = |name| {
                    RingBuf::try_from(take_map(&mut self.maps, name)?).context("mapping a ring buffer")
                };
                let rings = ring_names(self.buffer.rings).map(open).collect::<Result<Vec<_>>>()?;
                Ok(Source::Rings(Rings::new(rings)))
            }
            BufferKind::Perf => {
                let array = PerfEventArray::try_from(take_map(&mut self.maps, "PERF_RECORDS")?)
                    .context("opening the map `PERF_RECORDS`")?;
                let (cpus, pages) = self.buffer.pages_per_cpu()?;
                PerfBuffers::open(array, &cpus, pages)
                    .map(Source::Perf)
                    .context("opening a perf event buffer per CPU")
            }
        }
    }

    /// Clears the set of what walks have sent and send only once.
    pub(crate) fn forget_seen(&mut self) -> Result<()> {
        let keys: Vec<SeenValue> = self.seen.keys().filter_map(Result::ok).collect();
        for key in keys {
            match self.seen.remove(&key) {
                // The kernel evicts the oldest keys of a full map.
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(error).context("writing the map `SEEN`"),
            }
        }
        Ok(())
    }

    /// Number of records of this process (in the initial PID namespace) that the eBPF side could not send.
    pub(crate) fn lost_by_process(&self, tgid: u32) -> Result<u64> {
        self.losses.get(&loss_slot(tgid), 0).context("reading the map `LOSSES`")
    }

    /// The counters. Can be taken once.
    pub(crate) fn take_counters(&mut self) -> Result<PerCpuArray<MapData, CountersValue>> {
        PerCpuArray::try_from(take_map(&mut self.maps, "COUNTERS")?).context("opening the map `COUNTERS`")
    }
}

/// The names of the maps of the ring buffers in use.
fn ring_names(rings: u32) -> impl Iterator<Item = &'static str> {
    const ALL: [&str; MAX_RINGS as usize] = [
        "RECORDS",
        "RECORDS_1",
        "RECORDS_2",
        "RECORDS_3",
        "RECORDS_4",
        "RECORDS_5",
        "RECORDS_6",
        "RECORDS_7",
    ];
    ALL.into_iter().zip(0..rings).map(|(name, _)| name)
}

/// Opens the eBPF side's log. aya-log finds it by the id of a program that writes to it.
fn open_log(programs: &mut Programs) -> Result<EbpfLogger<StandardError>> {
    let program = Program::Fetch.name();
    programs.load(&[program])?;
    let id = bpf::program_id(programs.get(program)?).context("asking for a program's number")?;
    EbpfLogger::init_from_id_with_logger(id, StandardError).context("opening the eBPF side's log")
}

fn take_map(maps: &mut Maps, name: &str) -> Result<Map> {
    maps.remove(name).with_context(|| format!("the eBPF object has no map `{name}`"))
}
