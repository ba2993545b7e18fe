//! Permissions of this process: capabilities, namespaces, lockdown, limits.

use rustix::thread::CapabilitySet as Capabilities;

use super::{
    checks::{Finding, degraded, no, ok},
    facts::Facts,
    kernel,
    report::NamedCheck,
};

pub(super) const CHECKS: [NamedCheck; 12] = [
    ("CAP_BPF, CAP_PERFMON", bpf),
    ("CAP_SYS_PTRACE", ptrace),
    ("CAP_DAC_READ_SEARCH", files),
    ("replaced libraries", replaced_files),
    ("user namespace", user_namespace),
    ("PID namespace", pid_namespace),
    ("lockdown", lockdown),
    ("seccomp", seccomp),
    ("perf_event_paranoid", perf_event_paranoid),
    ("ptrace_scope", ptrace_scope),
    ("RLIMIT_MEMLOCK", memlock),
    ("RLIMIT_NOFILE", descriptors),
];

const READS_FILES: Capabilities = Capabilities::DAC_READ_SEARCH.union(Capabilities::DAC_OVERRIDE);
const REACHES_REPLACED: Capabilities = Capabilities::SYS_ADMIN.union(Capabilities::CHECKPOINT_RESTORE);

fn has(facts: &Facts, any: Capabilities) -> bool {
    let effective = facts.status_field("CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
    effective.is_some_and(|set| Capabilities::from_bits_retain(set).intersects(any))
}

fn who(facts: &Facts) -> String {
    if facts.uid == 0 { "root".to_owned() } else { format!("user {}", facts.uid) }
}

fn bpf(facts: &Facts) -> Finding {
    let needed = [(Capabilities::BPF, "CAP_BPF"), (Capabilities::PERFMON, "CAP_PERFMON")];
    let missing = needed.iter().filter(|(capability, _)| !has(facts, *capability | Capabilities::SYS_ADMIN));
    let missing: Vec<&str> = missing.map(|(_, name)| *name).collect();
    if missing.is_empty() {
        let as_admin = needed.iter().any(|(capability, _)| !has(facts, *capability));
        return ok(if as_admin { "CAP_SYS_ADMIN stands for them" } else { "there" });
    }
    let missing = missing.join(" and ");
    no(format!("{} lacks {missing}: eBPF programs cannot be loaded", who(facts)), "run as root")
}

/// Judges capabilities. `without`: what is lost where the process has none of these.
fn there(facts: &Facts, any: Capabilities, name: &str, without: &str) -> Finding {
    if has(facts, any) {
        return ok("there");
    }
    degraded(format!("{} lacks it: {without}", who(facts)), format!("run as root, or with {name}"))
}

fn ptrace(facts: &Facts) -> Finding {
    let without = "processes of other users cannot be inspected";
    there(facts, Capabilities::SYS_PTRACE, "CAP_SYS_PTRACE", without)
}

fn files(facts: &Facts) -> Finding {
    let without = "libraries that only their owner may read cannot be read";
    there(facts, READS_FILES, "CAP_DAC_READ_SEARCH", without)
}

/// Tells whether the kernel has no reason to refuse a library of any process.
pub(super) fn opens_all(facts: &Facts) -> bool {
    [Capabilities::SYS_PTRACE, READS_FILES, REACHES_REPLACED].into_iter().all(|any| has(facts, any))
}

fn replaced_files(facts: &Facts) -> Finding {
    if has(facts, REACHES_REPLACED) {
        return ok("can be opened through /proc/PID/map_files");
    }
    degraded(
        "a library whose file was deleted or replaced cannot be opened",
        "CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN besides",
    )
}

fn user_namespace(facts: &Facts) -> Finding {
    let whole = facts.uid_map.split_whitespace().take(3).eq(["0", "0", "4294967295"]);
    if whole || facts.uid_map.is_empty() {
        return ok(if whole { "the host's" } else { "not known" });
    }
    no(
        "one of its own: its capabilities do not count for BPF and uprobes",
        "run outside of it: as the host's root, or in a container without a user namespace",
    )
}

fn pid_namespace(facts: &Facts) -> Finding {
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

fn lockdown(facts: &Facts) -> Finding {
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

fn seccomp(facts: &Facts) -> Finding {
    match facts.status_field("Seccomp") {
        Some("2") => degraded(
            "a filter: bpf(2), perf_event_open(2) or process_vm_readv(2) can be forbidden",
            "see the uprobe below; if it does not work, `--security-opt seccomp=unconfined`",
        ),
        Some("1") => no("strict", "run outside of it"),
        _ => ok("no filter"),
    }
}

fn perf_event_paranoid(facts: &Facts) -> Finding {
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

fn ptrace_scope(facts: &Facts) -> Finding {
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

fn memlock(facts: &Facts) -> Finding {
    // From 5.11 on the kernel charges BPF's memory to the memory cgroup instead.
    let counts = kernel::parse(&facts.release).is_none_or(|version| version < (5, 11));
    match facts.memlock {
        None => ok("unlimited"),
        Some(bytes) if !counts => ok(format!("{bytes}: not used for BPF from 5.11 on")),
        Some(bytes) => degraded(format!("{bytes} bytes"), "ulimit -l unlimited"),
    }
}

fn descriptors(facts: &Facts) -> Finding {
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
