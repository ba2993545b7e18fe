//! What works with which capabilities: the least ones, and none. The truth is what the kernel
//! lets `record` and `dump` do.

use std::os::unix::fs::PermissionsExt as _;

use ncclflow_e2e::harness::{
    prelude::*,
    privileges::{has_setpriv, with_capabilities},
    program_files,
};

/// Enough to load programs and to look into processes; uprobes besides, before July 2025.
const LEAST: &str = "-all,+bpf,+perfmon,+sys_ptrace,+dac_read_search";
/// And since.
const WITH_UPROBES: &str = "-all,+bpf,+perfmon,+sys_ptrace,+dac_read_search,+sys_admin";
const NONE: &str = "-all";

fn verdict(report: &Value, name: &str) -> String {
    let check = list(&report["checks"]).iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("no {name}: {report:#}"));
    if check["verdict"] != "ok" {
        assert!(check["remedy"].is_string(), "{check}");
    }
    text(&check["verdict"]).to_owned()
}

#[test]
fn doctor_says_what_the_kernel_then_does() {
    let workload = "--ranks 2 --iters 100000 --interval-ms 50 --timeout 600";
    let Some(world) = World::start("2.27.5-cu12", workload).filter(|_| has_setpriv()) else { return };
    // Where nobody can read the program and write results.
    fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = world.path("ncclflow");
    program_files::copy(&world.ncclflow, &program).unwrap();
    world.bed.go().unwrap();
    let pids = world.bed.pid_list();

    for (at, capabilities) in [WITH_UPROBES, LEAST, NONE].into_iter().enumerate() {
        let with = |words: &str| {
            let words = words.replace("{}", &world.folder.path().display().to_string());
            run(with_capabilities(capabilities, &program).args(words.split(' ')))
        };
        let ran = with("doctor --json");
        let report = ran.json();
        let uprobe = verdict(&report, "uprobe");
        let can_trace = uprobe != "no";
        assert_eq!(ran.code(), Some(i32::from(report["verdict"] == "no")), "{report:#}");

        let record = with(&format!("record -p {pids} -o {{}}/out{at} -d 1 --no-cache"));
        let said = record.stderr;
        assert_eq!(record.status.success(), can_trace, "{capabilities}: {said}\n{report:#}");
        // Reading memory takes neither BPF nor CAP_SYS_ADMIN.
        let dump = with(&format!("dump -p {pids} --json"));
        let dumped: Value = serde_json::from_str(&dump.stdout).unwrap_or_default();
        let can_read = dumped["communicators"].as_array().is_some_and(|all| !all.is_empty());
        match capabilities {
            WITH_UPROBES => assert!(can_trace && can_read, "{report:#}"),
            LEAST => {
                assert!(can_read, "{}", dump.stderr);
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
    let Some(_ncclflow) = programs::ncclflow() else { return };
    let text = ncclflow("doctor").stdout;
    for name in
        ["kernel", "configuration", "seccomp", "lockdown", "RLIMIT_MEMLOCK", "ptrace_scope", "BTF", "uprobe"]
    {
        assert!(text.lines().any(|line| line.split_whitespace().nth(1) == Some(name)), "no {name}: {text}");
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(text.contains(release.trim()), "{text}");
}
