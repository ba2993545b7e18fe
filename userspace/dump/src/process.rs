//! A process with its libraries, its communicators, and readings of them.

use inspect::{
    adapters::Port,
    gpu::{bus_id, number_on_host},
    memory::{AddressSpace, Memory, ReadError},
    process::{Process, Tenant, age_seconds},
    resolver,
    threads::{self, Names, NativeNames, Sampler},
};
use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};
use torch_history::told_rank;

use anyhow::Result;

use super::{
    AbsentRank, OpReport, ProcessReport, ProcessState, ProxyListState, ProxyReport, PythonReport, RankReport,
    absent::LiveProcesses,
    activity::Sample,
    budget::Budget,
    communicator::{self, Communicator},
    connections::Peers,
    libraries::Layout,
    places,
    proxy::{self, ProxyList, ProxyOp},
    pxn::OpForOther,
    python::{self, Runtimes},
    search::may_make_communicators,
    store_wait::{self, StoreWait},
    thread_roles::Roles,
};
use flow::identity::Largest;

#[derive(Debug)]
pub(super) struct Target {
    pub(super) process: Process,
    pub(super) report: ProcessReport,
    pub(super) found: Vec<Found>,
    /// Inodes of the NCCL libraries.
    pub(super) inodes: BTreeSet<u64>,
    pub(super) tenant: Option<Tenant>,
    /// Start of the process, in ticks since the system was started.
    pub(super) started: Option<u64>,
    /// Threads that have called NCCL, beside the first, and perhaps threads that look after communicators.
    callers: BTreeSet<u32>,
    /// Samples, one for each reading.
    pub(super) samples: Vec<Sample>,
    /// Roles of its threads; `None` before the first reading.
    pub(super) roles: Option<Roles>,
}

#[derive(Debug)]
pub(super) struct Found {
    pub(super) layout: Arc<Layout>,
    pub(super) address: u64,
    pub(super) comm_hash: String,
}

impl Target {
    /// Makes a process of which nothing was found yet.
    pub(super) fn new(process: Process, report: ProcessReport) -> Self {
        Self {
            process,
            report,
            found: Vec::new(),
            inodes: BTreeSet::new(),
            tenant: None,
            started: None,
            callers: BTreeSet::new(),
            samples: Vec::new(),
            roles: None,
        }
    }

    /// Returns the ranks of this rank's communicator that are not among `known`, with their places.
    pub(super) fn absent(&self, rank: &RankReport, known: &[u32], live: &LiveProcesses) -> Vec<AbsentRank> {
        let found = self.found.iter().find(|found| found.address == rank.address);
        let Some((found, table)) = found.and_then(|found| Some((found, found.layout.peers?))) else {
            return Vec::new();
        };
        let peers = found.layout.ras_peers.zip(found.layout.library);
        let peers = peers.and_then(|(list, library)| list.read(&self.process, library));
        table.absent(Memory::new(&self.process), rank, known, live, peers.as_ref())
    }

    pub(super) fn look_at_threads(&mut self, with_stacks: bool, names: &Names, sampler: &Sampler) {
        let age = self.started.and_then(age_seconds);
        self.report.age_seconds = age.map(|age| f64::from(u32::try_from(age).unwrap_or(u32::MAX)));
        if !self.inodes.is_empty() && self.report.state != ProcessState::Exited {
            let callers = self.shown_callers();
            let stacks_of = with_stacks.then_some(&callers);
            self.report.threads = threads::look(&self.process, &self.inodes, stacks_of, names, sampler);
        }
        if self.report.calls().any(|(_, call)| may_make_communicators(call)) {
            self.report.unanswered = super::unanswered::look(&self.process);
            self.report.few_files = super::open_files::look(&self.process);
        }
    }

    /// Finds the threads that have called NCCL. Call before the first reading.
    pub(super) fn find_callers(&mut self) {
        if !self.found.is_empty() && self.report.state != ProcessState::Exited {
            self.callers = threads::callers(&self.process, &self.inodes);
        }
    }

    /// Returns the threads that the report says have called NCCL.
    fn shown_callers(&self) -> BTreeSet<u32> {
        self.report.nccl_callers.iter().map(|caller| caller.tid).collect()
    }

    /// Finds out over which network devices ranks of this process send. `ports`: those of the host.
    pub(super) fn look_at_nics(&self, ranks: &mut [RankReport], ports: &[Port]) {
        let memory = Memory::new(&self.process);
        let mut mappings = None;
        for rank in ranks.iter_mut().filter(|rank| rank.pid == self.process.pid()) {
            let devs = rank.net_devs();
            let found = self.found.iter().find(|found| found.address == rank.address);
            let Some(found) = found.filter(|_| !devs.is_empty()) else { continue };
            let mappings =
                mappings.get_or_insert_with(|| resolver::maps(self.process.pid()).unwrap_or_default());
            rank.nics = found.layout.nics.read(memory, mappings, rank.address, &devs, ports);
        }
    }

    /// Finds out which rank of its job the process was told to be. `ranks` are those of all processes.
    pub(super) fn look_at_job(&mut self, ranks: &[RankReport]) {
        let mut largest = Largest::default();
        for rank in ranks.iter().filter(|rank| rank.pid == self.report.pid) {
            largest.note(rank.n_ranks, rank.rank);
        }
        if let Some(told) = told_rank(&self.process, largest) {
            self.report.job_rank = Some(told.rank);
            self.report.job_size = told.size;
            self.report.job_rank_from = Some(told.variable.name().to_owned());
        }
    }

    /// Finds out what the program waits for in torch's store, if it does: the first thread, or another one in
    /// torch's Python code. Call after [`Self::look_at_job`].
    fn look_at_store(&mut self, names: &mut NativeNames) {
        if self.report.job_rank.is_none() {
            return;
        }
        // Inside NCCL it waits for something else.
        let is_in_nccl =
            |tid: u32| self.report.threads.iter().any(|one| one.tid == tid && one.nccl_function.is_some());
        let mut threads = self.report.python.iter().flat_map(PythonReport::may_wait_in_store);
        self.report.store_wait = threads.find_map(|thread| {
            if is_in_nccl(thread.tid) {
                return None;
            }
            StoreWait::read(&self.process, thread, names)
        });
    }

    /// Notes in the report that memory of the process did not answer: many readings go on without what they
    /// cannot have. Comes last.
    pub(super) fn note_silence(&mut self) {
        let is_silent = resolver::is_silent(self.process.live_thread());
        if self.report.error.is_none() && !self.process.has_exited() && is_silent {
            self.report.error = Some(ReadError::Blocked(self.process.pid()).to_string());
        }
    }

    /// Reads the Python stacks of threads: also of those that are in NCCL or were, or of all. Call after
    /// [`Self::look_at_threads`].
    pub(super) fn look_at_python(&mut self, all: bool, runtimes: &Runtimes) {
        if self.report.state == ProcessState::Exited {
            return;
        }
        let mut wanted = self.shown_callers();
        wanted.extend(self.report.threads.iter().map(|thread| thread.tid));
        let is_wanted = |tid| all || wanted.contains(&tid);
        self.report.python = python::look(&self.process, is_wanted, store_wait::is_variable, runtimes);
    }

    /// Reads all communicators once. Those that ended since they were found are left out.
    pub(super) fn read(&mut self) -> Vec<RankReport> {
        self.report.state = ProcessState::read(&self.process);
        let (mut handles, mut budget) = (BTreeSet::new(), Budget::default());
        let ranks = AddressSpace::read(&self.process)
            .and_then(|space| self.read_in(&space, &mut handles, &mut budget));
        self.report.error = self.report.error.take().or_else(|| budget.problem());
        let roles = self.roles.get_or_insert_with(|| Roles::of(&self.process, &handles, &self.callers));
        if self.samples.is_empty() {
            self.report.nccl_callers = roles.shown_callers(&self.process);
        }
        self.samples.push(Sample::take(&self.process, roles));
        ranks.unwrap_or_else(|error| {
            self.report.error = Some(error.to_string());
            Vec::new()
        })
    }

    /// Reads all communicators once, as far as the budget goes, and adds the handles of their threads that
    /// move ops.
    pub(super) fn read_in(
        &self,
        space: &AddressSpace,
        handles: &mut BTreeSet<u64>,
        budget: &mut Budget,
    ) -> Result<Vec<RankReport>, ReadError> {
        let memory = Memory::new(&self.process);
        let mut comms = Vec::new();
        for found in &self.found {
            if !budget.has_time() {
                budget.leave_out();
                continue;
            }
            match communicator::read(memory, &found.layout.comm, space, found.address) {
                Ok(comm) if comm.report.comm_hash == found.comm_hash => comms.push((found, comm)),
                Err(Some(error)) if error.is_final() => return Err(error),
                _ => {}
            }
        }
        budget.next_part();
        let mut proxies: HashMap<u64, ProxyList> = HashMap::new();
        for (found, comm) in &comms {
            if !budget.has_time() {
                break;
            }
            if let Entry::Vacant(entry) = proxies.entry(comm.proxy_state) {
                entry.insert(proxy::read(memory, &found.layout.proxy, comm.proxy_state)?);
            }
        }
        handles.extend(proxies.values().filter_map(|list| list.thread));
        budget.next_part();
        let mut ranks = Vec::new();
        for (found, comm) in &comms {
            let Some(list) = proxies.get(&comm.proxy_state).filter(|_| budget.has_time()) else {
                budget.leave_out();
                continue;
            };
            let users =
                |same: &dyn Fn(&Communicator) -> bool| comms.iter().filter(|(_, other)| same(other)).count();
            let is_only = users(&|other| other.proxy_state == comm.proxy_state) == 1;
            let shared = users(&|other| other.shared_res == comm.shared_res) > 1;
            let layout = &*found.layout;
            let bus_id = places::read_one(memory, comm.report.address, layout.bus_id).and_then(bus_id);
            let on_host = bus_id.as_deref().and_then(number_on_host);
            let mut rank = RankReport {
                host: self.report.host.clone(),
                pid: self.process.pid(),
                process_state: self.report.state,
                nccl_version: layout.version.clone(),
                shares_resources: shared,
                connections: layout.connections.of_neighbours(memory, &layout.comm, &comm.report),
                bus_id,
                nvml_dev: on_host.or(comm.report.nvml_dev),
                pending: layout.pending.read(memory, comm.report.address, comm.report.n_ranks),
                one_sided: layout.one_sided.read(memory, &comm.report, comm.shared_res, budget)?,
                set_up: layout.set_up.read(memory, &comm.report),
                ..comm.report.clone()
            };
            rank.counters.coll_op_count_is_shared = shared && layout.comm.shares_coll_op_count;
            rank.status.proxy_result = layout.comm.result(list.async_result);
            let (ops, ops_for_others) =
                own_ops(memory, layout, &comm.report, list, is_only, budget, &mut rank.remarks);
            let carries_rings = layout.connections.ring_has_proxy(memory, &layout.comm, &comm.report);
            rank.proxy = ProxyReport { state: list.state, carries_rings, ops };
            rank.ops_for_others = ops_for_others;
            if list.state == ProxyListState::Torn {
                rank.remarks.push("the ops in flight changed each time they were read".to_owned());
            }
            if rank.proxy.ops.iter().any(|op| op.peer.is_none()) {
                rank.remarks.push("the peer of some ops in flight is not known".to_owned());
            }
            ranks.push(rank);
        }
        Ok(ranks)
    }
}

/// Returns the ops of a proxy that belong to one communicator, with their peers in it: those of this rank, and
/// those of other ranks. `is_only`: no other communicator uses the proxy.
fn own_ops(
    memory: Memory<'_>,
    layout: &Layout,
    comm: &RankReport,
    list: &ProxyList,
    is_only: bool,
    budget: &mut Budget,
    remarks: &mut Vec<String>,
) -> (Vec<OpReport>, Vec<OpForOther>) {
    let mut channels: HashMap<u32, Peers> = HashMap::new();
    let mut is_cut = false;
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for ProxyOp { connection, rank, top_ranks, report } in &list.ops {
        let (mut owner, mut peer) = (*rank, report.peer.filter(|_| is_only));
        if peer.is_none() {
            let peers = channels.entry(report.channel).or_insert_with(|| {
                if !budget.take_peers(comm.n_ranks) {
                    is_cut = true;
                    return Peers::new();
                }
                layout.connections.of_channel(memory, &layout.comm, comm, report.channel).unwrap_or_default()
            });
            peer = peers.get(connection).copied();
            // Up to 2.22 only the connection tells whose op it is.
            if is_only && peer.is_none() && !peers.is_empty() {
                [owner, peer] = *top_ranks;
            }
        }
        if !is_only && peer.is_none() {
            continue;
        }
        let op = OpReport { peer: peer.filter(|peer| *peer < comm.n_ranks), ..report.clone() };
        match owner.filter(|rank| is_only && *rank != comm.rank) {
            Some(rank) => others.push(OpForOther { rank, op }),
            None => own.push(op),
        }
    }
    if is_cut {
        remarks.push("ops in flight may be missing: it has more connections than are looked at".to_owned());
    }
    (own, others)
}

/// Finds out what processes with a rank of a job wait for in torch's store, and who has come to those that
/// wait for ranks. If that takes too long, nothing is said of any: who was not looked at would seem to be
/// elsewhere.
pub(super) fn look_at_stores(targets: &mut [Target]) {
    /// Ranks of one job have one library, the symbols of which are read once, in some tenths of a second.
    const PATIENCE: Duration = Duration::from_secs(10);
    let (begun, mut names) = (Instant::now(), NativeNames::default());
    let is_late = targets.iter_mut().any(|target| {
        target.look_at_store(&mut names);
        begun.elapsed() > PATIENCE
    });
    if is_late {
        for target in targets {
            target.report.store_wait = None;
        }
        return;
    }
    let port = |target: &Target| Some(target.report.store_wait.as_ref()?.server.as_ref()?.port);
    let ports: Vec<u16> = targets.iter().filter_map(port).collect();
    if !ports.is_empty() {
        for target in targets {
            target.report.store_connections = store_wait::connections(&target.process, &ports);
        }
    }
}
