//! `--all`: processes are found, and let go of, while the recording goes on.
//!
//! A library is resolved once, and its probes have one cookie for all processes: records say whose they are. Without a filter a probe is
//! attached to the library's inode, so that a process that starts later is traced from its first instruction, before anybody has
//! looked at it. With a filter it is attached process by process: in those that are not wanted the kernel then places no breakpoint.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    os::{fd::BorrowedFd, unix::fs::MetadataExt as _},
};

use anyhow::{Context as _, Result, bail};
use rustix::time::ClockId;

use super::{
    bindings::SharedBindings,
    reaper::Reaper,
    recorder::Notice,
    setup::{LibraryInUse, ResolvedLibrary, Wanted},
    spare::Spare,
};
use crate::{
    capture::Binding,
    clock::now_ns,
    kernel::loader::{Attachment, Link, StoredParts},
    sinks::{SessionReport, TargetReport},
    target::{
        Census, Description, Filter, Identifier, MappedLibrary, Process, Sighting, Users,
        in_first_pid_namespace, look_for_nccl,
    },
};
use flow::wire::ProbeKind;

/// Rounds between two looks for libraries that nobody uses any more.
const RETIRE_ROUNDS: u32 = 10;
/// Entries of `passed_over`; what goes wrong more often than that is counted.
const MAX_PASSED_OVER: usize = 1000;

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

/// Links, which say nothing of themselves.
#[derive(Default)]
struct Links(Vec<Link>);

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

/// A process that is traced, or has NCCL and cannot be.
#[derive(Debug)]
struct Followed {
    process: Process,
    /// Index in the report's targets.
    target: usize,
    libraries: Vec<usize>,
    /// To this process alone, where there is a filter.
    links: Links,
}

/// What a round works with and writes to.
pub(super) struct Scene<'a> {
    pub(super) attachment: &'a mut Attachment,
    pub(super) report: &'a mut SessionReport,
    pub(super) notice: &'a mut dyn FnMut(Notice<'_>),
}

/// Finds processes, attaches to them, and lets go of them.
#[derive(Debug)]
pub(super) struct Follower<'a> {
    wanted: Wanted<'a>,
    filter: &'a Filter,
    bindings: SharedBindings,
    users: Users,
    identifier: Identifier,
    census: Census,
    reaper: Reaper,
    libraries: Vec<Library>,
    processes: HashMap<u32, Followed>,
    rounds: u32,
    passed_over: usize,
    /// The report has changed since it was last written.
    changed: bool,
}

impl<'a> Follower<'a> {
    pub(super) fn new(wanted: Wanted<'a>, filter: &'a Filter, bindings: SharedBindings) -> Result<Self> {
        if !in_first_pid_namespace().context("reading our PID namespace")? {
            bail!(
                "--all needs the host's PID namespace (docker run --pid=host, Kubernetes hostPID: true): the kernel numbers \
                 processes by it"
            );
        }
        Ok(Self {
            wanted,
            filter,
            bindings,
            users: Users::read(),
            identifier: Identifier::default(),
            census: Census::default(),
            reaper: Reaper::start().context("starting a thread")?,
            libraries: Vec::new(),
            processes: HashMap::new(),
            rounds: 0,
            passed_over: 0,
            changed: false,
        })
    }

    /// Looks at what is new among the processes of the node.
    pub(super) fn round(&mut self, scene: &mut Scene<'_>) -> Result<()> {
        for pid in self.census.round().context("listing /proc")? {
            self.look(pid, scene);
        }
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(RETIRE_ROUNDS) {
            self.retire_libraries();
        }
        Ok(())
    }

    /// Readable as processes end.
    pub(super) fn exit_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.processes.values().map(|followed| followed.process.exit_fd())
    }

    /// Processes that are traced now.
    pub(super) fn traced_pids(&self) -> Vec<u32> {
        let traced = self.processes.iter().filter(|(_, followed)| !followed.libraries.is_empty());
        traced.map(|(pid, _)| *pid).collect()
    }

    /// Whether the report has changed since this was last asked.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Lets go of processes that have ended: their numbers.
    pub(super) fn let_go(&mut self, scene: &mut Scene<'_>) -> Vec<u32> {
        let ended: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, followed)| followed.process.has_exited())
            .map(|(pid, _)| *pid)
            .collect();
        for pid in &ended {
            let Some(followed) = self.processes.remove(pid) else { continue };
            self.census.forget(*pid);
            self.reaper.take(followed.links.0);
            if let Some(target) = scene.report.targets.get_mut(followed.target) {
                target.exited = true;
                if target.untraced.is_none() {
                    (scene.notice)(Notice::TargetExited { pid: *pid });
                }
            }
            self.changed = true;
        }
        ended
    }

    /// A first record of a process came. Says whether it is there; if not, it has ended already.
    pub(super) fn arrived(&mut self, pid: u32, scene: &mut Scene<'_>) -> bool {
        if !self.processes.contains_key(&pid) {
            self.look(pid, scene);
        }
        if !self.processes.contains_key(&pid) {
            let process = Process::open(pid).ok();
            let (name, own_pid) = process
                .as_ref()
                .map_or((String::new(), pid), |process| (process.name().to_owned(), process.own_pid()));
            let target = self.add_target(
                scene.report,
                TargetReport {
                    pid,
                    own_pid,
                    name,
                    libraries: Vec::new(),
                    exited: process.is_none(),
                    started_ticks: process.as_ref().and_then(Process::started),
                    followed_since_ns: None,
                    untraced: None,
                },
            );
            let Some(process) = process else { return false };
            // It is between two programs, or has unloaded NCCL: its end is waited for.
            self.processes
                .insert(pid, Followed { process, target, libraries: Vec::new(), links: Links::default() });
        }
        true
    }

    fn add_target(&mut self, report: &mut SessionReport, target: TargetReport) -> usize {
        self.changed = true;
        report.targets.push(target);
        report.targets.len() - 1
    }

    fn look(&mut self, pid: u32, scene: &mut Scene<'_>) {
        if self.processes.get(&pid).is_some_and(|followed| followed.process.has_exited()) {
            // The number means another process already: once the first is let go of.
            self.census.forget(pid);
            return;
        }
        // What may not be looked at cannot be told from what has no NCCL.
        if let Ok(Some(sighting)) = look_for_nccl(pid, &mut self.identifier) {
            self.consider(sighting, scene);
        }
    }

    fn consider(&mut self, sighting: Sighting, scene: &mut Scene<'_>) {
        let Sighting { process, libraries, unopened } = sighting;
        let pid = process.pid();
        let known = self.processes.get(&pid).map(|followed| followed.libraries.clone());
        if known.is_none() {
            let description = Description::read(&process, &self.users);
            if !self.filter.admits(process.name(), &description) {
                return;
            }
        }
        let (mut traced, mut links, mut reasons) =
            (known.clone().unwrap_or_default(), Links::default(), Vec::new());
        reasons.extend(unopened.iter().map(ToString::to_string));
        let mut is_wanted = !reasons.is_empty() && self.filter.nccl_versions.is_empty();
        for (file, _) in libraries {
            let index = match self.library(file, scene) {
                Ok(index) => index,
                Err(error) => {
                    is_wanted |= self.filter.nccl_versions.is_empty();
                    reasons.push(format!("{error:#}"));
                    continue;
                }
            };
            if traced.contains(&index) || !self.libraries.get(index).is_some_and(|library| library.is_wanted)
            {
                continue;
            }
            is_wanted = true;
            match self.attach(index, pid, scene.attachment) {
                Ok(new) => {
                    links.0.extend(new);
                    traced.push(index);
                    if let Some(Library { traced: Ok(traced), .. }) = self.libraries.get(index) {
                        (scene.notice)(Notice::Joined { process: &process, library: &traced.library });
                    }
                }
                // The end of a process is no failure.
                Err(_) if process.has_exited() => {
                    reasons.push("it ended before it could be traced".to_owned());
                }
                Err(error) => reasons.push(format!("{error:#}")),
            }
        }
        if let Some(followed) = self.processes.get_mut(&pid) {
            if followed.libraries != traced {
                if let Some(target) = scene.report.targets.get_mut(followed.target) {
                    target.libraries.clone_from(&traced);
                    target.untraced = None;
                }
                followed.libraries = traced;
                followed.links.0.append(&mut links.0);
                self.changed = true;
            }
            return;
        }
        if !is_wanted {
            return;
        }
        let untraced = traced.is_empty().then(|| reasons.join("; "));
        if let Some(why) = &untraced {
            self.pass_over(scene, &format!("process {pid} ({}): {why}", process.name()));
        }
        let target = self.add_target(
            scene.report,
            TargetReport {
                pid,
                own_pid: process.own_pid(),
                name: process.name().to_owned(),
                libraries: traced.clone(),
                exited: false,
                started_ticks: process.started(),
                followed_since_ns: untraced.is_none().then(|| now_ns(ClockId::Monotonic)),
                untraced,
            },
        );
        self.processes.insert(pid, Followed { process, target, libraries: traced, links });
    }

    fn pass_over(&mut self, scene: &mut Scene<'_>, why: &str) {
        (scene.notice)(Notice::PassedOver(why));
        self.passed_over += 1;
        if self.passed_over <= MAX_PASSED_OVER {
            scene.report.passed_over.push(why.to_owned());
        } else {
            scene.report.passed_over.truncate(MAX_PASSED_OVER);
            scene.report.passed_over.push(format!("and {} more", self.passed_over - MAX_PASSED_OVER));
        }
        self.changed = true;
    }

    /// The library's index: known, or resolved now.
    fn library(&mut self, file: MappedLibrary, scene: &mut Scene<'_>) -> Result<usize> {
        let is_known = |known: &MappedLibrary| known.shares_probes_with(&file);
        let known = self.libraries.iter().position(|library| library.file.as_ref().is_some_and(is_known));
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
                if let Some(index) = self.libraries.iter().position(fits) {
                    return self.revive(index, library, scene.attachment).map(Stored::Again);
                }
                self.store(library, scene.attachment).map(|traced| Stored::New(Box::new(traced)))
            })
        } else {
            Err(anyhow::anyhow!("it is not of a version that was asked for"))
        };
        self.changed = true;
        let traced = match traced {
            Ok(Stored::Again(index)) => {
                if let (Some(library), Some(known)) =
                    (self.libraries.get_mut(index), scene.report.libraries.get_mut(index))
                {
                    (library.file, *known) = (Some(held), report);
                }
                return Ok(index);
            }
            Ok(Stored::New(traced)) => Ok(*traced),
            Err(error) => Err(format!("{error:#}")),
        };
        scene.report.libraries.push(report);
        self.libraries.push(Library { file: Some(held), traced, is_wanted, spare: None });
        Ok(self.libraries.len() - 1)
    }

    /// Puts a library's cookies to use again, for another file of the same build.
    fn revive(&mut self, index: usize, library: LibraryInUse, attachment: &mut Attachment) -> Result<usize> {
        let old = self.libraries.get_mut(index).context("no such library")?;
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
        let index = self.libraries.len();
        let bind = |kind: &ProbeKind| {
            self.bindings.push(Binding { kind: kind.clone(), decoder: library.decoder.clone(), host: None });
        };
        let mut stored: Vec<Option<StoredParts>> = Vec::new();
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
    fn attach(&self, index: usize, pid: u32, attachment: &mut Attachment) -> Result<Vec<Link>> {
        match self.libraries.get(index).map(|library| &library.traced) {
            Some(Ok(_)) if self.filter.is_empty() => Ok(Vec::new()),
            Some(Ok(traced)) => link_all(traced, attachment, NonZeroU32::new(pid)),
            Some(Err(why)) => bail!("{why}"),
            None => bail!("no such library"),
        }
    }

    /// Lets go of libraries that nobody uses and nobody can use again: their files are deleted. Those that are still there stay attached, for
    /// the next process.
    fn retire_libraries(&mut self) {
        let Self { libraries, processes, reaper, .. } = self;
        for (index, library) in libraries.iter_mut().enumerate() {
            let Some(file) = &library.file else { continue };
            let is_deleted =
                file.try_clone_file().and_then(|file| file.metadata()).is_ok_and(|file| file.nlink() == 0);
            let is_used = processes.values().any(|followed| followed.libraries.contains(&index));
            if is_deleted && !is_used {
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

    /// How many links there are, and all of them: the recording is over.
    pub(super) fn into_links(self) -> Vec<Link> {
        let of_libraries =
            self.libraries.into_iter().filter_map(|library| library.traced.ok()).map(|traced| traced.links);
        let of_processes = self.processes.into_values().map(|followed| followed.links);
        of_libraries.chain(of_processes).flat_map(|links| links.0).collect()
    }
}

fn link_all(traced: &Traced, attachment: &mut Attachment, pid: Option<NonZeroU32>) -> Result<Vec<Link>> {
    let file = &traced.library.file;
    let path = file.stable_path();
    let probes = traced.library.probes.probes.iter().zip(traced.cookies.iter().copied());
    attachment.link(&probes.collect::<Vec<_>>(), &path, &file.path, pid)
}
