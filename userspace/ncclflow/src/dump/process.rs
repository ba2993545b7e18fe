//! One process: its libraries, its communicators, and readings of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context as _, Result, bail};

use super::{
    DumpOptions, Progress,
    comm_layout::CommLayout,
    communicator::{self, Communicator},
    connections::{ConnectionLayout, Peers},
    dump_report::{LibraryReport, ProcessReport, ProcessState},
    layout,
    proxy::{self, ProxyLayout, ProxyList, RawOp},
    rank_report::{OpReport, ProxyListState, ProxyReport, RankReport},
};
use crate::{
    memory::{AddressSpace, Memory, ReadError},
    target::{LibraryId, MappedLibrary, Process, age_seconds, nccl_libraries, read_text, status_field},
    threads::{self, Names},
};
use nccl_library::{
    elf::{Image, RuntimeAddr},
    nccl::Pattern,
    symbols::{self, DebugFiles, LayoutSource, ProblemKind},
};

/// The layouts of one library's structs.
#[derive(Debug)]
pub(super) struct Layout {
    comm: CommLayout,
    connections: ConnectionLayout,
    proxy: ProxyLayout,
}

/// Libraries that were resolved already: several processes map the same one.
#[derive(Debug)]
pub(super) struct Libraries {
    debug_files: DebugFiles,
    known: BTreeMap<LibraryId, (LibraryReport, Option<usize>)>,
    layouts: Vec<Layout>,
}

impl Libraries {
    pub(super) fn new(debug_files: DebugFiles) -> Self {
        Self { debug_files, known: BTreeMap::new(), layouts: Vec::new() }
    }

    /// What the library is, and the number of its layout if it has one.
    fn resolve(&mut self, file: &MappedLibrary) -> (LibraryReport, Option<usize>) {
        if let Some(known) = self.known.get(&file.id) {
            return known.clone();
        }
        let mut report = LibraryReport { path: file.path.display().to_string(), ..LibraryReport::default() };
        let layout = match self.layout(file, &mut report) {
            Ok(layout) => {
                self.layouts.push(layout);
                Some(self.layouts.len() - 1)
            }
            Err(error) => {
                report.unusable = Some(format!("{error:#}"));
                None
            }
        };
        self.known.insert(file.id, (report.clone(), layout));
        (report, layout)
    }

    fn layout(&self, file: &MappedLibrary, report: &mut LibraryReport) -> Result<Layout> {
        let image = Image::from_file(file.try_clone_file()?).context("reading the library")?;
        let resolution = symbols::resolve_with(&image, &layout::request(), &self.debug_files)
            .context("reading the library")?;
        report.version = resolution.nccl_version.map(|version| version.to_string());
        report.build_id = resolution.build_id.as_ref().map(ToString::to_string);
        report.symbols = Some(resolution.symbol_source);
        report.layouts_from = Some(resolution.layouts_from);
        if resolution.layouts_from == LayoutSource::Unknown {
            let why = resolution.problems.iter().find(|problem| problem.kind == ProblemKind::StructMissing);
            let why = why.map_or("there is no debugging information", |problem| &problem.what);
            bail!("its struct layouts are not known: {why}");
        }
        Ok(Layout {
            comm: CommLayout::new(&resolution.layouts, resolution.nccl_version)?,
            connections: ConnectionLayout::new(&resolution.layouts)?,
            proxy: ProxyLayout::new(&resolution.layouts)?,
        })
    }
}

/// A process with its communicators.
#[derive(Debug)]
pub(super) struct Target {
    process: Process,
    pub(super) report: ProcessReport,
    /// Layout and address of each communicator.
    found: Vec<Found>,
    /// Of its NCCL libraries.
    inodes: BTreeSet<u64>,
    /// When it was started, in ticks since the system was.
    pub(super) started: Option<u64>,
}

#[derive(Debug)]
struct Found {
    layout: usize,
    address: RuntimeAddr,
    hash: u64,
    version: Option<String>,
}

impl Target {
    /// Finds the communicators of a process, by its NCCL libraries: `files`, or those that it is found to
    /// have. What goes wrong is part of the report.
    pub(super) fn find(
        process: Process,
        files: Option<&[MappedLibrary]>,
        libraries: &mut Libraries,
        options: &DumpOptions,
        host: &str,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Self {
        let report = ProcessReport {
            host: host.to_owned(),
            pid: process.pid(),
            name: process.name().to_owned(),
            state: state_of(&process),
            ..ProcessReport::default()
        };
        let started = process.started();
        let mut target = Self { process, report, found: Vec::new(), inodes: BTreeSet::new(), started };
        if target.report.state == ProcessState::Exited {
            let pid = target.report.pid;
            target.report.error =
                Some(format!("process {pid} has exited, and its parent has not waited for it"));
        } else if let Err(error) = target.search(files, libraries, options, progress) {
            target.report.error = Some(format!("{error:#}"));
        }
        target.report.communicators = target.found.len();
        target
    }

    fn search(
        &mut self,
        files: Option<&[MappedLibrary]>,
        libraries: &mut Libraries,
        options: &DumpOptions,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<()> {
        let memory = Memory::new(&self.process);
        let space = AddressSpace::read(&self.process)?;
        let own;
        let files = if let Some(files) = files {
            files
        } else {
            own = nccl_libraries(&self.process, None)?;
            &own
        };
        for file in files {
            self.inodes.insert(file.id.inode);
            let (report, layout) = libraries.resolve(file);
            let version = report.version.clone();
            self.report.libraries.push(report);
            let Some(index) = layout else { continue };
            let Some(layout) = libraries.layouts.get(index) else { continue };
            let process = &self.process;
            let (found, scan) = communicator::find(
                memory,
                &layout.comm,
                &space,
                options.limits,
                options.first_only,
                &mut |scan| progress(&Progress { process, scan }),
            )?;
            self.report.scan = Some(scan);
            self.found.extend(found.into_iter().map(|comm| Found {
                layout: index,
                address: comm.address,
                hash: comm.hash,
                version: version.clone(),
            }));
        }
        Ok(())
    }

    /// Adds its threads inside NCCL to the report.
    pub(super) fn look_at_threads(&mut self, with_stacks: bool, names: &mut Names) {
        self.report.age_seconds = self.started.and_then(age_seconds).map(seconds);
        if !self.inodes.is_empty() && self.report.state != ProcessState::Exited {
            self.report.threads = threads::look(&self.process, &self.inodes, with_stacks, names);
        }
    }

    /// Reads all communicators once. Those that ended since they were found are left out.
    pub(super) fn read(&mut self, libraries: &Libraries) -> Vec<RankReport> {
        self.report.state = state_of(&self.process);
        match self.try_read(libraries) {
            Ok(ranks) => ranks,
            Err(error) => {
                self.report.error = Some(error.to_string());
                Vec::new()
            }
        }
    }

    fn try_read(&self, libraries: &Libraries) -> Result<Vec<RankReport>, ReadError> {
        let memory = Memory::new(&self.process);
        let space = AddressSpace::read(&self.process)?;
        let mut comms = Vec::new();
        for found in &self.found {
            let Some(layout) = libraries.layouts.get(found.layout) else { continue };
            match communicator::read(memory, &layout.comm, &space, found.address) {
                Ok(comm) if comm.hash == found.hash => comms.push((found, layout, comm)),
                Err(communicator::Rejection::Read(error)) if error.is_final() => return Err(error),
                _ => {}
            }
        }
        let mut proxies: HashMap<RuntimeAddr, (ProxyList, usize)> = HashMap::new();
        for (_, layout, comm) in &comms {
            if let Some((_, users)) = proxies.get_mut(&comm.proxy_state) {
                *users += 1;
            } else {
                let list = proxy::read(memory, &layout.proxy, comm.proxy_state)?;
                proxies.insert(comm.proxy_state, (list, 1));
            }
        }
        let mut ranks = Vec::new();
        for (found, layout, comm) in &comms {
            let shared = comms.iter().filter(|(_, _, other)| other.shared_res == comm.shared_res).count() > 1;
            let mut rank = self.rank(found, comm);
            rank.counters.coll_op_count_is_shared = shared && layout.comm.shares_coll_op_count();
            rank.shares_resources = shared;
            rank.connections = layout.connections.of_neighbours(memory, &layout.comm, comm);
            if let Some((list, users)) = proxies.get(&comm.proxy_state) {
                rank.status.proxy_result = layout.comm.result(list.async_result);
                let mut owner =
                    Owner { memory, layout, comm, is_only: *users == 1, channels: HashMap::new() };
                rank.proxy = owner.proxy(list);
                if list.state == ProxyListState::Torn {
                    rank.remarks.push("the ops in flight changed each time they were read".to_owned());
                }
                if rank.proxy.ops.iter().any(|op| op.peer.is_none()) {
                    rank.remarks.push("the peer of some ops in flight is not known".to_owned());
                }
            }
            ranks.push(rank);
        }
        Ok(ranks)
    }

    fn rank(&self, found: &Found, comm: &Communicator) -> RankReport {
        RankReport {
            comm_hash: format!("0x{:016x}", comm.hash),
            comm_name: comm.name.clone(),
            n_ranks: comm.n_ranks,
            rank: comm.rank,
            host: self.report.host.clone(),
            pid: self.process.pid(),
            process_state: self.report.state,
            nccl_version: found.version.clone(),
            address: comm.address.0,
            node: comm.node,
            n_nodes: comm.n_nodes,
            local_rank: comm.local_rank,
            cuda_dev: comm.cuda_dev,
            nvml_dev: comm.nvml_dev,
            n_channels: comm.n_channels,
            counters: comm.counters.clone(),
            status: comm.status.clone(),
            channels: comm.channels.clone(),
            kernel_channels: comm.kernel_channels.clone(),
            ..RankReport::default()
        }
    }
}

/// Tells which ops of a proxy belong to one communicator, and who their peers are.
struct Owner<'a> {
    memory: Memory<'a>,
    layout: &'a Layout,
    comm: &'a Communicator,
    /// No other communicator uses the proxy.
    is_only: bool,
    channels: HashMap<u32, Peers>,
}

impl Owner<'_> {
    fn proxy(&mut self, list: &ProxyList) -> ProxyReport {
        ProxyReport {
            state: list.state,
            carries_rings: self.layout.connections.ring_has_proxy(self.memory, &self.layout.comm, self.comm),
            ops: list.ops.iter().filter_map(|op| self.op(op)).collect(),
        }
    }

    fn op(&mut self, op: &RawOp) -> Option<OpReport> {
        let names = self.layout.comm.names();
        let pattern = i64::try_from(op.pattern).ok().and_then(|number| names.pattern(number));
        if !proxy::moves_data(pattern) {
            return None;
        }
        let coll = op.coll.and_then(|coll| i64::try_from(coll).ok());
        let coll = coll.and_then(|coll| names.function(coll)).map(ToString::to_string);
        let (op_count, p2p) = proxy::split_op_count(op.op_count);
        let mut peer = op.rank_and_peer.map(|(_, peer)| peer).filter(|_| self.is_only);
        if peer.is_none() {
            let found = self.peers(op.channel).get(&op.connection).map(|(peer, _)| *peer);
            if found.is_none() && !self.is_only {
                return None;
            }
            peer = found;
        }
        Some(OpReport {
            op_count,
            p2p,
            // Versions that put no function into p2p ops have 0 there, which is Broadcast.
            coll: match pattern {
                Some(Pattern::Send) => Some("Send".to_owned()),
                Some(Pattern::Recv) => Some("Recv".to_owned()),
                _ => coll,
            },
            pattern: pattern.map(|pattern| pattern.name().to_owned()),
            protocol: op.protocol.map(|protocol| protocol.name().to_owned()),
            channel: op.channel,
            direction: op.direction,
            peer: peer.filter(|peer| *peer < self.comm.n_ranks),
            transport: proxy::transport_name(op.transport).map(str::to_owned),
            begun: op.begun,
            nsteps: op.nsteps,
            posted: op.posted,
            received: op.received,
            flushed: op.flushed,
            transmitted: op.transmitted,
            done: op.done,
            gpu: op.gpu,
            chunk_steps: op.chunk_steps,
            slice_steps: op.slice_steps,
            still_seconds: 0.0,
        })
    }

    fn peers(&mut self, channel: u32) -> &Peers {
        let (memory, layout, comm) = (self.memory, self.layout, self.comm);
        self.channels.entry(channel).or_insert_with(|| {
            layout.connections.of_channel(memory, &layout.comm, comm, channel).unwrap_or_default()
        })
    }
}

/// Whole seconds as the report has them.
fn seconds(seconds: u64) -> f64 {
    f64::from(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// `State:` in /proc/PID/status.
fn state_of(process: &Process) -> ProcessState {
    let status = read_text(process.proc_path().join("status")).unwrap_or_default();
    if process.has_exited() {
        return ProcessState::Exited;
    }
    match status_field(&status, "State").and_then(|state| state.bytes().next()) {
        Some(b'T' | b't') => ProcessState::Stopped,
        Some(b'Z' | b'X') => ProcessState::Exited,
        Some(_) => ProcessState::Running,
        None => ProcessState::Unknown,
    }
}
