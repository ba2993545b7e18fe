//! Whose a control group is, by the names in its path: a container, a pod, a job, a user's session.
//!
//! A name counts only if root gave it: whoever owns a folder of cgroupfs can make others below it, with any
//! name. So the outermost name that says something decides, and how many names are root's is for the caller
//! to find out.

use serde::{Deserialize, Serialize};

/// Shortest and longest id that is taken for one. Docker, containerd, cri-o and podman use 64 hex digits.
const ID_LENGTHS: std::ops::RangeInclusive<usize> = 32..=64;

/// Longest name of a container that a user of LXC or systemd gives.
const MAX_NAME: usize = 128;

/// A container, as its runtime names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Name of the runtime: `docker`, `containerd`, `cri-o`, `podman`, `lxc`, `nspawn`; `slurm` for a job of
    /// Slurm; `kubernetes` where only the pod's folder says that this is a container.
    pub runtime: String,
    pub id: String,
    /// UID of the Kubernetes pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

/// Holder of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupHolder {
    Container(Container),
    /// The user of `user-N.slice`. What is below is of the user's own making.
    User(u32),
}

impl CgroupHolder {
    /// Returns the outermost holder that a control group's path names. `named_by_root`: how many names, from
    /// the first on, root has given. `None` outside of containers and sessions, and in containers whose
    /// runtime makes no group for them (`unshare`, enroot, apptainer).
    ///
    /// Known forms, with systemd's slices and without: `docker-ID.scope`, `docker/ID` (Docker);
    /// `cri-containerd-ID.scope`, `nerdctl-ID.scope` (containerd); `crio-ID.scope` (cri-o); `libpod-ID.scope`
    /// (podman); `kubepods…/podUID/ID` (any, below the kubelet's cgroupfs driver); `lxc/NAME`,
    /// `lxc.payload.NAME` (LXC, Incus); `machine-NAME.scope` (nspawn); `slurm/uid_N/job_N`,
    /// `slurmstepd.scope/job_N` (Slurm). Root's own session is nobody's: it starts containers, too.
    pub fn of_cgroup(path: &str, named_by_root: usize) -> Option<Self> {
        let mut pod = None;
        let mut before = ["", ""];
        for part in cgroup_names(path).take(named_by_root) {
            pod = pod.or_else(|| pod_uid(part));
            if let Some((runtime, id)) = runtime_and_id(part, before, pod.is_some()) {
                let (runtime, id) = (runtime.to_owned(), id.to_owned());
                return Some(Self::Container(Container { runtime, id, pod }));
            }
            if before[1] == "user.slice"
                && let Some(user) = slice_user(part).filter(|user| *user != 0)
            {
                return Some(Self::User(user));
            }
            before = [before[1], part];
        }
        None
    }
}

/// Returns the names in a control group's path, from the outermost on.
pub fn cgroup_names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}

impl Container {
    /// Returns the runtime and the first 12 digits of the id, as `docker ps` shows it.
    pub fn short(&self) -> String {
        format!("{}:{}", self.runtime, self.id.get(..12).unwrap_or(&self.id))
    }
}

/// `before`: the two names before this one.
fn runtime_and_id<'a>(part: &'a str, before: [&str; 2], in_pod: bool) -> Option<(&'static str, &'a str)> {
    const PREFIXES: [(&str, &str); 6] = [
        ("docker-", "docker"),
        ("cri-containerd-", "containerd"),
        ("nerdctl-", "containerd"),
        ("crio-", "cri-o"),
        ("libpod-payload-", "podman"),
        ("libpod-", "podman"),
    ];
    let name = part.strip_suffix(".scope").unwrap_or(part);
    // The form that containerd's cgroupfs driver gives without systemd:
    // `kubepods-…-podUID.slice:cri-containerd:ID`.
    if let Some((_, id)) = name.rsplit_once(":cri-containerd:").filter(|(_, id)| is_id(id)) {
        return Some(("containerd", id));
    }
    for (prefix, runtime) in PREFIXES {
        if let Some(id) = name.strip_prefix(prefix).filter(|id| is_id(id)) {
            return Some((runtime, id));
        }
    }
    let [grandparent, parent] = before;
    let named = |runtime, name: &'a str| is_name(name).then_some((runtime, name));
    match parent {
        "docker" if is_id(name) => return Some(("docker", name)),
        "lxc" | "lxc.payload" => return named("lxc", part),
        "machine.slice" => {
            let scope = part.strip_prefix("machine-").and_then(|name| name.strip_suffix(".scope"));
            let service = part.strip_prefix("systemd-nspawn@").and_then(|name| name.strip_suffix(".service"));
            if let Some(machine) = scope.or(service) {
                return named("nspawn", machine);
            }
        }
        _ => {}
    }
    if let Some(container) = part.strip_prefix("lxc.payload.") {
        return named("lxc", container);
    }
    let is_job = |part: &'a str| part.strip_prefix("job_").filter(|job| is_number(job));
    if let Some(job) = is_job(part)
        && (parent.ends_with("slurmstepd.scope") || grandparent.starts_with("slurm"))
    {
        return Some(("slurm", job));
    }
    (in_pod && is_id(name)).then_some(("kubernetes", name))
}

fn is_id(text: &str) -> bool {
    ID_LENGTHS.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Tells whether a text is a name that can stand in a folder's. systemd writes some characters as `\x2d`.
fn is_name(text: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'\\');
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_fit)
}

fn is_number(text: &str) -> bool {
    (1..=20).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the user of `user-N.slice`.
fn slice_user(part: &str) -> Option<u32> {
    part.strip_prefix("user-")?.strip_suffix(".slice").filter(|number| is_number(number))?.parse().ok()
}

/// Returns the UID of `pod0123…` or `kubepods-burstable-pod0123_….slice`; systemd wants `_` for `-`.
fn pod_uid(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let name = name.split(':').next().and_then(|name| name.strip_suffix(".slice").or(Some(name)))?;
    let uid = match name.rsplit_once("-pod") {
        Some((kubepods, uid)) if kubepods.starts_with("kubepods") => uid,
        _ => name.strip_prefix("pod")?,
    };
    let is_uid = (32..=36).contains(&uid.len())
        && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_'));
    is_uid.then(|| uid.replace('_', "-"))
}

/// Returns the hierarchies in the text of `/proc/PID/cgroup`, each with its controllers and the path of the
/// process's group. The unified hierarchy has no controllers.
pub fn hierarchies(text: &str) -> impl Iterator<Item = (&str, &str)> + Clone {
    // hierarchy:controllers:path; the path may hold colons.
    text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'))
}

/// Returns the path of a process's control group from the text of `/proc/PID/cgroup`: that of the unified
/// hierarchy or, where that is not in use (version 1), the longest of the others.
pub fn cgroup_path(text: &str) -> Option<&str> {
    let groups: Vec<(&str, &str)> = hierarchies(text).collect();
    let unified = groups.iter().find(|(controllers, path)| controllers.is_empty() && *path != "/");
    // The first of the longest ones.
    unified.or_else(|| groups.iter().rev().max_by_key(|(_, path)| path.len())).map(|(_, path)| *path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f1c0d7e9a2b4c6d8e0f11223344556677889900aabbccddeeff001122334455";
    const UID: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

    fn holder(path: &str) -> Option<CgroupHolder> {
        CgroupHolder::of_cgroup(path, usize::MAX)
    }

    fn container(path: &str) -> Container {
        match holder(path) {
            Some(CgroupHolder::Container(container)) => container,
            other => panic!("{other:?} in {path}"),
        }
    }

    #[test]
    fn the_forms_of_the_runtimes() {
        let systemd_uid = UID.replace('-', "_");
        let pods =
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd_uid}.slice");
        for (path, runtime, pod) in [
            (format!("/docker/{ID}"), "docker", None),
            (format!("/system.slice/docker-{ID}.scope"), "docker", None),
            // A group that a process of the container itself made below.
            (format!("/system.slice/docker-{ID}.scope/init.scope"), "docker", None),
            (format!("/machine.slice/libpod-{ID}.scope/container"), "podman", None),
            (format!("/libpod_parent/libpod-{ID}"), "podman", None),
            // Root's own, in root's session.
            (format!("/user.slice/user-0.slice/session-1.scope/libpod-payload-{ID}"), "podman", None),
            (format!("{pods}/cri-containerd-{ID}.scope"), "containerd", Some(UID)),
            (format!("{pods}/crio-{ID}.scope/container"), "cri-o", Some(UID)),
            (format!("{pods}/docker-{ID}.scope"), "docker", Some(UID)),
            (format!("/kubepods/besteffort/pod{UID}/{ID}"), "kubernetes", Some(UID)),
            (
                format!(
                    "/system.slice/containerd.service/kubepods-burstable-pod{systemd_uid}.slice:cri-containerd:{ID}"
                ),
                "containerd",
                Some(UID),
            ),
            // Seen from a pod with a cgroup namespace of its own, as every pod has one.
            (
                format!("/../../../kubepods-burstable-pod{systemd_uid}.slice/cri-containerd-{ID}.scope"),
                "containerd",
                Some(UID),
            ),
            (format!("/../../pod{UID}/{ID}"), "kubernetes", Some(UID)),
        ] {
            let found = container(&path);
            assert_eq!(
                (found.runtime.as_str(), found.id.as_str(), found.pod.as_deref()),
                (runtime, ID, pod),
                "{path}"
            );
        }
        assert_eq!(container(&format!("/docker/{ID}")).short(), "docker:4f1c0d7e9a2b");
    }

    #[test]
    fn containers_with_names_and_jobs_with_numbers() {
        for (path, short) in [
            ("/lxc/4711/ns/system.slice", "lxc:4711"),
            ("/lxc.payload.web-1/system.slice/cron.service", "lxc:web-1"),
            ("/lxc.payload/web-1", "lxc:web-1"),
            ("/machine.slice/machine-web.scope/payload", "nspawn:web"),
            ("/machine.slice/systemd-nspawn@web.service/payload/init.scope", "nspawn:web"),
            ("/slurm/uid_1000/job_4711/step_0/task_0", "slurm:4711"),
            ("/slurm_node7/uid_1000/job_4711/step_batch", "slurm:4711"),
            ("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "slurm:4711"),
            ("/system.slice/node7_slurmstepd.scope/job_4711/step_0", "slurm:4711"),
        ] {
            assert_eq!(container(path).short(), short, "{path}");
        }
        for path in [
            "/",
            "/init.scope",
            "/user.slice",
            "/user.slice/user-0.slice/session-1.scope",
            "/system.slice/docker.service",
            "/system.slice/slurmd.service",
            "/system.slice/slurmstepd.scope/system",
            "/docker/buildx",
            "/lxc.monitor.web-1",
            "/machine.slice",
            "/machine.slice/x\u{1b}.scope",
            "/lxc/\u{1b}[31m",
            "/batch/job_4711",
            "/user-1000.slice",
        ] {
            assert_eq!(holder(path), None, "{path}");
        }
    }

    #[test]
    fn the_outermost_holder_counts_and_below_a_users_slice_it_is_the_user() {
        let forged = format!("kubepods/pod{UID}/{ID}");
        for path in [
            format!("/user.slice/user-1000.slice/user@1000.service/{forged}"),
            format!("/user.slice/user-1000.slice/user@1000.service/app.slice/docker-{ID}.scope"),
            // Podman without root.
            format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container"),
            // The name of another user.
            "/user.slice/user-1000.slice/user@1000.service/user.slice/user-0.slice/x".to_owned(),
            "/user.slice/user-1000.slice/session-3.scope".to_owned(),
            "/../../user.slice/user-1000.slice/user@1000.service/init.scope".to_owned(),
        ] {
            assert_eq!(holder(&path), Some(CgroupHolder::User(1000)), "{path}");
        }
        let outer = ID.replace('4', "5");
        for path in [
            // Docker in Docker, Kubernetes in Docker, and a pod that a container made up.
            format!("/docker/{outer}/docker/{ID}"),
            format!("/docker/{outer}/{forged}"),
            format!("/system.slice/docker-{outer}.scope/{forged}"),
            format!("/system.slice/docker-{outer}.scope/user.slice/user-7.slice/x"),
        ] {
            let found = container(&path);
            assert_eq!((found.id.as_str(), found.pod), (outer.as_str(), None), "{path}");
        }
        let in_pod = container(&format!("/kubepods/pod{UID}/{outer}/docker/{ID}"));
        assert_eq!((in_pod.id.as_str(), in_pod.pod.as_deref()), (outer.as_str(), Some(UID)));
        let pods = container(&format!("/lxc/web/{forged}"));
        assert_eq!((pods.short().as_str(), pods.pod), ("lxc:web", None));
    }

    #[test]
    fn names_that_root_did_not_give_say_nothing() {
        let path = format!("/system.slice/bobs.service/docker-{ID}.scope");
        let named = |by_root| CgroupHolder::of_cgroup(&path, by_root);
        assert_eq!((named(0), named(2)), (None, None));
        assert!(named(3).is_some());
        let session = "/user.slice/user-1000.slice/user@1000.service";
        assert_eq!(CgroupHolder::of_cgroup(session, 1), None);
    }

    #[test]
    fn the_unified_hierarchy_comes_first_and_the_longest_path_without_it() {
        assert_eq!(cgroup_path("12:memory:/a/long/path\n0::/user.slice\n"), Some("/user.slice"));
        assert_eq!(cgroup_path("12:memory:/docker/x:y\n1:cpu:/\n0::/\n"), Some("/docker/x:y"));
        assert_eq!(cgroup_path("nonsense"), None);
    }
}
