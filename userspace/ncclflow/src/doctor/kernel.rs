//! The kernel: version, configuration, BTF, tracefs.

use super::{
    checks::{Finding, degraded, no, ok},
    facts::Facts,
    report::NamedCheck,
};

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

pub(super) const CHECKS: [NamedCheck; 5] = [
    ("kernel", version),
    ("configuration", configuration),
    ("processor", machine),
    ("BTF", btf),
    ("tracefs", tracefs),
];

fn version(facts: &Facts) -> Finding {
    let release = &facts.release;
    match parse(release) {
        None => degraded(
            format!("`{release}` is not a version that ncclflow understands"),
            "see the \
                                  uprobe below",
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

pub(super) fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn configuration(facts: &Facts) -> Finding {
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

fn machine(facts: &Facts) -> Finding {
    let (machine, ours) = (&facts.machine, std::env::consts::ARCH);
    if machine == ours {
        return ok(machine);
    }
    no(
        format!("this machine is {machine}, and this program was built for {ours}"),
        "use a build for this \
                processor",
    )
}

fn btf(facts: &Facts) -> Finding {
    ok(if facts.has_btf { "/sys/kernel/btf/vmlinux (not needed)" } else { "none (not needed)" })
}

fn tracefs(facts: &Facts) -> Finding {
    ok(if facts.has_tracefs { "mounted (not needed)" } else { "not mounted (not needed)" })
}
