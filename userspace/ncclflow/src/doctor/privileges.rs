//! What the kernel permits this process: capabilities, namespaces, lockdown, limits.

use super::{checks::Check, facts::Facts, kernel};

/// Capabilities by their numbers in include/uapi/linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capability {
    DacOverride = 1,
    DacReadSearch = 2,
    SysPtrace = 19,
    SysAdmin = 21,
    Perfmon = 38,
    Bpf = 39,
    CheckpointRestore = 40,
}

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    vec![
        bpf(facts),
        ptrace(facts),
        files(facts),
        replaced_files(facts),
        user_namespace(facts),
        pid_namespace(facts),
        lockdown(facts),
        seccomp(facts),
        perf_event_paranoid(facts),
        ptrace_scope(facts),
        memlock(facts),
        descriptors(facts),
    ]
}

fn has(facts: &Facts, any: &[Capability]) -> bool {
    let effective = facts.status_field("CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
    effective.is_some_and(|set| any.iter().any(|&capability| set & (1 << capability as u32) != 0))
}

/// The user, for messages.
fn who(facts: &Facts) -> String {
    if facts.uid == 0 { "root".to_owned() } else { format!("user {}", facts.uid) }
}

fn bpf(facts: &Facts) -> Check {
    let name = "CAP_BPF, CAP_PERFMON";
    let missing: Vec<&str> = [(Capability::Bpf, "CAP_BPF"), (Capability::Perfmon, "CAP_PERFMON")]
        .into_iter()
        .filter(|(capability, _)| !has(facts, &[*capability, Capability::SysAdmin]))
        .map(|(_, name)| name)
        .collect();
    if missing.is_empty() {
        let as_admin = !has(facts, &[Capability::Bpf]) || !has(facts, &[Capability::Perfmon]);
        return Check::ok(name, if as_admin { "CAP_SYS_ADMIN stands for them" } else { "there" });
    }
    let missing = missing.join(" and ");
    Check::no(name, format!("{} lacks {missing}: eBPF programs cannot be loaded", who(facts)), "run as root")
}

fn ptrace(facts: &Facts) -> Check {
    let name = "CAP_SYS_PTRACE";
    if has(facts, &[Capability::SysPtrace]) {
        return Check::ok(name, "there");
    }
    Check::degraded(
        name,
        format!("{} lacks it: processes of other users cannot be looked at", who(facts)),
        "run as root, or with CAP_SYS_PTRACE",
    )
}

fn files(facts: &Facts) -> Check {
    let name = "CAP_DAC_READ_SEARCH";
    if has(facts, &[Capability::DacReadSearch, Capability::DacOverride]) {
        return Check::ok(name, "there");
    }
    Check::degraded(
        name,
        format!("{} lacks it: libraries that others may not read cannot be read", who(facts)),
        "run as root, or with CAP_DAC_READ_SEARCH",
    )
}

fn replaced_files(facts: &Facts) -> Check {
    let name = "replaced libraries";
    if has(facts, &[Capability::SysAdmin, Capability::CheckpointRestore]) {
        return Check::ok(name, "can be opened through /proc/PID/map_files");
    }
    Check::degraded(
        name,
        "a library whose file was deleted or replaced cannot be opened",
        "CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN besides",
    )
}

fn user_namespace(facts: &Facts) -> Check {
    let name = "user namespace";
    let mut fields = facts.uid_map.split_whitespace();
    let whole = [fields.next(), fields.next(), fields.next()] == [Some("0"), Some("0"), Some("4294967295")];
    if whole || facts.uid_map.is_empty() {
        return Check::ok(name, if whole { "the host's" } else { "not known" });
    }
    Check::no(
        name,
        "one of its own: its capabilities do not count for BPF and uprobes",
        "run outside of it: as the host's root, or in a container without a user namespace",
    )
}

fn pid_namespace(facts: &Facts) -> Check {
    let name = "PID namespace";
    match facts.in_first_pid_namespace {
        Some(true) => Check::ok(name, "the host's"),
        None => Check::ok(name, "not known"),
        Some(false) => Check::degraded(
            name,
            "one of its own: processes of the host and of other containers are not seen, and there is no --returns where the kernel has no \
             uprobe_multi",
            "run in the host's: `docker run --pid=host`, `hostPID: true` in Kubernetes",
        ),
    }
}

fn lockdown(facts: &Facts) -> Check {
    let name = "lockdown";
    let mode = facts.lockdown.as_deref().and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0));
    match mode {
        None => Check::ok(name, "the kernel has none"),
        // Confidentiality refuses bpf_probe_read_kernel, which ncclflow does not use; from 5.4 to 5.9 also
        // bpf_probe_read; and perf events of the kernel (security/lockdown/lockdown.c,
        // kernel/trace/bpf_trace.c).
        Some("confidentiality") => Check::degraded(
            name,
            "confidentiality: what it allows differs between kernels",
            "see the uprobe below; if it does not work, boot with lockdown=integrity",
        ),
        Some(mode) => Check::ok(name, mode.to_owned()),
    }
}

fn seccomp(facts: &Facts) -> Check {
    let name = "seccomp";
    match facts.status_field("Seccomp") {
        Some("2") => Check::degraded(
            name,
            "a filter: bpf(2), perf_event_open(2) or process_vm_readv(2) can be forbidden",
            "see the uprobe below; if it does not work, `--security-opt seccomp=unconfined`",
        ),
        Some("1") => Check::no(name, "strict", "run outside of it"),
        _ => Check::ok(name, "no filter"),
    }
}

fn perf_event_paranoid(facts: &Facts) -> Check {
    let name = "perf_event_paranoid";
    let Some(value) = &facts.perf_event_paranoid else {
        return Check::no(name, "the kernel has no perf events", "a kernel with CONFIG_PERF_EVENTS");
    };
    let bpf = facts.unprivileged_bpf_disabled.as_deref().unwrap_or("?");
    let also = format!("unprivileged_bpf_disabled {bpf}");
    if has(facts, &[Capability::Perfmon, Capability::SysAdmin]) {
        return Check::ok(name, format!("{value}, {also}: do not matter with these capabilities"));
    }
    Check::degraded(
        name,
        format!("{value}, {also}: whatever they are, uprobes and BPF need capabilities"),
        "run as root",
    )
}

fn ptrace_scope(facts: &Facts) -> Check {
    let name = "ptrace_scope";
    match facts.ptrace_scope.as_deref() {
        None => Check::ok(name, "the kernel has no Yama"),
        Some("0") => Check::ok(name, "0"),
        Some(value @ ("1" | "2")) if has(facts, &[Capability::SysPtrace]) => {
            Check::ok(name, format!("{value}: does not matter with CAP_SYS_PTRACE"))
        }
        Some("3") => Check::degraded(
            name,
            "3: nobody may attach with ptrace; reading memory (`dump`) is refused too",
            "sysctl kernel.yama.ptrace_scope=1 (from 3 on, only at the next boot)",
        ),
        Some(value) => Check::degraded(
            name,
            format!("{value}: memory of processes that are no children cannot be read (`dump`)"),
            "run as root, or with CAP_SYS_PTRACE",
        ),
    }
}

fn memlock(facts: &Facts) -> Check {
    let name = "RLIMIT_MEMLOCK";
    // From 5.11 on the kernel charges BPF's memory to the memory cgroup instead.
    let counts = kernel::parse(&facts.release).is_none_or(|version| version < (5, 11));
    match facts.memlock {
        None => Check::ok(name, "unlimited"),
        Some(bytes) if !counts => Check::ok(name, format!("{bytes}: not used for BPF from 5.11 on")),
        Some(bytes) => Check::degraded(name, format!("{bytes} bytes"), "ulimit -l unlimited"),
    }
}

fn descriptors(facts: &Facts) -> Check {
    let name = "RLIMIT_NOFILE";
    match facts.nofile_hard {
        Some(hard) if hard < 4096 => Check::degraded(
            name,
            format!("{hard} at most: up to a descriptor for each probe, and two for each rank's files"),
            "ulimit -Hn 65536",
        ),
        hard => {
            let shown = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
            Check::ok(name, format!("{}, and is raised to {}", shown(facts.nofile), shown(hard)))
        }
    }
}
