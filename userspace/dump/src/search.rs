//! Search of processes for communicators: by the list that the library keeps, where it has one and can be read, or
//! through all memory. Some processes are searched at the same time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use inspect::{
    host::host_name,
    memory::{AddressSpace, Memory, ReadError, ScanEnd, ScanReport},
    process::{Description, MappedLibrary, Process, Tenant, maps::Mapping},
    resolver,
    threads::StackTop,
};

use super::{
    DumpOptions, OnProgress, Owner, ProcessReport, ProcessState, Progress, RankReport,
    communicator::{self, Communicator},
    libraries::{Layout, Libraries},
    making::{self, OnStacks},
    process::{Found, Target},
    process_state::live_threads,
    some_at_once,
};

/// Finds the communicators of processes, by their NCCL libraries: those given, or those that a process is
/// found to have. Errors are part of the reports.
pub(super) fn find(
    processes: impl Iterator<Item = (Process, Option<Vec<MappedLibrary>>)>,
    options: &DumpOptions,
    progress: &mut OnProgress<'_>,
) -> Vec<Target> {
    let mut libraries = Libraries::new(options.debug_files.clone());
    let mut targets: Vec<(Target, Vec<Library>)> =
        processes.map(|(process, files)| Target::open(process, files, &mut libraries)).collect();
    let progress = Mutex::new(progress);
    some_at_once(targets.iter_mut(), &|(target, libraries)| {
        target.search(libraries, options, &mut |seen| told(&progress, seen));
    });
    targets.into_iter().map(|(target, _)| target).collect()
}

/// Finds communicators that are being made, which the lists of the libraries lack, and tells whether there are any.
/// Call after [`Target::look_at_threads`].
pub(super) fn find_unlisted(
    targets: &mut [Target],
    options: &DumpOptions,
    progress: &mut OnProgress<'_>,
) -> bool {
    let before: usize = targets.iter().map(|target| target.found.len()).sum();
    let lacking: Vec<&mut Target> = targets.iter_mut().filter(|target| target.may_lack_one()).collect();
    let progress = Mutex::new(progress);
    some_at_once(lacking.into_iter(), &|target| {
        target.find_in_making(options, &mut |seen| told(&progress, seen));
    });
    targets.iter().map(|target| target.found.len()).sum::<usize>() > before
}

/// Tells one of some processes' progress.
fn told(progress: &Mutex<&mut OnProgress<'_>>, seen: &Progress<'_>) {
    progress.lock().unwrap_or_else(PoisonError::into_inner)(seen);
}

/// A library of a process, with its layout.
pub(super) type Library = (MappedLibrary, Arc<Layout>);

impl Target {
    /// Looks at a process, and resolves its libraries.
    pub(super) fn open(
        process: Process,
        files: Option<Vec<MappedLibrary>>,
        libraries: &mut Libraries,
    ) -> (Self, Vec<Library>) {
        let process = process.by_live_thread();
        let description = Description::read(&process, &libraries.users, &[]);
        let tenant = Tenant::of(&description);
        let report = ProcessReport {
            host: host_name(),
            pid: process.pid(),
            name: process.name().to_owned(),
            state: ProcessState::read(&process),
            owner: Some(Owner::read(&process, description)),
            first_thread_ended: process.has_lost_its_first_thread().then(|| live_threads(&process)),
            ..ProcessReport::default()
        };
        let mut target = Self::new(process, report);
        (target.tenant, target.started) = (Some(tenant), target.process.started());
        if target.report.state == ProcessState::Exited {
            let pid = target.report.pid;
            target.report.error =
                Some(format!("process {pid} has exited, and its parent has not waited for it"));
            return (target, Vec::new());
        }
        let files = target.libraries(files).unwrap_or_else(|error| {
            target.report.error = Some(format!("{error:#}"));
            Vec::new()
        });
        let mut found = Vec::new();
        for file in files {
            target.inodes.insert(file.id.inode);
            let (report, layout) = libraries.resolve(&file);
            target.report.libraries.push(report);
            found.extend(layout.map(|layout| (file, layout)));
        }
        (target, found)
    }

    fn libraries(&self, files: Option<Vec<MappedLibrary>>) -> Result<Vec<MappedLibrary>> {
        if !self.process.is_live() {
            return Err(ReadError::Gone(self.process.pid()).into());
        }
        Ok(files.map_or_else(|| resolver::libraries(&self.process, None), Ok)?)
    }

    /// Finds the communicators of these libraries.
    pub(super) fn search(
        &mut self,
        libraries: &[Library],
        options: &DumpOptions,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) {
        if let Err(error) = self.try_search(libraries, options, progress) {
            self.report.error = Some(format!("{:#}", anyhow::Error::from(error)));
        }
    }

    fn try_search(
        &mut self,
        libraries: &[Library],
        options: &DumpOptions,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<(), ReadError> {
        if libraries.is_empty() {
            return Ok(());
        }
        let space = AddressSpace::read(&self.process)?;
        for (file, layout) in libraries {
            let listed =
                layout.own_list.and_then(|list| list.read(&self.process, file, &layout.comm, &space));
            let (found, scan) = match listed {
                Some((found, scan, left_out)) => {
                    self.report.error = self.report.error.take().or(left_out);
                    (found, scan)
                }
                None => self.scan(layout, &space, options, options.first_only, progress)?,
            };
            self.report.scan = Some(scan);
            self.add(found, layout);
        }
        Ok(())
    }

    /// Tells whether a thread may be making a communicator that the list of the library need not have yet. Call
    /// after [`Self::look_at_threads`].
    fn may_lack_one(&self) -> bool {
        let is_listed = self.report.scan.as_ref().is_some_and(|scan| scan.ended_by == Some(ScanEnd::Listed));
        is_listed && self.report.calls().any(|(_, call)| may_make_communicators(call))
    }

    /// Finds communicators that the list of the library lacks: by the stacks of the threads in NCCL, or through all
    /// memory if these do not have one for each call that makes one.
    fn find_in_making(&mut self, options: &DumpOptions, progress: &mut dyn FnMut(&Progress<'_>)) {
        let Ok(space) = AddressSpace::read(&self.process) else { return };
        let mut seen = BTreeSet::new();
        let layouts = self.found.iter().map(|found| Arc::clone(&found.layout));
        let layouts: Vec<Arc<Layout>> = layouts.filter(|layout| seen.insert(layout.library)).collect();
        let (stacks, mut all_open) = (self.stacks(), BTreeMap::new());
        for layout in &layouts {
            let known = self.found.iter().map(|found| found.address).collect();
            let memory = Memory::new(&self.process);
            let on_stacks = making::find(memory, &layout.comm, &space, &stacks, &known);
            let Ok(OnStacks { found, open }) = on_stacks else { continue };
            all_open.extend(open);
            self.add(found, layout);
        }
        let calls: Vec<&str> = self.makers().map(|(_, call)| call).collect();
        let ranks = |hash| {
            let hash = communicator::hash_text(hash);
            self.found.iter().filter(|found| found.comm_hash == hash).count()
        };
        let known = self.found.iter().map(|found| (found.address, &found.layout.comm));
        let may_split = making::may_split(Memory::new(&self.process), known).unwrap_or(true);
        if !making::lacks_one(&calls, &all_open, may_split, ranks) {
            return;
        }
        for layout in &layouts {
            let searched = self.scan(layout, &space, options, false, progress);
            let Ok((found, scan)) = searched else { continue };
            self.report.scan = Some(scan);
            self.add(found, layout);
        }
    }

    /// Returns the threads that make communicators, with their calls.
    fn makers(&self) -> impl Iterator<Item = (u32, &str)> {
        self.report.calls().filter(|(_, call)| makes_communicators(call))
    }

    /// Returns the stacks of threads in NCCL: first those of threads that make communicators, then the newest.
    fn stacks(&self) -> Vec<StackTop> {
        let makers: BTreeSet<u32> = self.makers().map(|(tid, _)| tid).collect();
        let mut threads: Vec<_> = self.report.threads.iter().collect();
        threads.sort_by_key(|thread| Reverse((makers.contains(&thread.tid), thread.tid)));
        threads.into_iter().filter_map(|thread| thread.top.clone()).collect()
    }

    /// Adds the communicators that a search has found by the layout of a library. One that is known by that of
    /// another library, which the process has as well, is of the library that has its network plugin.
    pub(super) fn add(&mut self, found: Vec<Communicator>, layout: &Arc<Layout>) {
        let mut mappings = None;
        for comm in found {
            let RankReport { address, comm_hash, .. } = comm.report;
            let new = Found { layout: Arc::clone(layout), address, comm_hash };
            match self.found.iter().position(|known| known.address == address) {
                None => self.found.push(new),
                Some(known) if Arc::ptr_eq(&self.found[known].layout, layout) => {}
                Some(known) => {
                    let mappings = mappings
                        .get_or_insert_with(|| resolver::maps(self.process.pid()).unwrap_or_default());
                    if self.has_made(layout, address, mappings) {
                        self.found[known] = new;
                    }
                }
            }
        }
        self.report.communicators = self.found.len();
    }

    /// Tells whether the library of a layout is known to have made a communicator.
    fn has_made(&self, layout: &Layout, comm: u64, mappings: &[Mapping]) -> bool {
        let plugin_in = layout.nics.file_of_plugin(Memory::new(&self.process), mappings, comm);
        layout.library.is_some_and(|library| plugin_in == Some(library.inode))
    }

    fn scan(
        &self,
        layout: &Layout,
        space: &AddressSpace,
        options: &DumpOptions,
        first_only: bool,
        progress: &mut dyn FnMut(&Progress<'_>),
    ) -> Result<(Vec<Communicator>, ScanReport), ReadError> {
        let process = &self.process;
        let progress = &mut |scan: &_| progress(&Progress { process, scan });
        communicator::find(Memory::new(process), &layout.comm, space, options.limits, first_only, progress)
    }
}

/// Tells whether a call may make communicators. The end of a group may; but most often it waits for something else, and
/// a search of a large process takes seconds.
pub(super) fn may_make_communicators(call: &str) -> bool {
    makes_communicators(call) || call == "ncclGroupEnd"
}

/// Tells whether a call does not return before a communicator is made.
fn makes_communicators(call: &str) -> bool {
    ["ncclCommInit", "ncclCommSplit", "ncclCommShrink", "ncclCommGrow"]
        .iter()
        .any(|name| call.starts_with(name))
}
