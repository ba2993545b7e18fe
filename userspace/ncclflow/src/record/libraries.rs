//! `--all`: the libraries that processes share.
//!
//! A library's probes have one cookie for all processes. The number of cookies is limited, while files come
//! and go with the environments and the containers of jobs, for months. So a library whose file is deleted
//! leaves its cookies to the next file of which all that is recorded is equal. Files that are there at the same
//! time share them.

use std::{
    io, mem,
    num::NonZeroU32,
    os::fd::BorrowedFd,
    sync::mpsc::{self, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::{thread::CapabilitySet, time::ClockId};

use super::{
    file_watch::{ChangedFiles, FileWatch, ticks_now, ticks_of},
    meaning::Meaning,
    options::Notice,
    recorder::Recording,
    setup::{Bindings, Change, LibraryInUse, ResolvedLibrary, Wanted},
};
use crate::{
    clock::now_ns,
    health::Health,
    kernel::loader::{Attachment, Link, detach},
    privileges, resolver,
    target::{Filter, MappedLibrary, can_end_processes, no_return_probes},
};

/// A library, under its index in the report.
struct Library {
    /// Held, so that its inode comes to mean no other file; nothing once it is over.
    file: Option<MappedLibrary>,
    /// When it was last found to be as it was resolved, by the records' clock.
    unchanged_ns: u64,
    traced: Result<Traced, String>,
    is_wanted: bool,
    /// Its cookies, and what they stand for, once it is over.
    spare: Option<(Meaning, Vec<u32>)>,
}

struct Traced {
    library: LibraryInUse,
    /// Cookies of its probes, in their order, and what they stand for.
    cookies: Vec<u32>,
    meaning: Option<Meaning>,
    /// To the inode, where all processes are wanted, and none can have another content mapped.
    links: Vec<Link>,
    /// It is attached to one process after the other.
    by_process: bool,
}

/// A library whose file is not what was resolved any more.
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
    bindings: Bindings,
    reaper: Reaper,
    known: Vec<Library>,
    watch: FileWatch,
    changed: ChangedFiles,
    /// Not told yet.
    gone: Vec<Gone>,
    /// Cookies of a library that was refused in the end.
    unused: Vec<(Meaning, Vec<u32>)>,
}

impl<'a> Libraries<'a> {
    pub(super) fn new(wanted: Wanted<'a>, filter: &'a Filter, bindings: Bindings) -> Result<Self> {
        let reaper = Reaper::start(&wanted.options.health).context("starting a thread")?;
        Ok(Self {
            wanted,
            filter,
            bindings,
            reaper,
            known: Vec::new(),
            watch: FileWatch::new(),
            changed: ChangedFiles::default(),
            gone: Vec::new(),
            unused: Vec::new(),
        })
    }

    /// Whether the library is of a version that is asked for.
    pub(super) fn is_wanted(&self, index: usize) -> bool {
        self.known.get(index).is_some_and(|library| library.is_wanted)
    }

    /// Takes these links out of the kernel, soon.
    pub(super) fn detach(&self, links: Vec<Link>) {
        self.reaper.take(links);
    }

    /// The library's index: known, or resolved now.
    pub(super) fn index_of(&mut self, file: MappedLibrary, recording: &mut Recording<'_>) -> Result<usize> {
        let position = |known: &[Library], is: &dyn Fn(&MappedLibrary) -> bool| {
            known.iter().position(|library| library.file.as_ref().is_some_and(is))
        };
        let is_known = |known: &MappedLibrary| known.shares_probes_with(&file);
        if let Some(index) = position(&self.known, &is_known) {
            return Ok(index);
        }
        // The same inode with another identity: it was changed, or its names or rights were.
        if position(&self.known, &|known| known.may_be_former_of(&file)).is_some() {
            self.look_for_changes();
            if let Some(index) = position(&self.known, &is_known) {
                return Ok(index);
            }
        }
        if self.changed.is_restless(name_of(&file)) {
            bail!("`{}` is not traced: its file is changed again and again", file.shown());
        }
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
                self.trace(library, &mut recording.attachment)
            })
        } else {
            Err(anyhow!("it is not of a version that was asked for"))
        };
        recording.is_outdated = true;
        let (index, traced) = match traced {
            Ok((index, traced)) => (index, Ok(traced)),
            Err(error) => (self.known.len(), Err(format!("{error:#}"))),
        };
        if traced.is_ok() {
            self.watch.add(held.held().try_clone_to_owned());
        }
        let unchanged_ns = now_ns(ClockId::Monotonic);
        let library = Library { file: Some(held), unchanged_ns, traced, is_wanted, spare: None };
        let reports = &mut recording.report.libraries;
        if let (Some(known), Some(of_known)) = (self.known.get_mut(index), reports.get_mut(index)) {
            (*known, *of_known) = (library, report);
        } else {
            self.known.push(library);
            reports.push(report);
        }
        Ok(index)
    }

    /// Gives the library's probes cookies, and, without a filter, attaches them for all processes. The index
    /// is that of the library whose cookies they were, or of the next one.
    fn trace(&mut self, library: LibraryInUse, attachment: &mut Attachment) -> Result<(usize, Traced)> {
        let meaning = Meaning::of(&library);
        let (index, cookies) = if let Some(spare) = self.take_spare(meaning.as_ref()) {
            spare
        } else if let Some(cookies) = self.equal_cookies(meaning.as_ref()) {
            (self.known.len(), cookies)
        } else {
            let index = self.known.len();
            let walks = library.store_walks(index, attachment, &self.bindings)?;
            (index, library.store_probes(&walks, index, None, attachment, &self.bindings)?)
        };
        // A process that still has the former content mapped must get no probe for this one.
        let by_process = !self.filter.is_empty()
            || (self.wanted.options.choice.returns && can_end_processes())
            || self.changed.since(name_of(&library.file)).is_some();
        let links = if by_process { Ok(Vec::new()) } else { library.link(&cookies, None, attachment) };
        let links = match links {
            Ok(links) => links,
            Err(error) => {
                // They are for the next library of the same kind: this one may be refused again and again.
                self.unused.extend(meaning.map(|meaning| (meaning, cookies)));
                return Err(error);
            }
        };
        Ok((index, Traced { library, cookies, meaning, links, by_process }))
    }

    /// The cookies of a library that is traced, or was refused, and of which all is equal.
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

    /// The index and the cookies of a library that is over, and of which all was equal.
    fn take_spare(&mut self, meaning: Option<&Meaning>) -> Option<(usize, Vec<u32>)> {
        let meaning = meaning?;
        self.known.iter_mut().enumerate().find_map(|(index, known)| {
            let (_, cookies) = known.spare.take_if(|(spare, _)| spare == meaning)?;
            Some((index, cookies))
        })
    }

    /// The library, if it can be traced, and the links that a process needs for itself.
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

    /// Lets go of libraries that nobody uses and nobody can use again: their files are deleted. Those that
    /// are still there stay attached, for the next process.
    pub(super) fn retire(&mut self, is_used: impl Fn(usize) -> bool) {
        let Self { known, reaper, .. } = self;
        for (index, library) in known.iter_mut().enumerate() {
            let Some(file) = &library.file else { continue };
            // One that does not answer is not asked again.
            let is_deleted =
                !is_used(index) && resolver::check(file, &[]).map_or(true, |(status, _)| status.links == 0);
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

    /// Files with probes on them are looked at now and then, and when the kernel says that one was changed.
    pub(super) fn watch(&mut self) -> &mut FileWatch {
        &mut self.watch
    }

    pub(super) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.fd()
    }

    /// Until the next look at files; `None`: none has probes on it.
    pub(super) fn watch_timeout(&self) -> Option<Duration> {
        self.known.iter().any(|library| library.traced.is_ok()).then(|| self.watch.timeout())
    }

    /// Libraries whose files were found to be changed.
    pub(super) fn take_gone(&mut self) -> Vec<Gone> {
        mem::take(&mut self.gone)
    }

    /// Takes the probes off files that are not what was resolved any more.
    pub(super) fn look_for_changes(&mut self) {
        let Self { known, reaper, changed, gone, .. } = self;
        for (index, library) in known.iter_mut().enumerate() {
            let (Some(file), Ok(Traced { library: in_use, .. })) = (&mut library.file, &mut library.traced)
            else {
                continue;
            };
            match in_use.unchanged() {
                Ok(status) => {
                    library.unchanged_ns = now_ns(ClockId::Monotonic);
                    file.id = status.id;
                    in_use.adopt(status.id);
                }
                Err(why) => {
                    // Whoever was started before its ctime can have the former content; without one, before now.
                    let since = if matches!(why, Change::Changed) { 0 } else { ticks_now() };
                    changed.add(name_of(file), since);
                    let (path, unchanged_ns) = (file.shown(), library.unchanged_ns);
                    let why = why.to_string();
                    gone.push(Gone { index, path, why: why.clone(), unchanged_ns });
                    library.file = None;
                    if let Ok(Traced { links, .. }) = mem::replace(&mut library.traced, Err(why)) {
                        reaper.take(links);
                    }
                }
            }
        }
    }

    /// Whether a process that was started then can have the former content of a changed file mapped.
    fn may_have_former(&self, file: &MappedLibrary, started: Option<u64>) -> bool {
        let since = self.changed.since(name_of(file)).map(|since| since.max(ticks_of(file.id.changed)));
        since.is_some_and(|since| started.is_none_or(|started| started <= since))
    }

    /// All links: the recording is over.
    pub(super) fn into_links(self) -> impl Iterator<Item = Link> {
        let traced = self.known.into_iter().filter_map(|library| library.traced.ok());
        traced.flat_map(|traced| traced.links)
    }
}

fn name_of(file: &MappedLibrary) -> (u64, u64) {
    (file.id.device, file.id.inode)
}

/// A thread that takes probes out of the kernel beside the recording: that takes about 0.1 s on Linux 6.12
/// and later, or, without links to many, as long for each probe, and nobody is to wait for it.
struct Reaper {
    links: Option<Sender<Vec<Link>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    fn start(health: &Health) -> io::Result<Self> {
        let (sender, links) = mpsc::channel::<Vec<Link>>();
        let health = health.clone();
        let thread = thread::Builder::new().name("ncclflow-detach".to_owned()).spawn(move || {
            let guard = health.guard("ncclflow-detach");
            privileges::keep_only(CapabilitySet::empty());
            for links in links {
                detach(links, |_| {});
            }
            guard.done();
        })?;
        Ok(Self { links: Some(sender), thread: Some(thread) })
    }

    /// Detaches these, soon.
    fn take(&self, links: Vec<Link>) {
        if let Some(sender) = &self.links
            && !links.is_empty()
        {
            // The thread lives as long as the sender; if it does not, they are dropped here, one by one.
            let _ = sender.send(links);
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.links = None;
        if let Some(thread) = self.thread.take() {
            // It cannot panic: it only drops.
            let _ = thread.join();
        }
    }
}
