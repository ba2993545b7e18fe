//! The flag file as processes see it in containers.
//!
//! What is at a path inside of a container is a tenant's, and we are root: a path is resolved within the
//! container's root, nothing is opened but to be looked at, and a file system that does not answer (FUSE) costs
//! a thread, and that container its flag, but nobody waits for it.

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
    time::Duration,
};

use anyhow::{Context as _, Result};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, statx},
    io::Errno,
};

use super::mailbox::{EventSender, SessionEvent};
use crate::privileges;

/// How often containers are looked into.
const ASK: Duration = Duration::from_millis(250);

/// How long a container's file system may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Looks at which threads are stuck, at most; then no container is looked into any more.
const MAX_STUCK: usize = 8;

/// Containers that are looked into, at most.
const MAX_CONTAINERS: usize = 256;

/// Rounds after which it is asked again which containers processes are in.
const ASK_AGAIN: u32 = 20;

/// Which file it is: one that was removed and made again is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlagId {
    device: (u32, u32),
    inode: u64,
    /// Where the file system knows it.
    born: Option<(i64, u32)>,
}

/// A mount namespace, by its inode: what is called a container here.
pub(super) type MountNamespace = u64;

/// A container whose flag file is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerFlag {
    pub(super) file: FlagId,
    /// Traced processes in it, as ncclflow sees them.
    pub(super) pids: BTreeSet<u32>,
}

/// Containers whose flag files are there.
pub(super) type ContainersWithFlag = BTreeMap<MountNamespace, ContainerFlag>;

/// A thread that looks into the containers of traced processes.
#[derive(Debug)]
pub(super) struct ContainerFlags {
    pids: Sender<Vec<u32>>,
    told: Vec<u32>,
    found: Arc<Mutex<ContainersWithFlag>>,
}

impl ContainerFlags {
    /// `path` is that of the flag file, in ncclflow's own mount namespace, which is no container.
    pub(super) fn watch(path: &Path, events: &EventSender) -> Result<Self> {
        let path = std::path::absolute(path).context("the flag file's path")?;
        let own = mount_namespace("self").context("reading our mount namespace")?;
        let (pids, told) = mpsc::channel();
        let found = Arc::<Mutex<ContainersWithFlag>>::default();
        let mut looker = Looker {
            path,
            own,
            events: events.clone(),
            found: Arc::clone(&found),
            members: HashMap::new(),
            rounds: 0,
            stuck: HashSet::new(),
            thread: None,
        };
        let thread = thread::Builder::new().name("ncclflow-flags".to_owned());
        let started = thread.spawn(move || {
            let guard = looker.events.health.guard("ncclflow-flags");
            privileges::keep_only(privileges::READS_PROCESSES);
            looker.run(&told);
            guard.done();
        });
        started.context("starting a thread")?;
        Ok(Self { pids, told: Vec::new(), found })
    }

    /// Which processes are traced.
    pub(super) fn look_for(&mut self, pids: Vec<u32>) {
        if self.told != pids {
            self.told.clone_from(&pids);
            // It ends only with the recording.
            let _ = self.pids.send(pids);
        }
    }

    pub(super) fn found(&self) -> ContainersWithFlag {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
struct Looker {
    path: PathBuf,
    own: MountNamespace,
    events: EventSender,
    found: Arc<Mutex<ContainersWithFlag>>,
    /// In which mount namespace the traced processes are; those of ours, too.
    members: HashMap<u32, MountNamespace>,
    rounds: u32,
    /// Containers whose file system did not answer.
    stuck: HashSet<MountNamespace>,
    thread: Option<LookThread>,
}

impl Looker {
    fn run(&mut self, told: &Receiver<Vec<u32>>) {
        let mut pids = Vec::new();
        loop {
            match told.recv_timeout(ASK) {
                Ok(new) => pids = told.try_iter().last().unwrap_or(new),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let found = self.round(&pids);
            let mut known = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            let is_new = *known != found;
            *known = found;
            drop(known);
            if is_new {
                self.events.send(SessionEvent::ContainerFlags);
            }
        }
    }

    fn round(&mut self, pids: &[u32]) -> ContainersWithFlag {
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(ASK_AGAIN) {
            self.members.clear();
        }
        self.members.retain(|pid, _| pids.contains(pid));
        let mut containers = BTreeMap::<MountNamespace, BTreeSet<u32>>::new();
        for pid in pids {
            let namespace = match self.members.get(pid) {
                Some(namespace) => Some(*namespace),
                // One that has ended has none.
                None => mount_namespace(&pid.to_string()).ok(),
            };
            let Some(namespace) = namespace else { continue };
            self.members.insert(*pid, namespace);
            if namespace != self.own {
                containers.entry(namespace).or_default().insert(*pid);
            }
        }
        let mut found = ContainersWithFlag::new();
        for (namespace, pids) in containers.into_iter().take(MAX_CONTAINERS) {
            if let Some(file) = self.look(namespace, &pids) {
                found.insert(namespace, ContainerFlag { file, pids });
            }
        }
        found
    }

    /// Looks through one of its processes. The others are asked only if that one has ended.
    fn look(&mut self, namespace: MountNamespace, pids: &BTreeSet<u32>) -> Option<FlagId> {
        if self.stuck.contains(&namespace) || self.stuck.len() >= MAX_STUCK {
            return None;
        }
        for pid in pids {
            let thread = match self.thread.take() {
                Some(thread) => thread,
                None => LookThread::open(&self.path).ok()?,
            };
            let look = Look { pid: *pid, namespace };
            match thread.look(look) {
                Some(Some(seen)) => {
                    self.thread = Some(thread);
                    return seen;
                }
                Some(None) => self.thread = Some(thread),
                // The thread is lost; it ends when the file system answers.
                None => {
                    self.give_up(namespace, *pid);
                    return None;
                }
            }
        }
        None
    }

    fn give_up(&mut self, namespace: MountNamespace, pid: u32) {
        self.stuck.insert(namespace);
        let mut said = format!(
            "the flag file of the container of process {pid} (mount namespace {namespace}) is not looked at any more: \
             its file system does not answer"
        );
        if self.stuck.len() >= MAX_STUCK {
            said.push_str("; nor is that of any other container, as too many do not");
        }
        self.events.send(SessionEvent::FlagNotSeen(said));
    }
}

/// A process through whose root it is looked, and the container that it is expected in.
#[derive(Clone, Copy, Debug)]
struct Look {
    pid: u32,
    namespace: MountNamespace,
}

/// Which flag file is there; nothing: the process has ended, or is in another container.
type Seen = Option<Option<FlagId>>;

/// A thread that can be lost.
#[derive(Debug)]
struct LookThread {
    looks: Sender<Look>,
    seen: Receiver<Seen>,
}

impl LookThread {
    fn open(path: &Path) -> io::Result<Self> {
        let (looks, asked) = mpsc::channel();
        let (told, seen) = mpsc::channel();
        let path = path.to_owned();
        thread::Builder::new().name("ncclflow-flag".to_owned()).spawn(move || {
            for Look { pid, namespace } in asked {
                if told.send(look(pid, namespace, &path)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { looks, seen })
    }

    /// Nothing: it does not answer.
    fn look(&self, look: Look) -> Option<Seen> {
        self.looks.send(look).ok()?;
        self.seen.recv_timeout(PATIENCE).ok()
    }
}

fn mount_namespace(pid: &str) -> io::Result<MountNamespace> {
    Ok(fs::metadata(format!("/proc/{pid}/ns/mnt"))?.ino())
}

fn look(pid: u32, namespace: MountNamespace, path: &Path) -> Seen {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty()).ok()?;
    // The number can be another process's meanwhile.
    (mount_namespace(&pid.to_string()).ok()? == namespace).then(|| file_within(root, path))
}

/// The file at a path that begins at this root and does not leave it, whatever links are on the way. A link
/// that leads nowhere is a file that is there.
fn file_within(root: impl AsFd, path: &Path) -> Option<FlagId> {
    // Nothing is opened that could wait for its other end, or do something when it is.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let open = || openat2(&root, path, flags, Mode::empty(), resolve);
    // A rename somewhere while `..` is resolved.
    let file = match open() {
        Err(Errno::AGAIN) => open(),
        opened => opened,
    };
    FlagId::of(file.ok()?).ok()
}

impl FlagId {
    #[cfg(test)]
    pub(super) fn made(inode: u64) -> Self {
        Self { device: (8, 1), inode, born: None }
    }

    fn of(file: impl AsFd) -> io::Result<Self> {
        Self::at(file, Path::new(""), AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC)
    }

    /// Of a file in our own mount namespace.
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
        // Into the real /proc, where such links are.
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

    #[test]
    fn it_is_looked_through_the_process_only_if_it_is_where_it_was() {
        let (pid, own) = (std::process::id(), mount_namespace("self").unwrap());
        assert!(matches!(look(pid, own, Path::new("/proc")), Some(Some(_))));
        assert!(matches!(look(pid, own, Path::new("/no/such/flag")), Some(None)));
        assert!(look(pid, own + 1, Path::new("/proc")).is_none());
    }
}
