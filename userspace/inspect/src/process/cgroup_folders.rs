//! Folders of control groups, also of those outside our cgroup namespace: a container sees the way from its own root
//! up to another container's group (cgroup_namespaces(7)), and the host's first processes have all groups mounted.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Maximum number of folders among which our own is searched for; a host has some thousands.
const MAX_FOLDERS: usize = 20_000;

/// Where the host's files are: the first process may not let itself be looked at, the kernel's first thread does.
pub(super) const HOST: [&str; 2] = ["/proc/1/root", "/proc/2/root"];

/// Folder of the host's root and of our own by hierarchy; `None`: it is not found.
static OWN: Mutex<BTreeMap<PathBuf, Option<[PathBuf; 2]>>> = Mutex::new(BTreeMap::new());

/// Returns the folder of a group, by where its hierarchy is mounted and by its path in `/proc/PID/cgroup`. `None`
/// where we cannot see it.
pub fn cgroup_folder(mount: &Path, path: &str) -> Option<PathBuf> {
    let path = Path::new(path.trim_start_matches('/'));
    let up = path.components().take_while(|part| *part == Component::ParentDir).count();
    if !path.components().skip(up).all(|part| matches!(part, Component::Normal(_))) {
        return None;
    }
    if up == 0 {
        return Some(mount.join(path));
    }
    let mut known = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let [host, own] = known.entry(mount.to_path_buf()).or_insert_with(|| own_folder(mount)).clone()?;
    along(own, &host, path)
}

fn own_folder(mount: &Path) -> Option<[PathBuf; 2]> {
    let inode = fs::metadata(mount).ok()?.ino();
    let below = mount.strip_prefix("/").unwrap_or(mount);
    let mut hosts = HOST.iter().map(|root| Path::new(root).join(below));
    hosts.find_map(|host| find(&host, inode).map(|own| [host, own]))
}

/// Finds the folder with an inode below another one: a group has one inode wherever it is mounted.
fn find(root: &Path, inode: u64) -> Option<PathBuf> {
    let mut left = VecDeque::from([root.to_path_buf()]);
    for _ in 0..MAX_FOLDERS {
        let folder = left.pop_front()?;
        if fs::symlink_metadata(&folder).is_ok_and(|about| about.ino() == inode) {
            return Some(folder);
        }
        let below = fs::read_dir(&folder).into_iter().flatten().flatten();
        let below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(below.take(MAX_FOLDERS).map(|entry| entry.path()));
    }
    None
}

/// Goes from a folder along a path that may lead up, but not out of `root`.
fn along(mut folder: PathBuf, root: &Path, path: &Path) -> Option<PathBuf> {
    for part in path.components() {
        match part {
            Component::Normal(name) => folder.push(name),
            Component::ParentDir if folder != root => {
                folder.pop();
            }
            _ => return None,
        }
    }
    Some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of folders in place of the host's hierarchy.
    #[test]
    fn the_way_from_our_own_group_leads_to_another_one() {
        let host = tempfile::tempdir().unwrap();
        let ours = host.path().join("kubepods.slice/pod1.slice/ours.scope");
        let theirs = host.path().join("kubepods.slice/pod2.slice/theirs.scope");
        for folder in [&ours, &theirs] {
            fs::create_dir_all(folder).unwrap();
        }
        let own = find(host.path(), fs::metadata(&ours).unwrap().ino()).unwrap();
        assert_eq!(own, ours);
        let to = |path: &str| along(own.clone(), host.path(), Path::new(path));
        assert_eq!(to("../../pod2.slice/theirs.scope"), Some(theirs));
        assert_eq!(to("../../../init.scope"), Some(host.path().join("init.scope")));
        assert_eq!(to("../../../../elsewhere"), None, "out of the hierarchy");
        assert_eq!(find(host.path(), 1), None);
        let inside = Path::new("/sys/fs/cgroup/cpu");
        assert_eq!(cgroup_folder(inside, "/docker/1"), Some(inside.join("docker/1")));
        assert_eq!(cgroup_folder(inside, "/docker/../1"), None, "the kernel writes no such path");
    }
}
