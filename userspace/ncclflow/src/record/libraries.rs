//! `--all`: the libraries that processes share.
//!
//! A library is resolved once, and its probes have one cookie for all processes: records say which process
//! they are of. The number of cookies is limited, while files come and go with the environments and the
//! containers of jobs, for months. So a library whose file is deleted leaves its cookies to the next file
//! with the same build of NCCL.

use std::{
    io,
    num::NonZeroU32,
    os::unix::fs::MetadataExt as _,
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, bail};

use super::{
    bindings::SharedBindings,
    follow::Scene,
    options::Notice,
    setup::{LibraryInUse, ResolvedLibrary, Wanted},
};
use crate::{
    capture::Binding,
    kernel::{
        loader::{Attachment, Link, StoredParts, detach},
        probe::ProbePlace,
    },
    target::{Filter, MappedLibrary},
};
use flow::wire::ProbeKind;
use nccl_library::{
    elf::{BuildId, FileOffset},
    symbols::LayoutSource,
};

/// A library, under its index in the report.
#[derive(Debug)]
struct Library {
    /// Held, so that its inode comes to mean no other file; nothing once it is over.
    file: Option<MappedLibrary>,
    traced: Result<Traced, String>,
    is_wanted: bool,
    /// Its cookies, once it is over.
    spare: Option<Spare>,
}

/// The probes of a library.
#[derive(Debug)]
struct Traced {
    library: LibraryInUse,
    /// Cookies of its probes, in their order.
    cookies: Vec<u32>,
    /// To the inode, where there is no filter.
    links: Links,
}

/// Links to probes. They have no [`std::fmt::Debug`] of their own.
#[derive(Default)]
pub(super) struct Links(pub(super) Vec<Link>);

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} links", self.0.len())
    }
}

/// A library's probes, stored.
enum Stored {
    New(Box<Traced>),
    /// With the cookies of the library of this index.
    Again(usize),
}

/// All libraries of a recording, in the order of the report.
#[derive(Debug)]
pub(super) struct Libraries<'a> {
    wanted: Wanted<'a>,
    filter: &'a Filter,
    bindings: SharedBindings,
    reaper: Reaper,
    known: Vec<Library>,
    /// The report has changed since this was last asked.
    pub(super) has_changed: bool,
}

impl<'a> Libraries<'a> {
    pub(super) fn new(wanted: Wanted<'a>, filter: &'a Filter, bindings: SharedBindings) -> Result<Self> {
        let reaper = Reaper::start().context("starting a thread")?;
        Ok(Self { wanted, filter, bindings, reaper, known: Vec::new(), has_changed: false })
    }

    /// Whether the library is of a version that is asked for.
    pub(super) fn is_wanted(&self, index: usize) -> bool {
        self.known.get(index).is_some_and(|library| library.is_wanted)
    }

    /// The library, if it can be traced.
    pub(super) fn in_use(&self, index: usize) -> Option<&LibraryInUse> {
        Some(&self.known.get(index)?.traced.as_ref().ok()?.library)
    }

    /// Takes these links out of the kernel, soon.
    pub(super) fn detach(&self, links: Links) {
        self.reaper.take(links.0);
    }

    /// The library's index: known, or resolved now.
    pub(super) fn index_of(&mut self, file: MappedLibrary, scene: &mut Scene<'_>) -> Result<usize> {
        let is_known = |known: &MappedLibrary| known.shares_probes_with(&file);
        let known = self.known.iter().position(|library| library.file.as_ref().is_some_and(is_known));
        if let Some(index) = known {
            return Ok(index);
        }
        let held = file.try_clone()?;
        let resolved = ResolvedLibrary::new(file, &self.wanted)?;
        let is_wanted = self.filter.admits_version(resolved.version());
        let mut report = resolved.report();
        let traced = if is_wanted {
            resolved.into_use(self.wanted.choice).and_then(|library| {
                report = library.report();
                if let Some(cache) = self.wanted.cache
                    && let Err(error) = library.keep(cache)
                {
                    (scene.notice)(Notice::NotCached(&format!("{error:#}")));
                }
                let fits = |old: &Library| old.spare.as_ref().is_some_and(|spare| spare.fits(&library));
                if let Some(index) = self.known.iter().position(fits) {
                    return self.revive(index, library, scene.attachment).map(Stored::Again);
                }
                self.store(library, scene.attachment).map(|traced| Stored::New(Box::new(traced)))
            })
        } else {
            Err(anyhow::anyhow!("it is not of a version that was asked for"))
        };
        self.has_changed = true;
        let traced = match traced {
            Ok(Stored::Again(index)) => {
                if let (Some(library), Some(known)) =
                    (self.known.get_mut(index), scene.report.libraries.get_mut(index))
                {
                    (library.file, *known) = (Some(held), report);
                }
                return Ok(index);
            }
            Ok(Stored::New(traced)) => Ok(*traced),
            Err(error) => Err(format!("{error:#}")),
        };
        scene.report.libraries.push(report);
        self.known.push(Library { file: Some(held), traced, is_wanted, spare: None });
        Ok(self.known.len() - 1)
    }

    /// Puts a library's cookies to use again, for another file of the same build.
    fn revive(&mut self, index: usize, library: LibraryInUse, attachment: &mut Attachment) -> Result<usize> {
        let old = self.known.get_mut(index).context("no such library")?;
        let cookies = old.spare.take().map(|spare| spare.cookies).context("no cookies")?;
        let mut traced = Traced { library, cookies, links: Links::default() };
        if self.filter.is_empty() {
            traced.links = Links(link_all(&traced, attachment, None)?);
        }
        old.traced = Ok(traced);
        Ok(index)
    }

    /// Gives the library's probes their cookies, and, without a filter, attaches them for all processes.
    fn store(&self, library: LibraryInUse, attachment: &mut Attachment) -> Result<Traced> {
        let index = self.known.len();
        let bind = |kind: &ProbeKind| {
            self.bindings.push(Binding {
                kind: kind.clone(),
                decoder: Arc::clone(&library.decoder),
                host: None,
            });
        };
        let stored = store_walks(&library, index, attachment, bind)?;
        let mut cookies = Vec::new();
        for (probe, parts) in library.probes.probes.iter().zip(stored) {
            bind(&probe.kind);
            cookies.push(attachment.store(probe, parts, index, None)?);
        }
        let mut traced = Traced { library, cookies, links: Links::default() };
        if self.filter.is_empty() {
            traced.links = Links(link_all(&traced, attachment, None)?);
        }
        Ok(traced)
    }

    /// The links that a process needs for itself.
    pub(super) fn attach(&self, index: usize, pid: u32, attachment: &mut Attachment) -> Result<Vec<Link>> {
        match self.known.get(index).map(|library| &library.traced) {
            Some(Ok(_)) if self.filter.is_empty() => Ok(Vec::new()),
            Some(Ok(traced)) => link_all(traced, attachment, NonZeroU32::new(pid)),
            Some(Err(why)) => bail!("{why}"),
            None => bail!("no such library"),
        }
    }

    /// Lets go of libraries that nobody uses and nobody can use again: their files are deleted. Those that
    /// are still there stay attached, for the next process.
    pub(super) fn retire(&mut self, is_used: impl Fn(usize) -> bool) {
        let Self { known, reaper, .. } = self;
        for (index, library) in known.iter_mut().enumerate() {
            let Some(file) = &library.file else { continue };
            let is_deleted =
                file.try_clone_file().and_then(|file| file.metadata()).is_ok_and(|file| file.nlink() == 0);
            if is_deleted && !is_used(index) {
                library.file = None;
                if let Ok(traced) =
                    std::mem::replace(&mut library.traced, Err("its file was deleted".to_owned()))
                {
                    let Traced { library: in_use, cookies, links } = traced;
                    reaper.take(links.0);
                    library.spare = Spare::of(&in_use, cookies);
                }
            }
        }
    }

    /// All links: the recording is over.
    pub(super) fn into_links(self) -> impl Iterator<Item = Link> {
        let traced = self.known.into_iter().filter_map(|library| library.traced.ok());
        traced.flat_map(|traced| traced.links.0)
    }
}

/// Gives the programs of a library's walks their cookies, and `bind`s them in their order.
pub(super) fn store_walks(
    library: &LibraryInUse,
    index: usize,
    attachment: &mut Attachment,
    mut bind: impl FnMut(&ProbeKind),
) -> Result<Vec<Option<StoredParts>>> {
    let mut stored = Vec::new();
    for probe in &library.probes.probes {
        stored.push(match &probe.walk {
            None => None,
            Some(program) => {
                bind(&ProbeKind::Head);
                program.parts.iter().for_each(|part| bind(&part.kind));
                Some(attachment.store_parts(probe, program, index)?)
            }
        });
    }
    Ok(stored)
}

fn link_all(traced: &Traced, attachment: &mut Attachment, pid: Option<NonZeroU32>) -> Result<Vec<Link>> {
    let file = &traced.library.file;
    let path = file.stable_path();
    let probes = traced.library.probes.probes.iter().zip(traced.cookies.iter().copied());
    attachment.link(&probes.collect::<Vec<_>>(), &path, &file.path, pid)
}

/// What cookies stand for.
#[derive(Debug, PartialEq, Eq)]
struct Build {
    id: BuildId,
    layouts_from: LayoutSource,
    probes: Vec<(String, FileOffset, ProbePlace)>,
}

impl Build {
    /// `None`: the library does not say which build it is.
    fn of(library: &LibraryInUse) -> Option<Self> {
        let probes = library.probes.probes.iter();
        Some(Self {
            id: library.resolution.build_id.clone()?,
            layouts_from: library.resolution.layouts_from,
            probes: probes.map(|probe| (probe.symbol.clone(), probe.file_offset, probe.place())).collect(),
        })
    }
}

/// The cookies of a library that is over. It does not hold the file.
#[derive(Debug)]
struct Spare {
    build: Build,
    cookies: Vec<u32>,
}

impl Spare {
    fn of(library: &LibraryInUse, cookies: Vec<u32>) -> Option<Self> {
        Some(Self { build: Build::of(library)?, cookies })
    }

    /// Whether the cookies can stand for this library's probes.
    fn fits(&self, library: &LibraryInUse) -> bool {
        Build::of(library).is_some_and(|build| build == self.build)
    }
}

/// A thread that takes probes out of the kernel beside the recording: that takes about 0.1 s on Linux 6.12
/// and later, or, without links to many, as long for each probe, and nobody is to wait for it.
#[derive(Debug)]
struct Reaper {
    links: Option<Sender<Vec<Link>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    fn start() -> io::Result<Self> {
        let (sender, links) = mpsc::channel::<Vec<Link>>();
        let thread = thread::Builder::new().name("ncclflow-detach".to_owned()).spawn(move || {
            for links in links {
                detach(links, |_| {});
            }
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
