//! Facts about the host, read once, so that the checks are pure functions.

use std::{fs::File, io::Read as _, path::Path};

use flate2::read::GzDecoder;

use inspect::process::{MAX_TEXT, in_first_pid_namespace, read_text, status_field};

#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// `uname -r`
    pub release: String,
    pub machine: String,
    /// The kernel's configuration, and the path of its file.
    pub config: Option<(String, String)>,
    pub has_btf: bool,
    pub status: String,
    pub uid: u32,
    /// `/proc/self/uid_map`. Outside of user namespaces it is one line that maps all user ids to themselves.
    pub uid_map: String,
    /// Set if this process sees all processes of the host.
    pub in_first_pid_namespace: Option<bool>,
    /// `/sys/kernel/security/lockdown`, like `[none] integrity confidentiality`
    pub lockdown: Option<String>,
    pub perf_event_paranoid: Option<String>,
    pub unprivileged_bpf_disabled: Option<String>,
    pub ptrace_scope: Option<String>,
    pub has_tracefs: bool,
    /// Soft limit of locked memory in bytes; `None`: unlimited.
    pub memlock: Option<u64>,
    /// Soft limit of open descriptors; `None`: unlimited.
    pub nofile: Option<u64>,
    /// Hard limit of open descriptors; `None`: unlimited.
    pub nofile_hard: Option<u64>,
}

impl Facts {
    pub fn read() -> Self {
        use rustix::process::{Resource, geteuid, getrlimit};
        let uname = rustix::system::uname();
        let release = uname.release().to_string_lossy().into_owned();
        let sysctl =
            |name: &str| text(&format!("/proc/sys/kernel/{name}")).map(|text| text.trim().to_owned());
        let (memlock, nofile) = (getrlimit(Resource::Memlock), getrlimit(Resource::Nofile));
        Self {
            config: config(&release),
            machine: uname.machine().to_string_lossy().into_owned(),
            has_btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            status: text("/proc/self/status").unwrap_or_default(),
            uid: geteuid().as_raw(),
            uid_map: text("/proc/self/uid_map").unwrap_or_default(),
            in_first_pid_namespace: in_first_pid_namespace().ok(),
            lockdown: text("/sys/kernel/security/lockdown"),
            perf_event_paranoid: sysctl("perf_event_paranoid"),
            unprivileged_bpf_disabled: sysctl("unprivileged_bpf_disabled"),
            ptrace_scope: sysctl("yama/ptrace_scope"),
            has_tracefs: ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"]
                .iter()
                .any(|path| Path::new(path).exists()),
            memlock: memlock.current,
            nofile: nofile.current,
            nofile_hard: nofile.maximum,
            release,
        }
    }

    pub(super) fn status_field(&self, name: &str) -> Option<&str> {
        status_field(&self.status, name)
    }
}

fn text(path: &str) -> Option<String> {
    read_text(path).ok()
}

fn config(release: &str) -> Option<(String, String)> {
    let packed = "/proc/config.gz";
    let mut text = String::new();
    let unpack = |file| GzDecoder::new(file).take(MAX_TEXT).read_to_string(&mut text);
    if File::open(packed).and_then(unpack).is_ok() {
        return Some((text, packed.to_owned()));
    }
    let places = [
        format!("/boot/config-{release}"),
        format!("/lib/modules/{release}/config"),
        format!("/usr/lib/modules/{release}/config"),
    ];
    places.into_iter().find_map(|path| Some((read_text(&path).ok()?, path)))
}
