//! The flag file as processes see it in containers.
//!
//! Paths inside a container belong to a tenant, while we are root. So a path is resolved within the
//! container's root, and nothing is opened but to be looked at. A file system that does not answer (FUSE)
//! costs a thread, and that container its flag until it has, but nobody waits for it. A tenant with several
//! such containers has none looked into, and one with very many containers does not keep others from theirs.
//!
//! `openat2` resolves the path within the container's root (RESOLVE_IN_ROOT, no magic links), and `O_PATH`
//! opens nothing. The session's word has a third value: open to the processes in the map `ADMITTED`. The
//! kernel side drops hits of others before it copies anything, at the cost of one lookup, and counts them as
//! `disarmed`. Hits are counted by probe and CPU, so the losses of two simultaneous windows could not be told
//! apart: one is open at a time.

use inspect::{privileges, process::Tenant, unresponsive::Answerer};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs, io,
    os::{fd::AsFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use flow::quota::in_turns;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, statx},
    io::Errno,
};

use super::{
    mailbox::{EventSender, SessionEvent},
    silent_containers::{SilentContainers, whose},
};

/// Interval at which containers are looked into.
const ASK: Duration = Duration::from_millis(250);

/// Longest time that a container's file system may take to answer: that the thread sleeps which asks it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Most containers that are looked into. Tenants get equal parts, as far as they have so many.
const MAX_CONTAINERS: usize = 256;

/// Stack size of a thread that looks.
const STACK: usize = 128 << 10;

/// Rounds after which the mount namespaces of processes are read again.
const ASK_AGAIN: u32 = 20;

/// Identity of a flag file: one that was removed and made again has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlagId {
    device: (u32, u32),
    inode: u64,
    /// Birth time, where the file system records it.
    born: Option<(i64, u32)>,
}

/// Inode of a mount namespace, which stands for a container here.
pub(super) type MountNamespace = u64;

/// The flag file in a container.
pub(super) type Flag = (MountNamespace, FlagId);

/// Flag files in containers, each with the traced processes there, as ncclflow numbers them.
pub(super) type FlagsInContainers = BTreeMap<Flag, BTreeSet<u32>>;

/// A traced process and its tenant, where that is known.
pub(super) type Member = (u32, Option<Tenant>);

/// A container with traced processes.
#[derive(Debug, Default)]
struct Container {
    pids: BTreeSet<u32>,
    /// Tenant of the first process.
    tenant: Option<Tenant>,
}

/// Handle to a thread that looks into the containers of traced processes.
#[derive(Debug)]
pub(super) struct ContainerFlags {
    members: Sender<Vec<Member>>,
    told: Vec<Member>,
    found: Arc<Mutex<FlagsInContainers>>,
}

impl ContainerFlags {
    /// `path`: the flag file's path in ncclflow's own mount namespace, which counts as no container.
    pub(super) fn watch(path: &Path, events: &EventSender) -> Result<Self> {
        let path = std::path::absolute(path).context("the flag file's path")?;
        let own = mount_namespace("self").context("reading our mount namespace")?;
        let (members, told) = mpsc::channel();
        let found = Arc::<Mutex<FlagsInContainers>>::default();
        let mut looker = Looker {
            path,
            own,
            events: events.clone(),
            found: Arc::clone(&found),
            namespaces: HashMap::new(),
            rounds: 0,
            silent: SilentContainers::default(),
            too_many: HashSet::new(),
            thread: None,
        };
        let work = move || looker.run(&told);
        events.health.spawn("ncclflow-flags", privileges::READS_PROCESSES, work)?;
        Ok(Self { members, told: Vec::new(), found })
    }

    /// Tells the thread which processes are traced, and returns the flags that it has found until now.
    pub(super) fn look(&mut self, members: Vec<Member>) -> FlagsInContainers {
        if self.told != members {
            self.told.clone_from(&members);
            // The thread ends only with the recording.
            let _ = self.members.send(members);
        }
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
struct Looker {
    path: PathBuf,
    own: MountNamespace,
    events: EventSender,
    found: Arc<Mutex<FlagsInContainers>>,
    /// Mount namespace of each traced process, ours included.
    namespaces: HashMap<u32, MountNamespace>,
    rounds: u32,
    silent: SilentContainers,
    /// Tenants already reported for having too many containers to look into.
    too_many: HashSet<Option<Tenant>>,
    thread: Option<LookThread>,
}

impl Looker {
    fn run(&mut self, told: &Receiver<Vec<Member>>) {
        let mut members = Vec::new();
        loop {
            match told.recv_timeout(ASK) {
                Ok(new) => {
                    members = told.try_iter().last().unwrap_or(new);
                    let tenants = members.iter().map(|(_, tenant)| tenant);
                    self.silent.keep_only(&tenants.collect());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let found = self.round(&members);
            let mut known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            let is_new = *known != found;
            *known = found;
            drop(known);
            if is_new {
                self.events.send(SessionEvent::LookAgain);
            }
        }
    }

    fn round(&mut self, members: &[Member]) -> FlagsInContainers {
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(ASK_AGAIN) {
            self.namespaces.clear();
        }
        let pids: HashSet<u32> = members.iter().map(|(pid, _)| *pid).collect();
        self.namespaces.retain(|pid, _| pids.contains(pid));
        let mut containers = BTreeMap::<MountNamespace, Container>::new();
        for (pid, tenant) in members {
            let namespace = match self.namespaces.get(pid) {
                Some(namespace) => Some(*namespace),
                // A process that has ended has none.
                None => mount_namespace(&pid.to_string()).ok(),
            };
            let Some(namespace) = namespace else { continue };
            self.namespaces.insert(*pid, namespace);
            if namespace != self.own {
                let container = containers.entry(namespace).or_default();
                if container.pids.is_empty() {
                    container.tenant.clone_from(tenant);
                }
                container.pids.insert(*pid);
            }
        }
        let (shared_out, left_out) = share_out(containers);
        for (tenant, count) in left_out {
            self.say_too_many(tenant, count);
        }
        let look = |(namespace, container): (_, Container)| {
            let file = self.look(namespace, &container)?;
            Some(((namespace, file), container.pids))
        };
        shared_out.into_iter().filter_map(look).collect()
    }

    /// Looks through one of the container's processes; through the others only if that one has ended.
    fn look(&mut self, namespace: MountNamespace, container: &Container) -> Option<FlagId> {
        if self.silent.has(namespace, container.tenant.as_ref(), Instant::now()) {
            return None;
        }
        for pid in &container.pids {
            let thread = if let Some(thread) = self.thread.take() {
                thread
            } else {
                let path = self.path.clone();
                let thread = thread::Builder::new().name("ncclflow-flag".to_owned()).stack_size(STACK);
                let begin = move || move |(pid, namespace)| look(pid, namespace, &path);
                LookThread::start(thread, begin).ok()?
            };
            match thread.ask_and_wait((*pid, namespace), PATIENCE) {
                Some(Some(seen)) => {
                    self.thread = Some(thread);
                    self.silent.answered(namespace);
                    return seen;
                }
                Some(None) => self.thread = Some(thread),
                // The thread is lost; it ends when the file system answers.
                None => {
                    let tenant = container.tenant.as_ref();
                    let said = self.silent.add((namespace, *pid), tenant, thread.leave(), Instant::now());
                    self.events.send(SessionEvent::FlagNotSeen(said));
                    return None;
                }
            }
        }
        None
    }

    fn say_too_many(&mut self, tenant: Option<Tenant>, count: usize) {
        if !self.too_many.contains(&tenant) && self.too_many.len() < MAX_CONTAINERS {
            let whose = whose(tenant.as_ref());
            self.events.send(SessionEvent::FlagNotSeen(format!(
                "the flag files of {count} containers of {whose} are not looked at: there are too many containers"
            )));
            self.too_many.insert(tenant);
        }
    }
}

type LeftOut = Vec<(Option<Tenant>, usize)>;

/// Chooses the containers to look into, up to [`MAX_CONTAINERS`]: the first of each tenant, the second, and
/// so on. Also returns how many of each tenant are left out.
fn share_out(containers: BTreeMap<MountNamespace, Container>) -> (Vec<(MountNamespace, Container)>, LeftOut) {
    let by_tenant = containers.into_iter().map(|container| (container.1.tenant.clone(), container));
    let (chosen, rest) = in_turns(by_tenant, MAX_CONTAINERS);
    let mut left_out = HashMap::<_, usize>::new();
    for (_, container) in rest {
        *left_out.entry(container.tenant).or_default() += 1;
    }
    (chosen, left_out.into_iter().collect())
}

/// A process whose root is looked through, and the container that it should be in.
type Look = (u32, MountNamespace);

/// The flag file found, if any. The outer `None`: the process has ended, or is in another container.
type Seen = Option<Option<FlagId>>;

/// A thread that may block in a file system.
type LookThread = Answerer<Look, Seen>;

fn mount_namespace(pid: &str) -> io::Result<MountNamespace> {
    Ok(fs::metadata(format!("/proc/{pid}/ns/mnt"))?.ino())
}

fn look(pid: u32, namespace: MountNamespace, path: &Path) -> Seen {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty()).ok()?;
    // The number can belong to another process by now.
    (mount_namespace(&pid.to_string()).ok()? == namespace).then(|| file_within(root, path))
}

/// Returns the file at a path from this root, never leaving it, whatever links are on the way. A dangling
/// link counts as a file.
fn file_within(root: impl AsFd, path: &Path) -> Option<FlagId> {
    // No open here can wait for another end (FIFO) or have a side effect (device).
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let open = || openat2(&root, path, flags, Mode::empty(), resolve);
    // A rename elsewhere interferes with resolving `..`.
    let file = match open() {
        Err(Errno::AGAIN) => open(),
        opened => opened,
    };
    FlagId::at(file.ok()?, Path::new(""), AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC).ok()
}

impl FlagId {
    #[cfg(test)]
    pub(super) fn made(inode: u64) -> Self {
        Self { device: (8, 1), inode, born: None }
    }

    /// Identifies a file in our own mount namespace.
    pub(super) fn of_path(path: &Path) -> io::Result<Self> {
        Self::at(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn at(folder: impl AsFd, path: &Path, flags: AtFlags) -> io::Result<Self> {
        let about = statx(folder, path, flags, StatxFlags::INO | StatxFlags::BTIME)?;
        let has_birth = about.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Self {
            device: (about.stx_dev_major, about.stx_dev_minor),
            inode: about.stx_ino,
            born: has_birth.then_some((about.stx_btime.tv_sec, about.stx_btime.tv_nsec)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{FileType, mknodat};

    use super::*;

    #[test]
    fn a_path_does_not_leave_the_root_and_nothing_is_opened() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("flag"), []).unwrap();
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("root");
        fs::create_dir_all(root.join("inside")).unwrap();
        fs::write(parent.path().join("flag"), []).unwrap();
        fs::write(root.join("inside/flag"), []).unwrap();
        symlink(outside.path(), root.join("away")).unwrap();
        symlink("/inside", root.join("absolute")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        symlink("/nowhere", root.join("dangling")).unwrap();
        mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let open = fs::File::open(&root).unwrap();
        let is_there = |path: &str| file_within(&open, Path::new(path)).is_some();
        assert!(is_there("/inside/flag") && is_there("inside/flag") && is_there("/absolute/flag"));
        assert!(is_there("/../inside/flag"), "as in a container");
        assert!(is_there("/dangling") && is_there("/fifo"), "they are there, and nobody waits for them");
        for path in ["/flag", "/../flag", "/away/flag", "/inside", "/nothing"] {
            assert_eq!(is_there(path), path == "/inside", "{path}");
        }
        let proc = fs::canonicalize("/proc/self/root").unwrap();
        assert!(proc.join("etc").exists() && !is_there("/magic/etc"));
        // Into the real /proc, which has magic links.
        let all = fs::File::open("/").unwrap();
        assert!(file_within(&all, Path::new("/proc/self/root/etc")).is_none());
        assert!(file_within(&all, Path::new("/proc/self/status")).is_some());
    }

    #[test]
    fn a_file_that_was_made_again_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flag");
        fs::write(&path, []).unwrap();
        let first = FlagId::of_path(&path).unwrap();
        fs::write(&path, "touched").unwrap();
        assert_eq!(FlagId::of_path(&path).unwrap(), first);
        fs::remove_file(&path).unwrap();
        thread::sleep(Duration::from_millis(20));
        fs::write(&path, []).unwrap();
        assert_ne!(FlagId::of_path(&path).unwrap(), first);
        let open = fs::File::open(folder.path()).unwrap();
        assert_eq!(file_within(open, Path::new("/flag")), FlagId::of_path(&path).ok(), "seen both ways");
    }

    fn user(uid: u32) -> Tenant {
        Tenant::User(uid, format!("user{uid}"))
    }

    #[test]
    fn a_tenant_with_very_many_containers_leaves_others_theirs() {
        let mut containers = BTreeMap::new();
        for namespace in 0..1000 {
            let pids = BTreeSet::from([1]);
            containers.insert(namespace, Container { pids, tenant: Some(user(1)) });
        }
        for namespace in 1000..1010 {
            let pids = BTreeSet::from([2]);
            containers.insert(namespace, Container { pids, tenant: Some(user(2)) });
        }
        let (chosen, left_out) = share_out(containers);
        assert_eq!(chosen.len(), MAX_CONTAINERS);
        let of_second = chosen.iter().filter(|(_, container)| container.tenant == Some(user(2))).count();
        assert_eq!((of_second, left_out), (10, vec![(Some(user(1)), 1000 - (MAX_CONTAINERS - 10))]));
    }

    #[test]
    fn it_is_looked_through_the_process_only_if_it_is_where_it_was() {
        let (pid, own) = (std::process::id(), mount_namespace("self").unwrap());
        assert!(matches!(look(pid, own, Path::new("/proc")), Some(Some(_))));
        assert!(matches!(look(pid, own, Path::new("/no/such/flag")), Some(None)));
        assert!(look(pid, own + 1, Path::new("/proc")).is_none());
    }
}
