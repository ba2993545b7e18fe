//! Tells whether a process survives a probe on the return of one of its functions.
//!
//! A probe on a return replaces the return address by that of a trampoline, so it changes how the process
//! runs; a probe on an entry does not. On x86-64 two things can end a process for that:
//!
//! - From Linux 6.11 on the trampoline makes a system call, uretprobe(2), in the process. A seccomp filter
//!   that does not know it refuses it, and then the kernel ends the process (SIGILL). "seccomp: passthrough
//!   uretprobe systemcall without filtering" mends it, in 6.14, 6.13.3 and 6.12.14.
//! - With a shadow stack the processor compares return addresses. Kernels before 6.11 do not keep it in step
//!   with the trampoline, so that the process dies of a wrong return (SIGSEGV). Later kernels were not tried
//!   in all cases, so returns are not probed on any of them.

use crate::proc_text::{read_text, status_field};

/// Returns why returns must not be probed in a process; `None` if they may be.
pub fn no_return_probes(pid: u32) -> Option<String> {
    let status = read_text(format!("/proc/{pid}/status")).unwrap_or_default();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    reason(&status, &release, std::env::consts::ARCH)
}

/// Tells whether a process that was not looked at can be one in which returns must not be probed: then probes
/// go into one process after the other.
pub fn can_end_processes() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let cpu = read_text("/proc/cpuinfo").unwrap_or_default();
    std::env::consts::ARCH == "x86_64"
        && (refuses_its_own_call(&release) || cpu.split_ascii_whitespace().any(|flag| flag == "user_shstk"))
}

fn reason(status: &str, release: &str, arch: &str) -> Option<String> {
    if arch != "x86_64" {
        return None;
    }
    let features = status_field(status, "x86_Thread_features").unwrap_or_default();
    if features.split_ascii_whitespace().any(|feature| feature == "shstk") {
        return Some("it has a shadow stack: a probe on a return would end it".to_owned());
    }
    let has_filter = status_field(status, "Seccomp").is_some_and(|mode| mode != "0");
    (has_filter && refuses_its_own_call(release)).then(|| {
        format!(
            "it has a seccomp filter, and Linux {release} lets filters refuse what a probe on a return needs, which would end it \
             (mended in 6.12.14, 6.13.3 and 6.14)"
        )
    })
}

/// Tells whether this kernel makes the system call, and lets filters refuse it.
fn refuses_its_own_call(release: &str) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else { return true };
    let patch = numbers.next().unwrap_or(0);
    match (major, minor) {
        (6, 11) => true,
        (6, 12) => patch < 14,
        (6, 13) => patch < 3,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(seccomp: &str, features: &str, release: &str) -> Option<String> {
        let status =
            format!("Name:\tx\nSeccomp:\t{seccomp}\nSeccomp_filters:\t1\nx86_Thread_features:\t{features}\n");
        reason(&status, release, "x86_64")
    }

    #[test]
    fn filters_matter_on_the_kernels_that_let_them() {
        for release in ["6.11.0-29-generic", "6.12.0", "6.12.13-amd64", "6.13.2", "strange"] {
            assert!(of("2", "", release).unwrap().contains("seccomp"), "{release}");
            assert_eq!(of("0", "", release), None, "{release}");
        }
        for release in
            ["5.15.0-1", "6.8.0-45-generic", "6.10.9", "6.12.14", "6.12.48+deb13", "6.13.3", "6.14.0", "7.0"]
        {
            assert_eq!(of("2", "", release), None, "{release}");
        }
        assert_eq!(reason("Seccomp:\t2\n", "6.11.0", "aarch64"), None, "only x86-64 has the call");
    }

    #[test]
    fn shadow_stacks_matter_everywhere() {
        assert!(of("0", "shstk wrss", "6.6.0").unwrap().contains("shadow stack"));
        assert!(of("0", "shstk", "6.18.0").is_some());
        assert_eq!(of("0", "wrss", "6.6.0"), None);
    }
}
