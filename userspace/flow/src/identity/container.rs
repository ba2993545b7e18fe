//! Finds the container of a process by the name of its control group: `/proc/PID/cgroup`.

use serde::{Deserialize, Serialize};

/// Shortest and longest id that is taken for one. Docker, containerd, cri-o and podman use 64 hex digits.
const ID_LENGTHS: std::ops::RangeInclusive<usize> = 32..=64;

/// A container, as its runtime names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Name of the runtime: `docker`, `containerd`, `cri-o`, `podman`; `kubernetes` where only the pod's
    /// folder says that this is a container.
    pub runtime: String,
    pub id: String,
    /// UID of the Kubernetes pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

impl Container {
    /// Returns the container that a control group's path names, the innermost if several do. `None` outside
    /// of containers, and in those whose runtime makes no group for them (`unshare`, enroot, apptainer).
    ///
    /// Known forms, with systemd's slices and without: `docker-ID.scope`, `docker/ID` (Docker);
    /// `cri-containerd-ID.scope`, `nerdctl-ID.scope` (containerd); `crio-ID.scope` (cri-o); `libpod-ID.scope`
    /// (podman); `kubepods…/podUID/ID` (any, below the kubelet's cgroupfs driver).
    pub fn of_cgroup(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').collect();
        let pod = parts.iter().rev().find_map(|part| pod_uid(part));
        parts.iter().enumerate().rev().find_map(|(at, part)| {
            let before = at.checked_sub(1).and_then(|at| parts.get(at)).copied().unwrap_or_default();
            let (runtime, id) = runtime_and_id(part, before, pod.is_some())?;
            Some(Self { runtime: runtime.to_owned(), id: id.to_owned(), pod: pod.clone() })
        })
    }

    /// Returns the runtime and the first 12 digits of the id, as `docker ps` shows it.
    pub fn short(&self) -> String {
        format!("{}:{}", self.runtime, self.id.get(..12).unwrap_or(&self.id))
    }
}

fn runtime_and_id<'a>(part: &'a str, before: &str, in_pod: bool) -> Option<(&'static str, &'a str)> {
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
    match before {
        "docker" if is_id(name) => Some(("docker", name)),
        _ if in_pod && is_id(name) => Some(("kubernetes", name)),
        _ => None,
    }
}

fn is_id(text: &str) -> bool {
    ID_LENGTHS.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
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

/// Returns the path of a process's control group from the text of `/proc/PID/cgroup`: that of the unified
/// hierarchy or, where that is not in use (version 1), the longest of the others.
pub fn cgroup_path(text: &str) -> Option<&str> {
    // hierarchy:controllers:path; the path may hold colons.
    let groups = text.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let unified = groups.clone().find(|(controllers, path)| controllers.is_empty() && *path != "/");
    // The first of the longest ones.
    unified.or_else(|| groups.rev().max_by_key(|(_, path)| path.len())).map(|(_, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f1c0d7e9a2b4c6d8e0f11223344556677889900aabbccddeeff001122334455";

    #[test]
    fn the_forms_of_the_runtimes() {
        let uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
        let systemd_uid = uid.replace('-', "_");
        let pods =
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd_uid}.slice");
        for (path, runtime, pod) in [
            (format!("/docker/{ID}"), "docker", None),
            (format!("/system.slice/docker-{ID}.scope"), "docker", None),
            // A group that a process of the container itself made below.
            (format!("/system.slice/docker-{ID}.scope/init.scope"), "docker", None),
            (format!("/machine.slice/libpod-{ID}.scope/container"), "podman", None),
            (
                format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope"),
                "podman",
                None,
            ),
            (format!("{pods}/cri-containerd-{ID}.scope"), "containerd", Some(uid)),
            (format!("{pods}/crio-{ID}.scope"), "cri-o", Some(uid)),
            (format!("{pods}/docker-{ID}.scope"), "docker", Some(uid)),
            (format!("/kubepods/besteffort/pod{uid}/{ID}"), "kubernetes", Some(uid)),
            (
                format!(
                    "/system.slice/containerd.service/kubepods-burstable-pod{systemd_uid}.slice:cri-containerd:{ID}"
                ),
                "containerd",
                Some(uid),
            ),
            // Seen from a pod with a cgroup namespace of its own, as every pod has one.
            (
                format!("/../../../kubepods-burstable-pod{systemd_uid}.slice/cri-containerd-{ID}.scope"),
                "containerd",
                Some(uid),
            ),
            (format!("/../../pod{uid}/{ID}"), "kubernetes", Some(uid)),
            // Docker in a pod: the innermost.
            (format!("/kubepods/pod{uid}/{}/docker/{ID}", ID.replace('4', "5")), "docker", Some(uid)),
        ] {
            let found = Container::of_cgroup(&path).unwrap_or_else(|| panic!("none in {path}"));
            assert_eq!(
                (found.runtime.as_str(), found.id.as_str(), found.pod.as_deref()),
                (runtime, ID, pod),
                "{path}"
            );
        }
        for path in [
            "/",
            "/user.slice/user-0.slice/session-1.scope",
            "/system.slice/docker.service",
            "/docker/buildx",
            "/lxc/4711",
        ] {
            assert_eq!(Container::of_cgroup(path), None, "{path}");
        }
        assert_eq!(Container::of_cgroup(&format!("/docker/{ID}")).unwrap().short(), "docker:4f1c0d7e9a2b");
    }

    #[test]
    fn the_unified_hierarchy_comes_first_and_the_longest_path_without_it() {
        assert_eq!(cgroup_path("12:memory:/a/long/path\n0::/user.slice\n"), Some("/user.slice"));
        assert_eq!(cgroup_path("12:memory:/docker/x:y\n1:cpu:/\n0::/\n"), Some("/docker/x:y"));
        assert_eq!(cgroup_path("nonsense"), None);
    }
}
