//! Tells which file systems may be asked: reads what `mountinfo` says of a device, without touching anything
//! on it.
//!
//! A file system in user space (FUSE) belongs to whoever mounted it, who can leave a question unanswered for
//! ever, and give each reader another answer. The process that asked then sleeps in the kernel, where not
//! even SIGKILL reaches it. Device numbers are the kernel's, so any mount table that has the device says what
//! it is. A device that is in none (unmounted while it is in use, or mounted where we cannot see) could be
//! anything.

use std::{
    cell::OnceCell,
    collections::HashMap,
    fs::File,
    io::{self, Read as _, Seek as _},
    path::Path,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, fstat, memfd_create},
};
use thiserror::Error;

use super::library::FileSystem;
use crate::proc_text::unescape;

/// Most bytes of a mount table that are read. A node with thousands of pods has one of a megabyte.
const MAX_BYTES: u64 = 8 << 20;
/// Most mounts of one table that are kept.
const MAX_MOUNTS: usize = 1 << 16;

/// Device number, major and minor, as in `/proc/PID/maps`.
type Device = (u32, u32);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    device: Device,
    point: String,
    /// Type, such as `ext4`, `fuse.sshfs`.
    kind: String,
    /// Folders that an overlay lies over.
    below: Vec<String>,
}

/// Harm that such a file system can do, and what to do about it.
const MAY_WAIT: &str = "which can keep ncclflow waiting for ever: `--allow-fuse` looks at it all the same";

/// Reason for which a file is not looked at. Nothing of it was touched.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotAsked {
    /// The device is a file system in user space, of this type.
    #[error("it is on a file system in user space (FUSE, {0}), {MAY_WAIT}")]
    Fuse(String),
    /// The device is an overlay over such a file system.
    #[error("it is on an overlay over a file system in user space (FUSE), {MAY_WAIT}")]
    OverFuse,
    /// No mount table has the device.
    #[error("its file system is in no mount table, and could be one in user space (FUSE), {MAY_WAIT}")]
    Unknown,
    /// A process that asked for the file, or for its neighbours on this device, did not come back.
    #[error(
        "its file system did not answer when it, or another file there, was asked for before; it is not asked again"
    )]
    GivenUp,
    /// This look has reached its limit.
    #[error("the process has more files than are looked at at a time")]
    NotNow,
}

impl From<NotAsked> for io::Error {
    fn from(why: NotAsked) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, why.to_string())
    }
}

/// The mounts of this process, of the first one, and of the process that is looked at.
#[derive(Debug, Default)]
pub(crate) struct MountTable {
    pub(super) allow_fuse: bool,
    ours: Watched,
    /// Mounts of the first process, where ours are not the host's.
    first: Watched,
    /// Mounts of the process that is looked at; read when a device is in no other table.
    theirs: OnceCell<HashMap<Device, Kind>>,
    pid: u32,
    /// The kernel's own device for memory that has a name (memfd): it is mounted nowhere.
    of_memory: Option<Device>,
}

/// Kind of a file system, from the best to the worst.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// On a disk of this host, or in its memory.
    Local,
    /// The kernel's own, but answers come from elsewhere: a server, a hypervisor.
    Safe,
    /// An overlay over nothing but local ones.
    LocalOverlay,
    Overlay,
    OverFuse,
    Fuse(String),
}

impl MountTable {
    /// Prepares for a look at the files of this process.
    pub(super) fn refresh(&mut self, pid: u32) {
        self.ours.refresh("/proc/self/mountinfo");
        self.first.refresh("/proc/1/mountinfo");
        (self.theirs, self.pid) = (OnceCell::new(), pid);
        if self.of_memory.is_none() {
            let memory = memfd_create("ncclflow", MemfdFlags::CLOEXEC).and_then(|memory| fstat(&memory));
            self.of_memory = memory.ok().map(|status| of_number(status.st_dev));
        }
    }

    /// Checks that files of the device may be asked for.
    pub(super) fn check(&self, device: Device) -> Result<(), NotAsked> {
        if self.allow_fuse || Some(device) == self.of_memory {
            return Ok(());
        }
        match self.kind_anywhere(device) {
            Some(Kind::Local | Kind::Safe | Kind::LocalOverlay | Kind::Overlay) => Ok(()),
            Some(Kind::OverFuse) => Err(NotAsked::OverFuse),
            Some(Kind::Fuse(kind)) => Err(NotAsked::Fuse(kind.clone())),
            None => Err(NotAsked::Unknown),
        }
    }

    /// Returns what is known of the file system of a device, by its number of stat(2).
    pub(super) fn file_system(&self, device: u64) -> FileSystem {
        let device = of_number(device);
        let kind = self.kind_anywhere(device);
        let is_overlay = matches!(kind, Some(Kind::Overlay | Kind::LocalOverlay | Kind::OverFuse));
        let is_local = matches!(kind, Some(Kind::Local | Kind::LocalOverlay));
        // A mount that a tenant has made in namespaces of its own is not in these tables.
        let is_of_host = [&self.ours, &self.first].iter().any(|table| table.kinds.contains_key(&device));
        FileSystem { is_overlay, is_local: is_local && is_of_host }
    }

    /// Returns the kind of a device, also where only the process's own table has it, which is read when it is
    /// needed first.
    fn kind_anywhere(&self, device: Device) -> Option<&Kind> {
        if self.kind(device).is_none() {
            self.theirs.get_or_init(|| kinds(&read(&format!("/proc/{}/mountinfo", self.pid))));
        }
        self.kind(device)
    }

    fn kind(&self, device: Device) -> Option<&Kind> {
        let tables = [Some(&self.ours.kinds), Some(&self.first.kinds), self.theirs.get()];
        // A number in an earlier table may mean another file system now; the worst counts.
        tables.into_iter().flatten().filter_map(|table| table.get(&device)).max()
    }
}

/// Converts a device number of stat(2) to the form of maps and mountinfo.
pub(super) fn of_number(device: u64) -> Device {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// A mount table that is read again when it changes.
#[derive(Debug, Default)]
struct Watched {
    file: Option<File>,
    kinds: HashMap<Device, Kind>,
}

impl Watched {
    fn refresh(&mut self, path: &str) {
        if let Some(file) = &self.file {
            // proc(5): a change makes the file readable with priority.
            let mut fds = [PollFd::new(file, PollFlags::PRI)];
            let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            if ready.is_ok_and(|ready| ready == 0) {
                return;
            }
        } else {
            self.file = File::open(path).ok();
        }
        let text = self.file.as_mut().map(|file| {
            let mut text = Vec::new();
            let _ = file.rewind().and_then(|()| file.take(MAX_BYTES).read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        });
        self.kinds = kinds(&text.unwrap_or_default());
    }
}

/// Counts the devices of this mount table that may be asked for, and those that may not: for fuzzing.
#[doc(hidden)]
pub fn safe_and_others(mountinfo: &str) -> (usize, usize) {
    let mut table = MountTable::default();
    table.ours.kinds = kinds(mountinfo);
    table.theirs = OnceCell::from(HashMap::new());
    let devices: Vec<Device> = table.ours.kinds.keys().copied().collect();
    let safe = devices.iter().filter(|device| table.check(**device).is_ok()).count();
    (safe, devices.len() - safe)
}

fn read(path: &str) -> String {
    let mut text = Vec::new();
    let _ = File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

fn kinds(text: &str) -> HashMap<Device, Kind> {
    let mounts: Vec<Mount> = text.lines().take(MAX_MOUNTS).filter_map(parse_line).collect();
    let at = |path: &str| {
        let holding = mounts.iter().filter(|mount| Path::new(path).starts_with(&mount.point));
        holding.max_by_key(|mount| mount.point.len())
    };
    let is_fuse_at = |path: &str| at(path).is_some_and(|mount| is_fuse(&mount.kind));
    let is_local_at = |path: &str| at(path).is_some_and(|mount| is_local(&mount.kind));
    let kind = |mount: &Mount| match &*mount.kind {
        kind if is_fuse(kind) => Kind::Fuse(super::printable(kind)),
        "overlay" if mount.below.iter().any(|path| is_fuse_at(path)) => Kind::OverFuse,
        "overlay" if !mount.below.is_empty() && mount.below.iter().all(|path| is_local_at(path)) => {
            Kind::LocalOverlay
        }
        "overlay" => Kind::Overlay,
        kind if is_local(kind) => Kind::Local,
        _ => Kind::Safe,
    };
    mounts.iter().map(|mount| (mount.device, kind(mount))).collect()
}

/// Tells whether a type is FUSE: `fuse`, `fuse.sshfs`, `fuseblk`. Not `fusectl`, which is the kernel's, nor
/// `virtiofs`, which is the hypervisor's.
fn is_fuse(kind: &str) -> bool {
    kind == "fuse" || kind == "fuseblk" || kind.starts_with("fuse.") || kind.starts_with("fuseblk.")
}

/// Tells whether a type is a file system of disks or of memory.
fn is_local(kind: &str) -> bool {
    const LOCAL: [&str; 11] =
        ["ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "zfs", "erofs", "squashfs", "tmpfs"];
    LOCAL.contains(&kind)
}

/// Puts blanks and the like back.
fn unescaped(text: &str) -> String {
    String::from_utf8_lossy(&unescape(text.as_bytes(), |_| true)).into_owned()
}

/// Parses a line as proc(5) has it: `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root
/// rw,errors=continue`
fn parse_line(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ');
    let (major, minor) = fields.nth(2)?.split_once(':')?;
    let point = fields.nth(1)?;
    let mut rest = after.split(' ');
    let kind = rest.next()?.to_owned();
    let options = rest.nth(1).unwrap_or_default();
    let below = options.split(',').filter_map(|option| {
        let (name, value) = option.split_once('=')?;
        matches!(name, "lowerdir" | "lowerdir+" | "datadir+" | "upperdir").then_some(value)
    });
    let below = below.flat_map(|paths| paths.split(':')).map(unescaped).collect();
    let device = (major.parse().ok()?, minor.parse().ok()?);
    Some(Mount { device, point: unescaped(point), kind, below })
}

#[cfg(test)]
mod tests {
    use super::*;

    // As proc(5) and the kernel (fs/proc_namespace.c) have them.
    const MOUNTS: &str = "\
22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:50 / /mnt/a\\040b rw,nosuid - fuse.sshfs host:/ rw,user_id=1000,group_id=1000
41 22 0:51 / /mnt/blk rw - fuseblk /dev/sdb1 rw
42 22 0:52 / /over rw - overlay overlay rw,lowerdir=/usr:/mnt/a\\040b/x,upperdir=/tmp/u,workdir=/tmp/w
43 22 0:53 / /image rw master:7 - overlay overlay rw,lowerdir=/var/lib/l1:/var/lib/l2,upperdir=/var/u
44 22 0:54 / /sys/fs/fuse/connections rw - fusectl fusectl rw
45 22 0:55 / /home rw - nfs4 server:/home rw,vers=4.2
nonsense
";

    #[test]
    fn file_systems_in_user_space_are_told_by_their_type() {
        let mut table = MountTable::default();
        table.ours.kinds = kinds(MOUNTS);
        table.theirs = OnceCell::from(HashMap::new());
        assert_eq!(table.check((253, 0)), Ok(()));
        assert_eq!(table.check((0, 50)), Err(NotAsked::Fuse("fuse.sshfs".to_owned())));
        assert_eq!(table.check((0, 51)), Err(NotAsked::Fuse("fuseblk".to_owned())));
        assert_eq!(table.check((0, 52)), Err(NotAsked::OverFuse), "a blank in the lower folder's name");
        let said = NotAsked::Fuse("fuse.sshfs".to_owned()).to_string();
        assert_eq!(said, format!("it is on a file system in user space (FUSE, fuse.sshfs), {MAY_WAIT}"));
        assert_eq!(table.check((0, 53)), Ok(()));
        assert_eq!(table.check((0, 54)), Ok(()), "the kernel's own");
        assert_eq!(table.check((0, 55)), Ok(()));
        assert_eq!(table.check((0, 99)), Err(NotAsked::Unknown), "unmounted, and still in use");
        let of = |major, minor| table.file_system(rustix::fs::makedev(major, minor));
        assert_eq!(of(0, 53), FileSystem { is_overlay: true, is_local: true });
        assert_eq!(of(253, 0), FileSystem { is_overlay: false, is_local: true });
        assert_eq!(of(0, 52), FileSystem { is_overlay: true, is_local: false }, "over FUSE");
        assert_eq!(of(0, 55), FileSystem::default(), "a server answers for it");
        assert_eq!(of(0, 99), FileSystem::default());
        table.allow_fuse = true;
        assert_eq!((table.check((0, 50)), table.check((0, 99))), (Ok(()), Ok(())));
    }

    #[test]
    fn a_device_that_two_tables_know_differently_is_the_worse() {
        let mut table = MountTable::default();
        table.ours.kinds = kinds("1 1 0:50 / / rw - tmpfs none rw\n");
        table.theirs = OnceCell::from(kinds(MOUNTS));
        assert!(table.check((0, 50)).is_err());
    }

    #[test]
    fn what_a_tenant_has_mounted_is_not_the_hosts() {
        let mut table = MountTable::default();
        table.ours.kinds = kinds("1 1 0:50 / / rw - ext4 none rw\n");
        table.theirs =
            OnceCell::from(kinds("1 1 0:51 / / rw - tmpfs none rw\n2 1 0:50 / /x rw - fuse.x none rw\n"));
        let of = |minor| table.file_system(rustix::fs::makedev(0, minor));
        assert_eq!((table.check((0, 51)), of(51)), (Ok(()), FileSystem::default()));
        assert!(!of(50).is_local, "the number means another one there");
    }

    #[test]
    fn our_own_files_may_be_asked_for_and_so_may_memory() {
        use std::os::unix::fs::MetadataExt as _;
        let mut table = MountTable::default();
        table.refresh(std::process::id());
        let program = std::fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(table.check(of_number(program.dev())), Ok(()));
        let memory = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        assert_eq!(table.check(of_number(memory.metadata().unwrap().dev())), Ok(()));
    }
}
