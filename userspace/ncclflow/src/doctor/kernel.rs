//! The kernel: version, configuration, BTF, tracefs.

use super::{checks::Check, facts::Facts};

/// The first kernel with cookies for uprobes (README).
const OLDEST: (u32, u32) = (5, 15);
/// The first kernel that runs a uprobe's program even while another BPF program runs on the CPU
/// (docs/LIMITATIONS.md).
const EVERY_HIT: (u32, u32) = (6, 0);
/// Options that must be set.
const NEEDED: [&str; 6] = [
    "CONFIG_BPF_SYSCALL",
    "CONFIG_BPF_EVENTS",
    "CONFIG_PERF_EVENTS",
    "CONFIG_UPROBES",
    "CONFIG_UPROBE_EVENTS",
    "CONFIG_PROC_FS",
];

pub(super) fn checks(facts: &Facts) -> Vec<Check> {
    vec![version(facts), configuration(facts), machine(facts), btf(facts), tracefs(facts)]
}

fn version(facts: &Facts) -> Check {
    let name = "kernel";
    let release = &facts.release;
    match parse(release) {
        None => Check::degraded(
            name,
            format!("`{release}`: no version that is understood"),
            "see the uprobe below",
        ),
        // Red Hat's kernels keep their version number and take BPF from later kernels.
        Some(version) if version < OLDEST && release.contains(".el") => Check::degraded(
            name,
            format!(
                "{release}: by its number too old, but a distribution's kernel with parts of later ones; hits while another BPF program runs on \
                 the CPU can be in no count"
            ),
            "see the uprobe below; if it works, nothing else that uses BPF",
        ),
        Some(version) if version < OLDEST => Check::no(
            name,
            format!("{release}: uprobes have no cookies before 5.15"),
            "a kernel from 5.15 on",
        ),
        Some(version) if version < EVERY_HIT => Check::degraded(
            name,
            format!("{release}: before 6.0, hits while another BPF program runs on the CPU are in no count"),
            "a kernel from 6.0 on, or nothing else that uses BPF",
        ),
        Some(_) => Check::ok(name, release.clone()),
    }
}

pub(super) fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn configuration(facts: &Facts) -> Check {
    let name = "configuration";
    let Some((text, path)) = &facts.config else {
        return Check::degraded(
            name,
            "not found in /proc/config.gz, /boot or /lib/modules: not known",
            "nothing, if the uprobe below works",
        );
    };
    let is_set = |option: &&str| {
        let value = text.lines().find_map(|line| line.strip_prefix(*option)?.strip_prefix('='));
        matches!(value, Some("y" | "m"))
    };
    let missing: Vec<&str> = NEEDED.into_iter().filter(|option| !is_set(option)).collect();
    if missing.is_empty() {
        return Check::ok(name, format!("{path}: all that is needed"));
    }
    let missing = missing.join(", ");
    Check::no(name, format!("{path}: without {missing}"), format!("a kernel with {missing}"))
}

fn machine(facts: &Facts) -> Check {
    let name = "processor";
    if facts.machine == std::env::consts::ARCH {
        Check::ok(name, facts.machine.clone())
    } else {
        let found = format!("{}, and this program is for {}", facts.machine, std::env::consts::ARCH);
        Check::no(name, found, "a build for this processor")
    }
}

fn btf(facts: &Facts) -> Check {
    if facts.has_btf {
        Check::ok("BTF", "/sys/kernel/btf/vmlinux (not needed)")
    } else {
        Check::ok("BTF", "none (not needed)")
    }
}

fn tracefs(facts: &Facts) -> Check {
    Check::ok("tracefs", if facts.has_tracefs { "mounted (not needed)" } else { "not mounted (not needed)" })
}
