//! The embedded eBPF object in the kernel: its maps, its programs, and links to them.

use flow::session::{BufferKind, LinkKind};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::AsFd as _,
};

use anyhow::{Context as _, Error, Result, bail};
use aya::{
    Ebpf, EbpfError, EbpfLoader, Pod, VerifierLogLevel,
    maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray},
};
use aya_log::EbpfLogger;
use log::Log;
use memchr::memmem;
use ncclflow_common::{
    CLOSED, FetchPlan, MAX_RINGS, MAX_STACKS, OPEN, OPEN_TO_ADMITTED, ProbeCounters, PythonWalk, ReturnSlots,
    SCRATCH_SLOTS, WIRE_VERSION, Walk, common_bytes, loss_slot, ring_of, wakeup_bytes,
};

use super::{
    buffer::Buffer,
    link::{self, Link, Place, Site},
    map_values::{
        CountersValue, PlanValue, PythonValue, SeenValue, SentValue, SlotsValue, TakenValue, WalkValue,
    },
    programs::{self, Program},
};
use crate::kernel::stream::{PerfBuffers, Rings, Source};

/// The eBPF object, built by `cargo xtask make ebpf`, checked by the build script.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ncclflow.o"));

/// First digits of the object's SHA-256.
pub const OBJECT_SHA256: &str = env!("NCCLFLOW_BUILD_EBPF");

/// Returns the object with its programs for this kind of link. Aya goes by the names of their sections, which
/// are `uprobe.multi` and `uretprobe.multi` in the object.
fn object_for(links: LinkKind) -> Cow<'static, [u8]> {
    if links == LinkKind::Multi {
        return OBJECT.into();
    }
    let mut object = OBJECT.to_vec();
    // The names are in the strings of ELF and of BTF, which end with 0.
    for at in memmem::find_iter(OBJECT, "probe.multi\0") {
        if let Some(dot) = object.get_mut(at + "probe".len()) {
            *dot = 0;
        }
    }
    object.into()
}

/// Most keys that the map `SEEN` has.
const MAX_SEEN: usize = 16_384;

/// State of the session on the eBPF side: whose hits are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Gate {
    Closed = CLOSED,
    Open = OPEN,
    ToAdmitted = OPEN_TO_ADMITTED,
}

/// The object in the kernel.
#[expect(missing_debug_implementations, reason = "aya's log has none")]
pub struct LoadedObject {
    /// Object with all maps: programs that are not loaded yet refer to them by their descriptors.
    ebpf: Ebpf,
    links: LinkKind,
    buffer: Buffer,
    has_stacks: bool,
    log: Option<EbpfLogger<StandardError>>,
}

/// Sink that prints the eBPF side's development log on standard error.
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

impl LoadedObject {
    /// Makes the maps; programs are loaded on first use. `development_log` prints the eBPF side's log on
    /// standard error. With `stacks`, the maps of call stacks have room.
    pub fn load(buffer: Buffer, links: LinkKind, development_log: bool, stacks: bool) -> Result<Self> {
        // The maps of the other kind of buffer are as small as possible.
        let (ring_bytes, scratch_slots, through_perf) = match buffer.kind {
            BufferKind::Ring => (buffer.bytes_per_ring(), 1, 0u32),
            BufferKind::Perf => (4096, SCRATCH_SLOTS, 1),
        };
        let level = if development_log { log::Level::Debug as u8 } else { 0 };
        let wakeup_bytes = wakeup_bytes(ring_bytes.into());
        let common_bytes = common_bytes(ring_bytes.into());
        let mut loader = EbpfLoader::new();
        loader
            .verifier_log_level(VerifierLogLevel::DEBUG)
            .override_global(aya_log::LEVEL, &level, true)
            .override_global("THROUGH_PERF", &through_perf, true)
            .override_global("RINGS", &buffer.rings, true)
            .override_global("WAKEUP_BYTES", &wakeup_bytes, true)
            .override_global("COMMON_BYTES", &common_bytes, true)
            .override_global("LOADER_WIRE_VERSION", &WIRE_VERSION, true)
            .map_max_entries("SCRATCH", scratch_slots);
        if !stacks {
            for map in ["PYTHONS", "PYTHON_THREADS", "STACKS_SENT", "RETURN_SLOTS", "STACKS"] {
                loader.map_max_entries(map, 1);
            }
        }
        for name in ring_names(buffer.rings) {
            loader.map_max_entries(name, ring_bytes);
        }
        let ebpf = loader.load(&object_for(links)).map_err(|error| match error {
            EbpfError::MapError(error) => error.into(),
            EbpfError::ParseError(error) => error.into(),
            error => anyhow::Error::from(error),
        });
        let mut ebpf = ebpf.context(
            "loading the eBPF object: the kernel must have BPF, a ring buffer (5.8) and cookies (5.15), \
             and the caller CAP_BPF and CAP_PERFMON (or be root)",
        )?;
        let log = development_log.then(|| EbpfLogger::init_with_logger(&mut ebpf, StandardError));
        let log = log.transpose().context("opening the eBPF side's log")?;
        Ok(Self { ebpf, links, buffer, has_stacks: stacks, log })
    }

    fn map<'a, M: TryFrom<&'a Map, Error = MapError>>(&'a self, name: &str) -> Result<M> {
        open(self.ebpf.map(name), name)
    }

    fn map_mut<'a, M: TryFrom<&'a mut Map, Error = MapError>>(&'a mut self, name: &str) -> Result<M> {
        open(self.ebpf.map_mut(name), name)
    }

    /// Sets an element of an array.
    fn set<V: Pod>(&mut self, name: &str, index: u32, value: &V) -> Result<()> {
        let mut map: Array<_, V> = self.map_mut(name)?;
        Ok(map.set(index, value, 0)?)
    }

    fn insert<K: Pod, V: Pod>(&mut self, name: &str, key: K, value: V) -> Result<()> {
        let mut map: HashMap<_, K, V> = self.map_mut(name)?;
        map.insert(&key, &value, 0).with_context(|| format!("writing the map `{name}`"))
    }

    /// Removes keys, which the kernel may have evicted, as it does the oldest keys of a full map.
    fn remove<K: Pod, V: Pod>(&mut self, name: &str, keys: impl IntoIterator<Item = K>) -> Result<()> {
        let mut map: HashMap<_, K, V> = self.map_mut(name)?;
        for key in keys {
            match map.remove(&key) {
                Err(MapError::SyscallError(error)) if error.io_error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.with_context(|| format!("writing the map `{name}`"))?,
            }
        }
        Ok(())
    }

    /// Opens or closes the session. Hits are recorded only while it is open; others are only counted.
    pub fn set_gate(&mut self, gate: Gate) -> Result<()> {
        self.set("ARMED", 0, &(gate as u32)).context("arming the probes")
    }

    /// Opens the session to these processes only (in the initial PID namespace), or changes to whom it is
    /// open.
    pub fn admit(&mut self, tgids: &BTreeSet<u32>) -> Result<()> {
        let map: HashMap<_, u32, u32> = self.map("ADMITTED")?;
        let before: BTreeSet<u32> = map.keys().filter_map(Result::ok).collect();
        self.remove::<u32, u32>("ADMITTED", before.difference(tgids).copied())?;
        for tgid in tgids.difference(&before) {
            self.insert("ADMITTED", *tgid, 1u32)?;
        }
        self.set_gate(Gate::ToAdmitted)
    }

    /// Stores the plan of the probe with this cookie. Call it once, before the probe is attached.
    pub fn set_plan(&mut self, cookie: u32, plan: &FetchPlan) -> Result<()> {
        let stored = self.set("PLANS", cookie, &PlanValue(*plan));
        stored.with_context(|| format!("storing what probe {cookie} reads"))
    }

    /// Stores the walk of the probe with this cookie. Call it once, before the probe is attached.
    pub fn set_walk(&mut self, cookie: u32, walk: &Walk) -> Result<()> {
        let stored = self.set("WALKS", cookie, &WalkValue(*walk));
        stored.with_context(|| format!("storing how probe {cookie} reads plans"))
    }

    /// Loads those of these programs that are not loaded yet.
    pub(crate) fn load_programs(&mut self, programs: &[Program]) -> Result<()> {
        programs::load(&mut self.ebpf, programs)
    }

    /// Attaches a loaded program to all of these places, or to none. The error has the index of the place
    /// that the kernel refused.
    pub(super) fn link(
        &mut self,
        program: Program,
        site: Site<'_>,
        places: &[Place],
    ) -> Result<Vec<Link>, (usize, Error)> {
        let program = program.find(&mut self.ebpf).context("finding the program failed");
        let program = program.map_err(|error| (0, error))?;
        link::attach(self.links, program, site, places)
    }

    /// Prints the eBPF side's development log, if it is on.
    pub(crate) fn print_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// Returns the buffers to read records from, while the object exists.
    pub fn source(&mut self) -> Result<Box<dyn Source>> {
        match self.buffer.kind {
            BufferKind::Ring => {
                let rings = ring_names(self.buffer.rings).map(|name| self.own(name));
                Ok(Box::new(Rings::new(rings.collect::<Result<Vec<_>>>()?)))
            }
            BufferKind::Perf => {
                let (cpus, pages) = self.buffer.pages_per_cpu()?;
                let buffers = PerfBuffers::open(self.map_mut("PERF_RECORDS")?, &cpus, pages);
                Ok(Box::new(buffers.context("opening a perf event buffer per CPU")?))
            }
        }
    }

    /// Opens a ring buffer, or a map that drops its oldest keys, through a descriptor of its own.
    fn own<M: TryFrom<Map, Error = MapError>>(&self, name: &str) -> Result<M> {
        let Some(Map::RingBuf(map) | Map::LruHashMap(map)) = self.ebpf.map(name) else {
            bail!("the eBPF object has no map `{name}`");
        };
        let descriptor = map.fd().as_fd().try_clone_to_owned().context("duplicating a descriptor")?;
        open(Some(Map::from_map_data(MapData::from_fd(descriptor)?)?), name)
    }

    /// Returns a function that stores under a key where the return addresses of a native stack are. It has a
    /// descriptor of its own for the map.
    pub(crate) fn return_slots(&self) -> Result<impl FnMut(u64, &ReturnSlots) -> bool + Send + use<>> {
        let mut map: HashMap<MapData, u64, SlotsValue> = self.own("RETURN_SLOTS")?;
        Ok(move |key, slots: &ReturnSlots| map.insert(&key, &SlotsValue(*slots), 0).is_ok())
    }

    /// Starts walking the Python stacks of this process (in the initial PID namespace).
    pub(crate) fn set_python(&mut self, tgid: u32, walk: &PythonWalk) -> Result<()> {
        self.insert("PYTHONS", tgid, PythonValue(*walk))
    }

    /// Stops walking the Python stacks of this process, if it was begun.
    pub(crate) fn remove_python(&mut self, tgid: u32) -> Result<()> {
        self.remove::<u32, PythonValue>("PYTHONS", [tgid])
    }

    /// Makes walks send again what they send only once, and call stacks their frames, because some of them
    /// were lost.
    pub(crate) fn forget_what_was_sent(&mut self) -> Result<()> {
        if self.has_stacks {
            let sent: HashMap<_, u64, SentValue> = self.map("STACKS_SENT")?;
            let keys = keys_at_most(sent.keys(), MAX_STACKS as usize);
            self.remove::<u64, SentValue>("STACKS_SENT", keys)?;
        }
        self.forget_seen()
    }

    /// Makes walks send again what they send only once. The frames of call stacks are not sent again: their
    /// reader keeps them.
    pub(crate) fn forget_seen(&mut self) -> Result<()> {
        let seen: HashMap<_, SeenValue, u32> = self.map("SEEN")?;
        let keys = keys_at_most(seen.keys(), MAX_SEEN);
        self.remove::<SeenValue, u32>("SEEN", keys)
    }

    /// Stores the tenant of a process (in the initial PID namespace). Tenants have shares of ring buffers
    /// that are more than half full; a process without one is a tenant of its own.
    pub(crate) fn set_tenant(&mut self, tgid: u32, tenant: u32) -> Result<()> {
        self.insert("TENANTS", tgid, tenant)
    }

    /// Removes the tenant of a process that has ended.
    pub(crate) fn remove_tenant(&mut self, tgid: u32) -> Result<()> {
        self.remove::<u32, u32>("TENANTS", [tgid])
    }

    /// Divides half of each ring buffer into equal shares for the tenants of its processes, given each
    /// process with its tenant. A single tenant may fill its ring buffer.
    pub(crate) fn share_out(&mut self, processes: impl IntoIterator<Item = (u32, u32)>) -> Result<()> {
        if self.buffer.kind == BufferKind::Perf {
            return Ok(());
        }
        let half = common_bytes(self.buffer.bytes_per_ring().into());
        let mut by_ring = vec![BTreeSet::new(); MAX_RINGS as usize];
        for (tgid, tenant) in processes {
            if let Some(tenants) = by_ring.get_mut(ring_of(tgid, self.buffer.rings.max(1)) as usize) {
                tenants.insert(tenant);
            }
        }
        for (ring, tenants) in (0..).zip(by_ring) {
            let tenants = tenants.len() as u64;
            let share = if tenants > 1 { half / tenants } else { 0 };
            self.set("SHARES", ring, &share).context("writing the map `SHARES`")?;
        }
        Ok(())
    }

    /// Returns how often each tenant was refused room in a ring buffer, by its number. Each time it was a
    /// record, or some that travel together.
    pub(crate) fn refused(&self) -> Result<BTreeMap<u32, u64>> {
        let taken: HashMap<_, u64, TakenValue> = self.map("TAKEN")?;
        let mut refused = BTreeMap::new();
        for (key, TakenValue(taken)) in taken.iter().filter_map(Result::ok) {
            #[expect(clippy::cast_possible_truncation, reason = "the lower half, see share_key")]
            let tenant = key as u32;
            *refused.entry(tenant).or_insert(0) += taken.refused;
        }
        refused.retain(|_, times| *times > 0);
        Ok(refused)
    }

    /// Returns the number of records of this process (in the initial PID namespace) that the eBPF side could
    /// not send.
    pub(crate) fn lost_by_process(&self, tgid: u32) -> Result<u64> {
        let losses: Array<_, u64> = self.map("LOSSES")?;
        losses.get(&loss_slot(tgid), 0).context("reading the map `LOSSES`")
    }

    /// Returns what the eBPF side counted for the probe with this cookie, by CPU.
    pub(super) fn counters(&self, cookie: u32) -> Result<Vec<ProbeCounters>> {
        let counters: PerCpuArray<_, CountersValue> = self.map("COUNTERS")?;
        let per_cpu = counters.get(&cookie, 0)?;
        Ok(per_cpu.iter().map(|CountersValue(counters)| *counters).collect())
    }
}

fn open<S, M: TryFrom<S, Error = MapError>>(map: Option<S>, name: &str) -> Result<M> {
    let map = map.with_context(|| format!("the eBPF object has no map `{name}`"))?;
    M::try_from(map).with_context(|| format!("opening the map `{name}`"))
}

/// Returns the keys of a map, `most` at most. Keys come and go meanwhile, and where one went the kernel
/// begins anew, so that the walk may not end by itself. Keys that come are new and need no removal.
fn keys_at_most<K>(keys: impl Iterator<Item = Result<K, MapError>>, most: usize) -> Vec<K> {
    keys.take(most).filter_map(Result::ok).collect()
}

/// Returns the names of the maps of the ring buffers in use.
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

#[cfg(test)]
mod tests {
    use crate::kernel::loader::best_links;
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
        time::{Duration, Instant},
    };

    use aya_obj::{Object, ProgramSection};

    use ncclflow_common::Seen;

    use super::*;

    #[test]
    fn programs_are_for_one_kind_of_link() {
        for links in [LinkKind::Multi, LinkKind::Perf] {
            let object = Object::parse(&object_for(links)).unwrap();
            assert_eq!(object.programs.len(), Program::ALL.len());
            for (name, program) in object.programs {
                let (is_multi, is_return) = match program.section {
                    ProgramSection::UProbe { multi, .. } => (multi, false),
                    ProgramSection::URetProbe { multi, .. } => (multi, true),
                    other => panic!("{name}: {other:?}"),
                };
                assert_eq!((is_multi, is_return), (links == LinkKind::Multi, name == "fetch_return"));
            }
        }
    }

    #[test]
    fn listing_keys_ends_although_the_kernel_begins_anew_again_and_again() {
        assert_eq!(keys_at_most(std::iter::repeat_with(|| Ok(7)), 3), [7, 7, 7]);
    }

    #[test]
    fn clearing_what_was_sent_ends_although_more_is_sent_all_the_time() {
        if !test_support::root() {
            return;
        }
        let buffer = Buffer { kind: BufferKind::Ring, bytes: 1 << 16, rings: 1 };
        let mut object = LoadedObject::load(buffer, best_links(), false, false).unwrap();
        let mut sent: HashMap<MapData, SeenValue, u32> = object.own("SEEN").unwrap();
        let key = |number: u64| {
            let identity = [number, number.wrapping_mul(0x9e37_79b9_7f4a_7c15)];
            SeenValue(Seen { identity, tgid: 1, cookie: 0, gate: 0, tag: 0, rows: 0, padding: 0 })
        };
        let kept = MAX_SEEN as u64 / 2;
        for number in 0..kept {
            sent.insert(&key(number), &1, 0).unwrap();
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // New keys come while others are removed, as from records that are sent meanwhile.
            scope.spawn(|| {
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    sent.insert(&key(number + kept), &1, 0).unwrap();
                    let _ = sent.remove(&key(number));
                }
            });
            let begun = Instant::now();
            for _ in 0..5 {
                object.forget_seen().unwrap();
            }
            let took = begun.elapsed();
            is_over.store(true, Ordering::Relaxed);
            assert!(took < Duration::from_secs(10), "{took:?}");
        });
        object.forget_seen().unwrap();
        let left: HashMap<_, SeenValue, u32> = object.map("SEEN").unwrap();
        assert_eq!(left.keys().count(), 0);
    }
}
