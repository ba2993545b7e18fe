//! `--all`: the libraries that processes share.
//!
//! A library's probes have one cookie for all processes. The number of cookies is limited, while for months
//! files come and go with the environments and containers of jobs. So all files with an equal [`Meaning`]
//! have the same cookies, whether they exist at the same time or one after the other.

use crate::kernel::loader::Link;
use inspect::{
    clock::now_ns,
    process::{Filter, LibraryId, MappedLibrary, can_end_processes, no_return_probes},
    resolver::{self, ResolverError},
    resource_exhaustion,
    unresponsive::Backoff,
};
use std::{
    collections::HashMap,
    mem,
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use flow::{
    quota::{Limits, Shares},
    session::{Budget, ChangedLibrary},
};
use rustix::time::ClockId;

use super::{
    file_watch::{ChangedFiles, FileWatch, ticks_now, ticks_of},
    options::{Notice, RecordOptions},
    own_limits::descriptors,
    probe_fingerprint::Meaning,
    reaper::Reaper,
    recorder::Recording,
    setup::{Change, LibraryInUse, Wanted},
};

/// Most library files held at a time, of which one tenant has three quarters at most. Each is checked again
/// and again, and takes descriptors: where these are few, fewer files are held.
const MAX_HELD: usize = 512;
const DESCRIPTORS_OF_ONE: usize = 8;
/// Most cookies of libraries, in all and of one tenant; those that share another's cookies cost none.
const COOKIES: Limits = Limits::three_quarters_for_one(ncclflow_common::MAX_PROBES as usize);

/// A process that has a library mapped, and the number of its tenant.
type Whose = (u32, Option<u32>);

/// A file, and whether it is looked at as CUDA's driver. Its name decides, which the process can choose: what became
/// of a file under one name says nothing of other processes, which have it under another.
type FileInRole = (LibraryId, bool);

/// A library, stored under its index in the report.
struct Library {
    /// Held, so that the inode is not reused for another file; `None` once the library is over.
    file: Option<MappedLibrary>,
    /// When the file was last found to be as it was resolved, by the records' clock.
    unchanged_ns: u64,
    traced: Result<Traced, String>,
    is_wanted: bool,
    is_driver: bool,
    /// This host was short of something, so the library is not traced.
    was_short: bool,
    /// Cookies of a library whose file was deleted: the next with these takes its index.
    spare: Option<Arc<[u32]>>,
    /// Tenant of the first process seen with the library.
    tenant: Option<u32>,
}

struct Traced {
    library: LibraryInUse,
    /// Cookies of the library's probes, in their order.
    cookies: Arc<[u32]>,
    /// Links to the inode, where all processes are wanted, and none can have another content mapped.
    links: Vec<Link>,
    /// Probes are attached to one process after the other.
    by_process: bool,
}

/// All libraries of a recording, in the order of the report.
pub(super) struct Libraries<'a> {
    filter: &'a Filter,
    pub(super) reaper: Reaper,
    /// Most files held at a time.
    held: Limits,
    known: Vec<Library>,
    /// Watch for changes of files with probes on them.
    pub(super) watch: FileWatch,
    changed: ChangedFiles,
    /// Changed libraries, not reported yet, without the processes that had them mapped.
    pub(super) gone: Vec<ChangedLibrary>,
    /// Why the last look at files did not see them all; unseen files keep their probes.
    pub(super) unseen: Option<String>,
    /// Cookies of all libraries until now, by their meaning.
    cookies: Vec<(Meaning, Arc<[u32]>)>,
    /// Cookies that each tenant's libraries were the first to take.
    cookies_of: Shares,
    /// Files that could not be resolved or traced, and when they are tried again.
    failed: Backoff<FileInRole>,
    why_failed: HashMap<FileInRole, String>,
}

impl<'a> Libraries<'a> {
    pub(super) fn new(options: &RecordOptions, filter: &'a Filter) -> Result<Self> {
        let reaper = Reaper::start(&options.health)?;
        let most = MAX_HELD.min(descriptors() / DESCRIPTORS_OF_ONE);
        Ok(Self {
            filter,
            reaper,
            held: Limits::three_quarters_for_one(most),
            known: Vec::new(),
            watch: FileWatch::new(),
            changed: ChangedFiles::default(),
            gone: Vec::new(),
            unseen: None,
            cookies: Vec::new(),
            cookies_of: Shares::default(),
            failed: Backoff::default(),
            why_failed: HashMap::new(),
        })
    }

    /// Tells whether the library is of a version that was asked for.
    pub(super) fn is_wanted(&self, index: usize) -> bool {
        self.known.get(index).is_some_and(|library| library.is_wanted)
    }

    /// Returns the library's index; a new one is resolved first. A file that could not be resolved or traced
    /// is tried again after growing pauses, by whichever process it is seen.
    pub(super) fn index_of(
        &mut self,
        file: MappedLibrary,
        whose: Whose,
        recording: &mut Recording<'_>,
    ) -> Result<usize> {
        let (id, now) = ((file.id, file.is_driver()), Instant::now());
        if self.failed.is_put_off(&id, now) {
            let why = self.why_failed.get(&id).map_or("it was tried before", String::as_str);
            bail!("{why}");
        }
        let found = self.known_or_new(file, whose, recording);
        let (why, is_short) = match &found {
            Ok(index) => {
                let library = self.known.get(*index).filter(|library| library.is_wanted);
                let why = library.and_then(|library| library.traced.as_ref().err()).cloned();
                (why, library.is_some_and(|library| library.was_short))
            }
            Err(error) => (Some(format!("{error:#}")), resource_exhaustion::caused(error)),
        };
        match why {
            None => {
                self.failed.forget(&id);
                self.why_failed.remove(&id);
            }
            Some(why) => {
                if is_short {
                    self.failed.put_off_shortly(id, now);
                } else {
                    self.failed.put_off(id, now);
                }
                let failed = &self.failed;
                self.why_failed.retain(|id, _| failed.is_put_off(id, now));
                self.why_failed.insert(id, why);
            }
        }
        found
    }

    fn known_or_new(
        &mut self,
        file: MappedLibrary,
        whose: Whose,
        recording: &mut Recording<'_>,
    ) -> Result<usize> {
        let position = |known: &[Library], is: &dyn Fn(&MappedLibrary) -> bool| {
            known.iter().position(|library| library.file.as_ref().is_some_and(is))
        };
        let is_driver = file.is_driver();
        let is_known =
            |known: &MappedLibrary| known.is_driver() == is_driver && known.shares_probes_with(&file);
        let mut again = None;
        if let Some(index) = position(&self.known, &is_known) {
            // One that was wanted, and not traced, is worth another try: its pause is over.
            let untraced = |library: &&mut Library| library.is_wanted && library.traced.is_err();
            let Some(library) = self.known.get_mut(index).filter(untraced) else { return Ok(index) };
            library.file = None;
            again = Some(index);
        }
        // The same inode with another identity: the file was changed, or its names or rights were.
        if position(&self.known, &|known| known.may_be_former_of(&file)).is_some() {
            self.look_for_changes();
            if let Some(index) = position(&self.known, &is_known) {
                return Ok(index);
            }
        }
        if self.changed.is_restless(name_of(&file)) {
            bail!("`{}` is not traced: its file is changed again and again", file.shown());
        }
        self.make_room(whose, recording)?;
        let held = file.try_clone()?;
        let (options, cache) = (recording.options, recording.cache);
        let resolved = LibraryInUse::resolve(file, &Wanted { options, cache })?;
        let version = resolved.resolved.resolution.nccl_version;
        let is_wanted = resolved.is_driver() || self.filter.admits_version(version);
        let mut report = resolved.report();
        let traced = if is_wanted {
            resolved.with_probes(options.choice).and_then(|library| {
                report = library.report();
                if let Some(cache) = cache
                    && let Err(error) = library.keep(cache)
                {
                    (recording.notice)(Notice::NotCached(&format!("{error:#}")));
                }
                self.trace(library, whose, recording)
            })
        } else {
            Err(anyhow!("it is not of a version that was asked for"))
        };
        recording.is_outdated = true;
        let was_short = traced.as_ref().is_err_and(resource_exhaustion::caused);
        let (index, traced) = match traced {
            Ok((index, traced)) => (index, Ok(traced)),
            Err(error) => {
                let index = again.unwrap_or_else(|| self.free_index(recording));
                (index, Err(format!("{error:#}")))
            }
        };
        if traced.is_ok() {
            self.watch.add(held.held().try_clone_to_owned());
        }
        let unchanged_ns = now_ns(ClockId::Monotonic);
        let tenant = whose.1;
        let library = Library {
            file: Some(held),
            unchanged_ns,
            traced,
            was_short,
            is_wanted,
            is_driver,
            spare: None,
            tenant,
        };
        let reports = &mut recording.report.libraries;
        if let (Some(known), Some(of_known)) = (self.known.get_mut(index), reports.get_mut(index)) {
            (*known, *of_known) = (library, report);
        } else {
            self.known.push(library);
            reports.push(report);
        }
        Ok(index)
    }

    /// Gives the library's probes cookies, and, without a filter, attaches them for all processes. Returns
    /// the index of the library whose cookies they were, or the next one.
    fn trace(
        &mut self,
        library: LibraryInUse,
        whose: Whose,
        recording: &mut Recording<'_>,
    ) -> Result<(usize, Traced)> {
        let meaning = Meaning::of(&library);
        let mut equal = self.cookies.iter().filter(|(known, _)| Some(known) == meaning.as_ref());
        let (index, cookies) = if let Some(cookies) = equal.next().map(|(_, cookies)| Arc::clone(cookies)) {
            let spare = |known: &mut Library| known.spare.take_if(|spare| *spare == cookies).is_some();
            let index = self.known.iter_mut().position(spare);
            (index.unwrap_or_else(|| self.free_index(recording)), cookies)
        } else {
            self.take_cookies(&library, whose, recording)?;
            let index = self.known.len();
            let Recording { attachment, bindings, .. } = &mut *recording;
            let walks = library.store_walks(index, attachment, bindings)?;
            let cookies: Arc<[u32]> = library.store_probes(&walks, index, None, attachment, bindings)?.into();
            self.cookies.extend(meaning.map(|meaning| (meaning, Arc::clone(&cookies))));
            (index, cookies)
        };
        let attachment = &mut recording.attachment;
        // A process that still has the former content mapped must get no probe for this one.
        // Others than jobs of NCCL launch graphs, too.
        let by_process = !self.filter.is_empty()
            || library.is_driver()
            || (recording.options.choice.returns && can_end_processes())
            || self.changed.since(name_of(&library.file)).is_some();
        let links = if by_process { Vec::new() } else { library.link(&cookies, None, attachment)? };
        Ok((index, Traced { library, cookies, links, by_process }))
    }

    /// Checks that there are cookies for all of a library's probes, and that its tenant may have them. If
    /// not, none is used up.
    fn take_cookies(
        &mut self,
        library: &LibraryInUse,
        (pid, tenant): Whose,
        recording: &mut Recording<'_>,
    ) -> Result<()> {
        let wanted = library.cookies();
        let left = recording.attachment.cookies_left();
        let taken = tenant.map_or(0, |tenant| self.cookies_of.of(tenant));
        let is_over = taken + wanted > COOKIES.of_one;
        if wanted > left || is_over {
            recording.report.over(Budget::Cookies, pid, 1);
            bail!(
                "its {wanted} probes need numbers of their own, and {}",
                if is_over {
                    format!("libraries of the same user or container have {taken} already")
                } else {
                    format!("{left} are left")
                }
            );
        }
        if let Some(tenant) = tenant {
            self.cookies_of.take(tenant, wanted);
        }
        Ok(())
    }

    /// Makes room to hold one more file.
    fn make_room(&mut self, (pid, tenant): Whose, recording: &mut Recording<'_>) -> Result<()> {
        let is_of_tenant = |library: &Library| tenant.is_some() && library.tenant == tenant;
        let mut held: Vec<_> = self.known.iter_mut().filter(|library| library.file.is_some()).collect();
        let (all, of_tenant) = (held.len(), held.iter().filter(|library| is_of_tenant(library)).count());
        let is_over = of_tenant >= self.held.of_one;
        if self.held.have_room(all, of_tenant) {
            return Ok(());
        }
        // A library that is not traced need not be held: it is known by its identity.
        let mut others = held.iter_mut().filter(|library| library.traced.is_err());
        if let Some(other) = others.find(|library| !is_over || is_of_tenant(library)) {
            other.file = None;
            return Ok(());
        }
        recording.report.over(Budget::Libraries, pid, 1);
        bail!("{all} library files are held already, {of_tenant} of them of the same user or container")
    }

    /// Returns the index for a library without probes of its own: an unused one, or the next.
    fn free_index(&self, recording: &Recording<'_>) -> usize {
        let (targets, probes) = (&recording.report.targets, recording.attachment.probes());
        let has_probes = |index: usize| probes.iter().any(|probe| probe.library == index);
        let is_listed = |index: usize| targets.iter().any(|target| target.libraries.contains(&index));
        let next = self.known.len();
        // While there are few it is not worth looking. The next index may have got probes before its library
        // was refused.
        if next < MAX_HELD || has_probes(next) {
            return next;
        }
        let is_over =
            |library: &Library| library.file.is_none() && library.spare.is_none() && library.traced.is_err();
        let mut over = self.known.iter().enumerate().filter(|(_, library)| is_over(library));
        over.find(|(index, _)| !has_probes(*index) && !is_listed(*index)).map_or(next, |(index, _)| index)
    }

    /// Tells whether the library is CUDA's driver, and no NCCL.
    pub(super) fn is_driver(&self, index: usize) -> bool {
        self.known.get(index).is_some_and(|library| library.is_driver)
    }

    /// Tells whether the library's probes tell what graphs capture.
    pub(super) fn ties_graphs(&self, index: usize) -> bool {
        let traced = self.known.get(index).and_then(|library| library.traced.as_ref().ok());
        traced.is_some_and(|traced| !traced.library.is_driver() && traced.library.ties_graphs())
    }

    /// Tells whether each process gets links of its own.
    pub(super) fn takes_links(&self, index: usize) -> bool {
        let traced = self.known.get(index).and_then(|library| library.traced.as_ref().ok());
        traced.is_some_and(|traced| traced.by_process)
    }

    /// Returns the library, if it can be traced, and the links that a process needs for itself.
    pub(super) fn attach(
        &self,
        index: usize,
        pid: u32,
        started: Option<u64>,
        recording: &mut Recording<'_>,
    ) -> Result<(&LibraryInUse, Vec<Link>)> {
        match &self.known.get(index).context("no such library")?.traced {
            Ok(Traced { library, .. }) if self.may_have_former(&library.file, started) => bail!(
                "`{}` was changed in place, and the process can have mapped it before",
                library.file.shown()
            ),
            Ok(Traced { library, by_process: false, .. }) => Ok((library, Vec::new())),
            Ok(Traced { library, .. })
                if recording.options.choice.returns
                    && !library.is_driver()
                    && let Some(why) = no_return_probes(pid) =>
            {
                bail!("`--returns` cannot be used with it: {why}")
            }
            Ok(Traced { library, cookies, .. }) => {
                Ok((library, library.link(cookies, NonZeroU32::new(pid), &mut recording.attachment)?))
            }
            Err(why) => bail!("{why}"),
        }
    }

    /// Lets go of unused libraries whose files are deleted: nobody can use them again. Others stay attached,
    /// for the next process.
    pub(super) fn retire(&mut self, is_used: impl Fn(usize) -> bool) {
        let Self { known, reaper, cookies: shared, .. } = self;
        for (index, library) in known.iter_mut().enumerate() {
            let Some(file) = &library.file else { continue };
            // A file that does not answer is not asked again.
            let is_deleted = !is_used(index)
                && match resolver::check(file, &[]) {
                    Ok((status, _)) => status.links == 0,
                    // Nothing is known of the file.
                    Err(ResolverError::Unavailable(_)) => false,
                    Err(_) => true,
                };
            if is_deleted {
                library.file = None;
                let traced = mem::replace(&mut library.traced, Err("its file was deleted".to_owned()));
                if let Ok(Traced { cookies, links, .. }) = traced {
                    reaper.take(links);
                    library.spare = shared.iter().any(|(_, known)| *known == cookies).then_some(cookies);
                }
            }
        }
    }

    /// Returns the time until the next look; `None` if no file has probes.
    pub(super) fn watch_timeout(&self) -> Option<Duration> {
        self.known.iter().any(|library| library.traced.is_ok()).then(|| self.watch.timeout())
    }

    /// Takes the probes off files that are no longer what was resolved.
    pub(super) fn look_for_changes(&mut self) {
        let Self { known, reaper, changed, gone, unseen, .. } = self;
        *unseen = None;
        for (index, library) in known.iter_mut().enumerate() {
            let (Some(file), Ok(Traced { library: in_use, .. })) = (&mut library.file, &mut library.traced)
            else {
                continue;
            };
            let why = match in_use.look(&mut library.unchanged_ns, unseen) {
                Ok(None) => continue,
                Ok(Some(status)) => {
                    // Its content is as resolved.
                    (file.id, in_use.file.id) = (status.id, status.id);
                    continue;
                }
                Err(why) => why,
            };
            // Whoever was started before its ctime can have the former content; without one, before now.
            let since = if matches!(why, Change::Changed) { 0 } else { ticks_now() };
            changed.add(name_of(file), since);
            let why = why.to_string();
            gone.push(ChangedLibrary {
                library: index,
                path: file.shown(),
                seen_ns: now_ns(ClockId::Monotonic),
                what: why.clone(),
                pids: Vec::new(),
                unchanged_until_ns: library.unchanged_ns,
            });
            library.file = None;
            if let Ok(Traced { links, .. }) = mem::replace(&mut library.traced, Err(why)) {
                reaper.take(links);
            }
        }
    }

    /// Tells whether a process started at `started` can have the former content of a changed file mapped.
    fn may_have_former(&self, file: &MappedLibrary, started: Option<u64>) -> bool {
        let since = self.changed.since(name_of(file)).map(|since| since.max(ticks_of(file.id.changed)));
        since.is_some_and(|since| started.is_none_or(|started| started <= since))
    }

    /// Returns all links, when the recording is over.
    pub(super) fn into_links(self) -> impl Iterator<Item = Link> {
        self.reaper.end();
        let traced = self.known.into_iter().filter_map(|library| library.traced.ok());
        traced.flat_map(|traced| traced.links)
    }
}

fn name_of(file: &MappedLibrary) -> (u64, u64) {
    (file.id.device, file.id.inode)
}
