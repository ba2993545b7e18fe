//! `--all`: the libraries that processes share.
//!
//! A library's probes have one cookie for all processes. The number of cookies is limited, while for months
//! files come and go with the environments and containers of jobs. So a library whose file is deleted leaves
//! its cookies to the next file with an equal [`Meaning`]. Equal files that exist at the same time share
//! cookies.

use crate::kernel::loader::{Attachment, Link};
use inspect::{
    clock::now_ns,
    process::{Filter, LibraryId, MappedLibrary, can_end_processes, no_return_probes},
    resolver::{self, ResolverError},
    shortage,
    unresponsive::Backoff,
};
use recording::rows::SharedBindings;
use std::{collections::HashMap, mem, num::NonZeroU32, time::Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use flow::{
    quota::{Limits, Shares},
    session::Budget,
};
use rustix::{
    process::{Resource, getrlimit},
    time::ClockId,
};

use super::{
    file_watch::{ChangedFiles, FileWatch},
    meaning::Meaning,
    options::Notice,
    reaper::Reaper,
    recorder::Recording,
    setup::{LibraryInUse, ResolvedLibrary, Wanted},
};

mod changes;

/// Most library files held at a time, of which one tenant has three quarters at most. Each is checked again
/// and again, and takes descriptors: where these are few, fewer files are held.
const MAX_HELD: usize = 512;
const DESCRIPTORS_OF_ONE: u64 = 8;
/// Most cookies of libraries, in all and of one tenant; those that share another's cookies cost none.
const COOKIES: Limits = Limits::three_quarters_for_one(ncclflow_common::MAX_PROBES as usize);

/// A process that has a library mapped, and the number of its tenant.
type Whose = (u32, Option<u32>);

/// A library, stored under its index in the report.
struct Library {
    /// Held, so that the inode is not reused for another file; `None` once the library is over.
    file: Option<MappedLibrary>,
    /// When the file was last found to be as it was resolved, by the records' clock.
    unchanged_ns: u64,
    traced: Result<Traced, String>,
    is_wanted: bool,
    /// This host was short of something, so the library is not traced.
    was_short: bool,
    /// Cookies left over by a library that is over, and their meaning.
    spare: Option<(Meaning, Vec<u32>)>,
    /// Tenant of the first process seen with the library.
    tenant: Option<u32>,
}

struct Traced {
    library: LibraryInUse,
    /// Cookies of the library's probes, in their order, and their meaning.
    cookies: Vec<u32>,
    meaning: Option<Meaning>,
    /// Links to the inode, where all processes are wanted, and none can have another content mapped.
    links: Vec<Link>,
    /// Probes are attached to one process after the other.
    by_process: bool,
}

/// A library whose file is no longer what was resolved.
pub(super) struct Gone {
    pub(super) index: usize,
    pub(super) path: String,
    pub(super) why: String,
    pub(super) unchanged_ns: u64,
}

/// All libraries of a recording, in the order of the report.
pub(super) struct Libraries<'a> {
    wanted: Wanted<'a>,
    filter: &'a Filter,
    bindings: SharedBindings,
    reaper: Reaper,
    /// Most files held at a time.
    held: Limits,
    known: Vec<Library>,
    watch: FileWatch,
    changed: ChangedFiles,
    /// Changed libraries, not reported yet.
    gone: Vec<Gone>,
    /// Why the last look at files did not see them all.
    not_looked_at: Option<String>,
    /// Cookies of libraries that were refused in the end, or changed.
    unused: Vec<(Meaning, Vec<u32>)>,
    /// Cookies that each tenant's libraries were the first to take.
    cookies_of: Shares,
    /// Files that could not be resolved or traced, and when they are tried again.
    failed: Backoff<LibraryId>,
    why_failed: HashMap<LibraryId, String>,
}

impl<'a> Libraries<'a> {
    pub(super) fn new(wanted: Wanted<'a>, filter: &'a Filter, bindings: SharedBindings) -> Result<Self> {
        let reaper = Reaper::start(&wanted.options.health).context("starting a thread")?;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = usize::try_from(limit / DESCRIPTORS_OF_ONE).map_or(MAX_HELD, |most| most.min(MAX_HELD));
        Ok(Self {
            wanted,
            filter,
            bindings,
            reaper,
            held: Limits::three_quarters_for_one(most),
            known: Vec::new(),
            watch: FileWatch::new(),
            changed: ChangedFiles::default(),
            gone: Vec::new(),
            not_looked_at: None,
            unused: Vec::new(),
            cookies_of: Shares::default(),
            failed: Backoff::default(),
            why_failed: HashMap::new(),
        })
    }

    /// Tells whether the library is of a version that was asked for.
    pub(super) fn is_wanted(&self, index: usize) -> bool {
        self.known.get(index).is_some_and(|library| library.is_wanted)
    }

    /// Hands these links to the reaper, which detaches them.
    pub(super) fn detach(&self, links: Vec<Link>) {
        self.reaper.take(links);
    }

    /// Returns the library's index; a new one is resolved first. A file that could not be resolved or traced
    /// is tried again after growing pauses, by whichever process it is seen.
    pub(super) fn index_of(
        &mut self,
        file: MappedLibrary,
        whose: Whose,
        recording: &mut Recording<'_>,
    ) -> Result<usize> {
        let (id, now) = (file.id, Instant::now());
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
            Err(error) => (Some(format!("{error:#}")), shortage::caused(error)),
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
        let is_known = |known: &MappedLibrary| known.shares_probes_with(&file);
        let mut again = None;
        if let Some(index) = position(&self.known, &is_known) {
            if !self.is_worth_another_try(index) {
                return Ok(index);
            }
            again = Some(index);
            if let Some(library) = self.known.get_mut(index) {
                library.file = None;
            }
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
        let resolved = ResolvedLibrary::new(file, &self.wanted)?;
        let is_wanted = self.filter.admits_version(resolved.resolved.resolution.nccl_version);
        let mut report = resolved.report();
        let traced = if is_wanted {
            resolved.into_use(self.wanted.options.choice).and_then(|library| {
                report = library.report();
                if let Some(cache) = self.wanted.cache
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
        let was_short = traced.as_ref().is_err_and(shortage::caused);
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
        let library =
            Library { file: Some(held), unchanged_ns, traced, was_short, is_wanted, spare: None, tenant };
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
        let (index, cookies) = if let Some(spare) = self.take_spare(meaning.as_ref()) {
            spare
        } else if let Some(cookies) = self.equal_cookies(meaning.as_ref()) {
            (self.free_index(recording), cookies)
        } else {
            self.take_cookies(&library, whose, recording)?;
            let index = self.known.len();
            let walks = library.store_walks(index, &mut recording.attachment, &self.bindings)?;
            let attachment = &mut recording.attachment;
            (index, library.store_probes(&walks, index, None, attachment, &self.bindings)?)
        };
        let attachment = &mut recording.attachment;
        // A process that still has the former content mapped must get no probe for this one.
        let by_process = !self.filter.is_empty()
            || (self.wanted.options.choice.returns && can_end_processes())
            || self.changed.since(name_of(&library.file)).is_some();
        let links = if by_process { Ok(Vec::new()) } else { library.link(&cookies, None, attachment) };
        let links = match links {
            Ok(links) => links,
            Err(error) => {
                // For the next library with the same meaning: this one may be refused again and again.
                give_back(&mut self.unused, meaning, cookies);
                return Err(error);
            }
        };
        Ok((index, Traced { library, cookies, meaning, links, by_process }))
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
        let held = |library: &&mut Library| library.file.is_some();
        let is_of_tenant = |library: &Library| tenant.is_some() && library.tenant == tenant;
        let (mut all, mut of_tenant) = (0, 0);
        for library in self.known.iter_mut().filter(held) {
            all += 1;
            of_tenant += usize::from(is_of_tenant(library));
        }
        let is_over = of_tenant >= self.held.of_one;
        if self.held.have_room(all, of_tenant) {
            return Ok(());
        }
        // A library that is not traced need not be held: it is known by its identity.
        let mut others = self.known.iter_mut().filter(held).filter(|library| library.traced.is_err());
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

    /// Tells whether a library, whose pause is over, was wanted and not traced.
    fn is_worth_another_try(&self, index: usize) -> bool {
        self.known.get(index).is_some_and(|library| library.is_wanted && library.traced.is_err())
    }

    /// Returns the cookies of a traced or refused library with this meaning.
    fn equal_cookies(&mut self, meaning: Option<&Meaning>) -> Option<Vec<u32>> {
        let meaning = meaning?;
        let traced = self.known.iter().filter_map(|library| library.traced.as_ref().ok());
        let shared = traced.into_iter().find(|traced| traced.meaning.as_ref() == Some(meaning));
        if let Some(shared) = shared {
            return Some(shared.cookies.clone());
        }
        let at = self.unused.iter().position(|(unused, _)| unused == meaning)?;
        Some(self.unused.swap_remove(at).1)
    }

    /// Takes the index and the cookies of a library that is over and had this meaning.
    fn take_spare(&mut self, meaning: Option<&Meaning>) -> Option<(usize, Vec<u32>)> {
        let meaning = meaning?;
        self.known.iter_mut().enumerate().find_map(|(index, known)| {
            let (_, cookies) = known.spare.take_if(|(spare, _)| spare == meaning)?;
            Some((index, cookies))
        })
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
        attachment: &mut Attachment,
    ) -> Result<(&LibraryInUse, Vec<Link>)> {
        match &self.known.get(index).context("no such library")?.traced {
            Ok(Traced { library, .. }) if self.may_have_former(&library.file, started) => bail!(
                "`{}` was changed in place, and the process can have mapped it before",
                library.file.shown()
            ),
            Ok(Traced { library, by_process: false, .. }) => Ok((library, Vec::new())),
            Ok(_)
                if self.wanted.options.choice.returns
                    && let Some(why) = no_return_probes(pid) =>
            {
                bail!("`--returns` cannot be used with it: {why}")
            }
            Ok(Traced { library, cookies, .. }) => {
                Ok((library, library.link(cookies, NonZeroU32::new(pid), attachment)?))
            }
            Err(why) => bail!("{why}"),
        }
    }

    /// Lets go of unused libraries whose files are deleted: nobody can use them again. Others stay attached,
    /// for the next process.
    pub(super) fn retire(&mut self, is_used: impl Fn(usize) -> bool) {
        let Self { known, reaper, .. } = self;
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
                if let Ok(Traced { cookies, meaning, links, .. }) = traced {
                    reaper.take(links);
                    library.spare = meaning.map(|meaning| (meaning, cookies));
                }
            }
        }
    }

    /// Returns all links, when the recording is over.
    pub(super) fn into_links(self) -> impl Iterator<Item = Link> {
        let traced = self.known.into_iter().filter_map(|library| library.traced.ok());
        traced.flat_map(|traced| traced.links)
    }
}

/// Keeps cookies that nobody uses, for the next library with the same meaning.
fn give_back(unused: &mut Vec<(Meaning, Vec<u32>)>, meaning: Option<Meaning>, cookies: Vec<u32>) {
    let meaning = meaning.filter(|meaning| unused.iter().all(|(known, _)| known != meaning));
    unused.extend(meaning.map(|meaning| (meaning, cookies)));
}

fn name_of(file: &MappedLibrary) -> (u64, u64) {
    (file.id.device, file.id.inode)
}
