//! The host as its facts tell: the kernel, and what this process may do: capabilities, namespaces, lockdown,
//! limits.

use std::{fs::File, io::Read as _, path::Path};

use flate2::read::GzDecoder;
use rustix::thread::CapabilitySet as Capabilities;

use super::report::{Check, degraded, no, ok};
use inspect::process::{MAX_TEXT, in_first_pid_namespace, read_text, status_field};

/// The first kernel with cookies for uprobes (docs/INSTALL.md).
const OLDEST: (u32, u32) = (5, 15);
/// The first kernel that runs a uprobe's program even while another BPF program runs on the CPU
/// (docs/LIMITATIONS.md).
const EVERY_HIT: (u32, u32) = (6, 0);
const NEEDED: [&str; 6] = [
    "CONFIG_BPF_SYSCALL",
    "CONFIG_BPF_EVENTS",
    "CONFIG_PERF_EVENTS",
    "CONFIG_UPROBES",
    "CONFIG_UPROBE_EVENTS",
    "CONFIG_PROC_FS",
];

const READS_FILES: Capabilities = Capabilities::DAC_READ_SEARCH.union(Capabilities::DAC_OVERRIDE);
const REACHES_REPLACED: Capabilities = Capabilities::SYS_ADMIN.union(Capabilities::CHECKPOINT_RESTORE);

/// Facts about the host, read once, so that the checks are pure functions.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
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
    pub(super) fn read() -> Self {
        use rustix::process::{Resource, geteuid, getrlimit};
        let uname = rustix::system::uname();
        let release = uname.release().to_string_lossy().into_owned();
        let sysctl = |name: &str| Some(read_text(format!("/proc/sys/kernel/{name}")).ok()?.trim().to_owned());
        let (memlock, nofile) = (getrlimit(Resource::Memlock), getrlimit(Resource::Nofile));
        Self {
            config: config(&release),
            machine: uname.machine().to_string_lossy().into_owned(),
            has_btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            status: read_text("/proc/self/status").unwrap_or_default(),
            uid: geteuid().as_raw(),
            uid_map: read_text("/proc/self/uid_map").unwrap_or_default(),
            in_first_pid_namespace: in_first_pid_namespace().ok(),
            lockdown: read_text("/sys/kernel/security/lockdown").ok(),
            perf_event_paranoid: sysctl("perf_event_paranoid"),
            unprivileged_bpf_disabled: sysctl("unprivileged_bpf_disabled"),
            ptrace_scope: sysctl("yama/ptrace_scope"),
            has_tracefs: ["tracing/events", "debug/tracing/events"]
                .iter()
                .any(|path| Path::new("/sys/kernel").join(path).exists()),
            memlock: memlock.current,
            nofile: nofile.current,
            nofile_hard: nofile.maximum,
            release,
        }
    }
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

/// Returns the checks of what is known without a trial.
pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    let btf = if facts.has_btf { "/sys/kernel/btf/vmlinux (not needed)" } else { "none (not needed)" };
    let tracefs = if facts.has_tracefs { "mounted (not needed)" } else { "not mounted (not needed)" };
    let ptrace = "processes of other users cannot be inspected";
    let files = "libraries that only their owner may read cannot be read";
    let checks = [
        ("kernel", version(facts)),
        ("configuration", configuration(facts)),
        ("processor", machine(facts)),
        ("BTF", ok(btf)),
        ("tracefs", ok(tracefs)),
        ("CAP_BPF, CAP_PERFMON", bpf(facts)),
        ("CAP_SYS_PTRACE", there(facts, Capabilities::SYS_PTRACE, "CAP_SYS_PTRACE", ptrace)),
        ("CAP_DAC_READ_SEARCH", there(facts, READS_FILES, "CAP_DAC_READ_SEARCH", files)),
        ("replaced libraries", replaced_files(facts)),
        ("user namespace", user_namespace(facts)),
        ("PID namespace", pid_namespace(facts)),
        ("lockdown", lockdown(facts)),
        ("seccomp", seccomp(facts)),
        ("perf_event_paranoid", perf_event_paranoid(facts)),
        ("ptrace_scope", ptrace_scope(facts)),
        ("RLIMIT_MEMLOCK", memlock(facts)),
        ("RLIMIT_NOFILE", descriptors(facts)),
    ];
    checks.into_iter().map(|(name, check)| check.named(name)).collect()
}

fn version(facts: &Facts) -> Check {
    let release = &facts.release;
    match parse(release) {
        None => degraded(
            format!("`{release}` is not a version that ncclflow understands"),
            "see the uprobe below",
        ),
        // Red Hat's kernels keep their version number and take BPF from later kernels.
        Some(version) if version < OLDEST && release.contains(".el") => degraded(
            format!(
                "{release}: too old by its number, but this distribution adds parts of later kernels; a \
                 hit while another BPF program runs on the CPU may be lost without being counted"
            ),
            "see the uprobe below; if it works, run no other BPF programs meanwhile",
        ),
        Some(version) if version < OLDEST => {
            no(format!("{release}: uprobes have no cookies before 5.15"), "use a kernel from 5.15 on")
        }
        Some(version) if version < EVERY_HIT => degraded(
            format!(
                "{release}: before 6.0, a hit while another BPF program runs on the CPU is lost \
                     without being counted"
            ),
            "use a kernel from 6.0 on, or run no other BPF programs meanwhile",
        ),
        Some(_) => ok(release),
    }
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn configuration(facts: &Facts) -> Check {
    let Some((text, path)) = &facts.config else {
        return degraded(
            "unknown: no configuration in /proc/config.gz, /boot or /lib/modules",
            "none is needed if the uprobe below works",
        );
    };
    let is_set = |option: &&str| {
        let value = text.lines().find_map(|line| line.strip_prefix(*option)?.strip_prefix('='));
        matches!(value, Some("y" | "m"))
    };
    let missing: Vec<&str> = NEEDED.into_iter().filter(|option| !is_set(option)).collect();
    if missing.is_empty() {
        return ok(format!("{path}: all that is needed"));
    }
    let missing = missing.join(", ");
    no(format!("{path}: without {missing}"), format!("use a kernel with {missing}"))
}

fn machine(facts: &Facts) -> Check {
    let (machine, ours) = (&facts.machine, std::env::consts::ARCH);
    if machine == ours {
        return ok(machine);
    }
    no(
        format!("this machine is {machine}, and this program was built for {ours}"),
        "use a build for this processor",
    )
}

fn has(facts: &Facts, any: Capabilities) -> bool {
    let effective = status_field(&facts.status, "CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
    effective.is_some_and(|set| Capabilities::from_bits_retain(set).intersects(any))
}

fn who(facts: &Facts) -> String {
    if facts.uid == 0 { "root".to_owned() } else { format!("user {}", facts.uid) }
}

fn bpf(facts: &Facts) -> Check {
    let needed = [(Capabilities::BPF, "CAP_BPF"), (Capabilities::PERFMON, "CAP_PERFMON")];
    let missing = needed.iter().filter(|(capability, _)| !has(facts, *capability | Capabilities::SYS_ADMIN));
    let missing: Vec<&str> = missing.map(|(_, name)| *name).collect();
    if missing.is_empty() {
        let as_admin = needed.iter().any(|(capability, _)| !has(facts, *capability));
        return ok(if as_admin { "CAP_SYS_ADMIN stands for them" } else { "present" });
    }
    let missing = missing.join(" and ");
    no(format!("{} lacks {missing}: eBPF programs cannot be loaded", who(facts)), "run as root")
}

/// Judges capabilities. `without`: what is lost where the process has none of these.
fn there(facts: &Facts, any: Capabilities, name: &str, without: &str) -> Check {
    if has(facts, any) {
        return ok("present");
    }
    degraded(format!("{} lacks it: {without}", who(facts)), format!("run as root, or with {name}"))
}

/// Tells whether the kernel has no reason to refuse a library of any process.
pub(super) fn opens_all(facts: &Facts) -> bool {
    [Capabilities::SYS_PTRACE, READS_FILES, REACHES_REPLACED].into_iter().all(|any| has(facts, any))
}

fn replaced_files(facts: &Facts) -> Check {
    if has(facts, REACHES_REPLACED) {
        return ok("can be opened through /proc/PID/map_files");
    }
    degraded(
        "a library whose file was deleted or replaced cannot be opened",
        "CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN besides",
    )
}

fn user_namespace(facts: &Facts) -> Check {
    let whole = facts.uid_map.split_whitespace().take(3).eq(["0", "0", "4294967295"]);
    if whole || facts.uid_map.is_empty() {
        return ok(if whole { "the host's" } else { "not known" });
    }
    no(
        "one of its own: its capabilities do not count for BPF and uprobes",
        "run outside of it: as the host's root, or in a container without a user namespace",
    )
}

fn pid_namespace(facts: &Facts) -> Check {
    match facts.in_first_pid_namespace {
        Some(true) => ok("the host's"),
        None => ok("not known"),
        Some(false) => degraded(
            "one of its own: processes of the host and of other containers are not seen, and there is no --returns where the kernel has no \
             uprobe_multi",
            "run in the host's: `docker run --pid=host`, `hostPID: true` in Kubernetes",
        ),
    }
}

fn lockdown(facts: &Facts) -> Check {
    let mode = facts.lockdown.as_deref().and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0));
    match mode {
        None => ok("the kernel has none"),
        // Confidentiality refuses bpf_probe_read_kernel, which ncclflow does not use; from 5.4 to 5.9 also
        // bpf_probe_read; and perf events of the kernel (security/lockdown/lockdown.c,
        // kernel/trace/bpf_trace.c).
        Some("confidentiality") => degraded(
            "confidentiality: what it allows differs between kernels",
            "see the uprobe below; if it does not work, boot with lockdown=integrity",
        ),
        Some(mode) => ok(mode.to_owned()),
    }
}

fn seccomp(facts: &Facts) -> Check {
    match status_field(&facts.status, "Seccomp") {
        Some("2") => degraded(
            "a filter: bpf(2), perf_event_open(2) or process_vm_readv(2) can be forbidden",
            "see the uprobe below; if it does not work, `--security-opt seccomp=unconfined`",
        ),
        Some("1") => no("strict", "run outside of it"),
        _ => ok("no filter"),
    }
}

fn perf_event_paranoid(facts: &Facts) -> Check {
    let Some(value) = &facts.perf_event_paranoid else {
        return no("the kernel has no perf events", "a kernel with CONFIG_PERF_EVENTS");
    };
    let bpf = facts.unprivileged_bpf_disabled.as_deref().unwrap_or("?");
    let also = format!("unprivileged_bpf_disabled {bpf}");
    if has(facts, Capabilities::PERFMON | Capabilities::SYS_ADMIN) {
        return ok(format!("{value}, {also}: do not matter with these capabilities"));
    }
    degraded(format!("{value}, {also}: whatever they are, uprobes and BPF need capabilities"), "run as root")
}

fn ptrace_scope(facts: &Facts) -> Check {
    match facts.ptrace_scope.as_deref() {
        None => ok("the kernel has no Yama"),
        Some("0") => ok("0"),
        Some(value @ ("1" | "2")) if has(facts, Capabilities::SYS_PTRACE) => {
            ok(format!("{value}: does not matter with CAP_SYS_PTRACE"))
        }
        Some("3") => degraded(
            "3: nobody may attach with ptrace; reading memory (`dump`) is refused too",
            "sysctl kernel.yama.ptrace_scope=1 (from 3 on, only at the next boot)",
        ),
        Some(value) => degraded(
            format!("{value}: memory of processes that are no children cannot be read (`dump`)"),
            "run as root, or with CAP_SYS_PTRACE",
        ),
    }
}

fn memlock(facts: &Facts) -> Check {
    // From 5.11 on the kernel charges BPF's memory to the memory cgroup instead.
    let counts = parse(&facts.release).is_none_or(|version| version < (5, 11));
    match facts.memlock {
        None => ok("unlimited"),
        Some(bytes) if !counts => ok(format!("{bytes}: not used for BPF from 5.11 on")),
        Some(bytes) => degraded(format!("{bytes} bytes"), "ulimit -l unlimited"),
    }
}

fn descriptors(facts: &Facts) -> Check {
    match facts.nofile_hard {
        Some(hard) if hard < 4096 => degraded(
            format!("{hard} at most: up to a descriptor for each probe, and two for each rank's files"),
            "ulimit -Hn 65536",
        ),
        hard => {
            let shown = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
            ok(format!("{}, and is raised to {}", shown(facts.nofile), shown(hard)))
        }
    }
}
