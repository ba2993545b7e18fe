//! What works with which capabilities: the least ones, and none. The truth is what the kernel
//! lets `record` and `dump` do.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output, Stdio},
};

use ncclflow_e2e::harness::{bed::Bed, program_files, programs};
use serde_json::Value;
use test_support::{need, root};

/// Enough to load programs and to look into processes; uprobes besides, before July 2025.
const LEAST: &str = "-all,+bpf,+perfmon,+sys_ptrace,+dac_read_search";
/// And since.
const WITH_UPROBES: &str = "-all,+bpf,+perfmon,+sys_ptrace,+dac_read_search,+sys_admin";
const NONE: &str = "-all";

/// Runs it as a user who is nobody, with these capabilities and no way to more.
fn with(capabilities: &str, program: &Path, arguments: &[&str]) -> Output {
    Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"])
        .args([
            format!("--inh-caps={capabilities}"),
            format!("--ambient-caps={capabilities}"),
            format!("--bounding-set={capabilities}"),
        ])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn verdict(report: &Value, name: &str) -> String {
    let checks = report["checks"].as_array().unwrap();
    let check =
        checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}: {report:#}"));
    if check["verdict"] != "ok" {
        assert!(check["remedy"].is_string(), "{check}");
    }
    check["verdict"].as_str().unwrap().to_owned()
}

#[test]
fn doctor_says_what_the_kernel_then_does() {
    let (Some(ncclflow), Some(bed), Some(library)) =
        (programs::ncclflow(), programs::bed(), programs::nccl("2.27.5-cu12"))
    else {
        return;
    };
    let has_setpriv =
        Command::new("setpriv").arg("--version").output().is_ok_and(|output| output.status.success());
    if !root() || !need("setpriv", has_setpriv, "install util-linux") {
        return;
    }
    // Where nobody can read the program and write results.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = folder.path().join("ncclflow");
    program_files::copy(&ncclflow, &program).unwrap();
    let bed = Bed::start(
        &bed,
        &library,
        folder.path(),
        &["--ranks", "2", "--iters", "100000", "--interval-ms", "50", "--timeout", "600"],
    )
    .unwrap();
    bed.go().unwrap();
    let pids = bed.pid_list();

    for (at, capabilities) in [WITH_UPROBES, LEAST, NONE].into_iter().enumerate() {
        let output = with(capabilities, &program, &["doctor", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let uprobe = verdict(&report, "uprobe");
        let can_trace = uprobe != "no";
        assert_eq!(output.status.code(), Some(i32::from(report["verdict"] == "no")), "{report:#}");

        let out = folder.path().join(format!("out{at}")).display().to_string();
        let record =
            with(capabilities, &program, &["record", "-p", &pids, "-o", &out, "-d", "1", "--no-cache"]);
        let said = String::from_utf8_lossy(&record.stderr).into_owned();
        assert_eq!(record.status.success(), can_trace, "{capabilities}: {said}\n{report:#}");
        // Reading memory takes neither BPF nor CAP_SYS_ADMIN.
        let dump = with(capabilities, &program, &["dump", "-p", &pids, "--json"]);
        let dumped: Value = serde_json::from_slice(&dump.stdout).unwrap_or_default();
        let can_read = dumped["communicators"].as_array().is_some_and(|all| !all.is_empty());
        match capabilities {
            WITH_UPROBES => assert!(can_trace && can_read, "{report:#}"),
            LEAST => {
                assert!(can_read, "{}", String::from_utf8_lossy(&dump.stderr));
                assert_eq!(verdict(&report, "CAP_BPF, CAP_PERFMON"), "ok");
                assert_eq!(verdict(&report, "CAP_SYS_PTRACE"), "ok");
                assert_eq!(verdict(&report, "replaced libraries"), "degraded");
                assert!(can_trace || said.contains("CAP_SYS_ADMIN"), "the remedy is said: {said}");
            }
            _ => {
                assert!(!can_trace && !can_read);
                assert_eq!(verdict(&report, "CAP_BPF, CAP_PERFMON"), "no");
                assert_eq!(verdict(&report, "CAP_SYS_PTRACE"), "degraded");
            }
        }
        // The library that the job has mapped is among those found, where it may be looked at.
        let libraries = report["libraries"].to_string();
        assert_eq!(
            libraries.contains("2.27.5, own debugging information"),
            capabilities != NONE,
            "{libraries}"
        );
    }
}

/// Without root there is a report too, and it is text for people.
#[test]
fn the_report_has_a_line_for_each_thing() {
    let Some(ncclflow) = programs::ncclflow() else { return };
    let output = Command::new(&ncclflow).arg("doctor").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for name in
        ["kernel", "configuration", "seccomp", "lockdown", "RLIMIT_MEMLOCK", "ptrace_scope", "BTF", "uprobe"]
    {
        assert!(text.lines().any(|line| line.split_whitespace().nth(1) == Some(name)), "no {name}: {text}");
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(text.contains(release.trim()), "{text}");
}
