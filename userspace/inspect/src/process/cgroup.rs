//! Holder of a process's control group: a container, a pod, a job or a user's session, whom a tenant cannot
//! choose.
//!
//! Who owns a folder of cgroupfs can make others in it, and give them any name: a user has a delegated folder
//! in every session of systemd. So a name counts only if all folders above it are root's, and nobody else can
//! write there. Whose the named folder itself is does not matter: a runtime with user namespaces gives it to
//! the container.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::cgroup_folders::HOST;
use flow::identity::{CgroupHolder, cgroup_names, hierarchies};

/// Permission to write for others than the owner.
const OTHERS_WRITE: u32 = 0o022;

/// Most names of a path that are looked at. What counts is far out.
const MAX_NAMES: usize = 32;

/// Where hierarchies of control groups are mounted, and who is root there.
#[derive(Debug)]
pub(super) struct Cgroupfs {
    /// Folders in which hierarchies may be, the one that is asked first before the others.
    places: Vec<PathBuf>,
    root: u32,
}

impl Default for Cgroupfs {
    /// Where systemd mounts them; then the same of the host, where ours are those of a container.
    fn default() -> Self {
        let roots = std::iter::once("/").chain(HOST);
        Self { places: roots.map(|root| Path::new(root).join("sys/fs/cgroup")).collect(), root: 0 }
    }
}

/// Returns the holder by the text of `/proc/PID/cgroup`. A container in any hierarchy comes before a session:
/// with version 1 a job can be in the session of the user who started it.
pub(super) fn holder(text: &str, mounts: &Cgroupfs) -> Option<CgroupHolder> {
    let mut session = None;
    for (controllers, path) in hierarchies(text).filter(|(_, path)| *path != "/") {
        match CgroupHolder::of_cgroup(path, mounts.named_by_root(controllers, path)) {
            Some(CgroupHolder::User(user)) => session = session.or(Some(CgroupHolder::User(user))),
            Some(container) => return Some(container),
            None => {}
        }
    }
    session
}

impl Cgroupfs {
    /// Returns how many names of a path, from the first on, root has given.
    fn named_by_root(&self, controllers: &str, path: &str) -> usize {
        let folder = self.folders(controllers).find(|folder| folder.join(path.trim_matches('/')).exists());
        let Some(mut folder) = folder.filter(|_| !path.contains("/..")) else { return by_form(path) };
        let mut count = 0;
        for name in cgroup_names(path).take(MAX_NAMES) {
            if !self.is_roots(&folder) {
                break;
            }
            folder.push(name);
            count += 1;
        }
        count
    }

    /// Returns the folders in which a hierarchy may be mounted.
    fn folders(&self, controllers: &str) -> impl Iterator<Item = PathBuf> {
        let names = match controllers.strip_prefix("name=").unwrap_or(controllers) {
            "" => vec!["", "unified"],
            // Mounted together, and often with a link for each.
            joined => std::iter::once(joined).chain(joined.split(',')).collect(),
        };
        self.places.iter().flat_map(move |place| names.clone().into_iter().map(|name| place.join(name)))
    }

    fn is_roots(&self, folder: &Path) -> bool {
        let owned = fs::symlink_metadata(folder);
        owned.is_ok_and(|about| about.uid() == self.root && about.mode() & OTHERS_WRITE == 0)
    }
}

/// Returns how many names of a path root has given, where its folders cannot be looked at, as in a cgroup
/// namespace: those down to the first service, which systemd can hand over to a user, but for containerd's.
fn by_form(path: &str) -> usize {
    let is_handed_over = |name: &str| name.strip_suffix(".service").is_some() && name != "containerd.service";
    cgroup_names(path).position(is_handed_over).map_or(usize::MAX, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const ID: &str = "4f1c0d7e9a2b4c6d8e0f11223344556677889900aabbccddeeff001122334455";
    const UID: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

    /// A tree of folders in place of cgroupfs, in which we are root.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// Makes a folder with all above it; below `handed_over`, it is another's.
        fn make(&self, path: &str, handed_over: Option<&str>) -> &Self {
            let folder = self.0.path().join(path.trim_matches('/'));
            fs::create_dir_all(&folder).unwrap();
            if let Some(handed_over) = handed_over {
                let given = self.0.path().join(handed_over.trim_matches('/'));
                fs::set_permissions(given, fs::Permissions::from_mode(0o777)).unwrap();
            }
            self
        }

        fn cgroupfs(&self) -> Cgroupfs {
            let root = fs::metadata(self.0.path()).unwrap().uid();
            Cgroupfs { places: vec![self.0.path().to_path_buf()], root }
        }

        fn holder(&self, text: &str) -> Option<String> {
            holder(text, &self.cgroupfs()).map(|holder| match holder {
                CgroupHolder::Container(container) => container.pod.clone().unwrap_or(container.short()),
                CgroupHolder::User(user) => format!("user {user}"),
            })
        }
    }

    #[test]
    fn a_name_in_a_folder_that_was_handed_over_says_nothing() {
        let tree = Tree::new();
        let service = "/system.slice/bobs.service";
        let forged = [
            format!("{service}/docker-{ID}.scope"),
            format!("{service}/kubepods/pod{UID}/{ID}"),
            format!("{service}/user.slice/user-7.slice/x"),
        ];
        for path in &forged {
            tree.make(path, Some(service));
            assert_eq!(tree.holder(&format!("0::{path}\n")), None, "{path}");
            // The same where nothing was handed over.
            let honest = Tree::new();
            assert!(honest.make(path, None).holder(&format!("0::{path}\n")).is_some(), "{path}");
        }
        // Of a group that is gone, and where there is no cgroupfs, the form alone speaks.
        let nowhere = Tree::new();
        for path in &forged {
            assert_eq!(nowhere.holder(&format!("0::{path}\n")), None, "{path}");
        }
    }

    #[test]
    fn a_container_whose_own_folder_was_handed_over_keeps_its_name() {
        let tree = Tree::new();
        let own = format!("/kubepods/pod{UID}/{ID}");
        let inner = format!("{own}/docker/{}", ID.replace('4', "5"));
        tree.make(&inner, Some(&own));
        assert_eq!(tree.holder(&format!("0::{own}\n")).as_deref(), Some(UID));
        assert_eq!(tree.holder(&format!("0::{inner}\n")).as_deref(), Some(UID));
        // The folder above was handed over, too.
        let above = format!("/kubepods/pod{UID}");
        tree.make(&inner, Some(&above)).make(&inner, Some("/kubepods"));
        assert_eq!(tree.holder(&format!("0::{own}\n")), None);
    }

    #[test]
    fn hierarchies_of_version_1_are_each_asked_for_themselves() {
        let tree = Tree::new();
        let session = "/user.slice/user-1000.slice/user@1000.service";
        let (forged, job) = (format!("{session}/docker-{ID}.scope"), "/slurm/uid_1000/job_17/step_0");
        tree.make(&format!("systemd{forged}"), Some(&format!("systemd{session}")));
        let text = format!("1:name=systemd:{forged}\n0::/\n");
        assert_eq!(tree.holder(&text).as_deref(), Some("user 1000"));
        tree.make(&format!("cpu,cpuacct{job}"), None);
        let text = format!("2:cpu,cpuacct:{job}\n1:name=systemd:{forged}\n");
        assert_eq!(tree.holder(&text).as_deref(), Some("slurm:17"));
        // A long path in a hierarchy that a user owns changes nothing.
        let own = format!("/mine/kubepods/pod{UID}/{ID}");
        tree.make(&format!("memory{own}"), Some("memory/mine"));
        assert_eq!(tree.holder(&format!("3:memory:{own}\n{text}")).as_deref(), Some("slurm:17"));
        // The unified hierarchy stands beside those of version 1.
        tree.make(&format!("unified/docker/{ID}"), None);
        assert_eq!(tree.holder(&format!("0::/docker/{ID}\n")).as_deref(), Some("docker:4f1c0d7e9a2b"));
        for nonsense in ["", "nonsense", "0::", "::\n", "1:cpu", "0::/../../..\n"] {
            assert_eq!(tree.holder(nonsense), None, "{nonsense:?}");
        }
    }
}
