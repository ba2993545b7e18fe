//! Made-up hosts, each with one thing wrong, and this one.

use std::{io, time::Duration};

use super::{
    host::Facts,
    report::{Report, Verdict},
    *,
};
use flow::session::LinkKind;
use inspect::{process::LibraryError, resolver::ResolverError};
use trace::kernel::loader::{Program, Trial, TrialError};

const ALL: &str = "000001ffffffffff";
const CONFIG: &str = "CONFIG_BPF_SYSCALL=y\nCONFIG_BPF_EVENTS=y\nCONFIG_PERF_EVENTS=y\nCONFIG_UPROBES=y\n\
                      CONFIG_UPROBE_EVENTS=y\nCONFIG_PROC_FS=y\n";

fn usual() -> Facts {
    Facts {
        release: "6.8.0-45-generic".to_owned(),
        machine: std::env::consts::ARCH.to_owned(),
        config: Some((CONFIG.to_owned(), "/boot/config".to_owned())),
        has_btf: true,
        status: format!("Name:\tncclflow\nCapEff:\t{ALL}\nNoNewPrivs:\t0\nSeccomp:\t0\n"),
        uid: 0,
        uid_map: "         0          0 4294967295\n".to_owned(),
        in_first_pid_namespace: Some(true),
        lockdown: Some("[none] integrity confidentiality\n".to_owned()),
        perf_event_paranoid: Some("4".to_owned()),
        unprivileged_bpf_disabled: Some("2".to_owned()),
        ptrace_scope: Some("1".to_owned()),
        has_tracefs: true,
        memlock: Some(8 << 20),
        nofile: Some(1024),
        nofile_hard: Some(524_288),
    }
}

fn wrong(facts: &Facts) -> Vec<(String, Verdict)> {
    let checks = host::checks(facts).into_iter().filter(|check| check.verdict != Verdict::Ok);
    checks
        .inspect(|check| assert!(check.remedy.is_some(), "{check:?} has no remedy"))
        .map(|check| (check.name, check.verdict))
        .collect()
}

fn with_capabilities(numbers: &[u32]) -> Facts {
    let set: u64 = numbers.iter().map(|number| 1 << number).sum();
    Facts { status: format!("CapEff:\t{set:016x}\nSeccomp:\t0\n"), uid: 1000, ..usual() }
}

#[test]
fn a_usual_host_is_ok_and_each_thing_that_is_wrong_is_said() {
    assert_eq!(wrong(&usual()), []);
    let one = |facts: Facts, name: &str, verdict| assert_eq!(wrong(&facts), [(name.to_owned(), verdict)]);
    one(Facts { release: "5.10.0".to_owned(), memlock: None, ..usual() }, "kernel", Verdict::No);
    one(Facts { release: "5.14.0-503.11.1.el9_5.x86_64".to_owned(), ..usual() }, "kernel", Verdict::Degraded);
    one(Facts { release: "5.15.0-1 x".to_owned(), ..usual() }, "kernel", Verdict::Degraded);
    one(Facts { release: "strange".to_owned(), memlock: None, ..usual() }, "kernel", Verdict::Degraded);
    one(Facts { config: None, ..usual() }, "configuration", Verdict::Degraded);
    let config = CONFIG.replace("CONFIG_UPROBES=y", "# CONFIG_UPROBES is not set");
    one(Facts { config: Some((config, String::new())), ..usual() }, "configuration", Verdict::No);
    one(Facts { uid_map: "0 1000 1\n".to_owned(), ..usual() }, "user namespace", Verdict::No);
    one(Facts { in_first_pid_namespace: Some(false), ..usual() }, "PID namespace", Verdict::Degraded);
    let lockdown = Some("none integrity [confidentiality]".to_owned());
    one(Facts { lockdown, ..usual() }, "lockdown", Verdict::Degraded);
    let status = usual().status.replace("Seccomp:\t0", "Seccomp:\t2");
    one(Facts { status, ..usual() }, "seccomp", Verdict::Degraded);
    one(Facts { ptrace_scope: Some("3".to_owned()), ..usual() }, "ptrace_scope", Verdict::Degraded);
    one(Facts { nofile_hard: Some(1024), ..usual() }, "RLIMIT_NOFILE", Verdict::Degraded);
    one(Facts { machine: "riscv64".to_owned(), ..usual() }, "processor", Verdict::No);
    one(Facts { perf_event_paranoid: None, ..usual() }, "perf_event_paranoid", Verdict::No);
}

#[test]
fn capabilities_are_told_one_by_one() {
    // CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH
    assert_eq!(
        wrong(&with_capabilities(&[39, 38, 19, 2])),
        [("replaced libraries".to_owned(), Verdict::Degraded)]
    );
    assert_eq!(wrong(&with_capabilities(&[39, 38, 19, 2, 40])), [], "CAP_CHECKPOINT_RESTORE besides");
    assert_eq!(wrong(&with_capabilities(&[21, 19, 2])), [], "CAP_SYS_ADMIN stands for three");
    let none: Vec<String> = wrong(&with_capabilities(&[])).into_iter().map(|(name, _)| name).collect();
    let names = [
        "CAP_BPF, CAP_PERFMON",
        "CAP_SYS_PTRACE",
        "CAP_DAC_READ_SEARCH",
        "replaced libraries",
        "perf_event_paranoid",
        "ptrace_scope",
    ];
    assert_eq!(none, names);
}

#[test]
fn a_program_that_the_kernel_refuses_takes_what_it_does_and_no_more() {
    let trial = Trial {
        links: LinkKind::Perf,
        load: Duration::from_millis(5),
        refused: Vec::new(),
        attach: Duration::from_millis(1),
        hit: Duration::from_micros(1),
        counted: 3,
        made: 3,
        detach: Duration::from_millis(1),
    };
    let verdict = |trial| Report::new(trial::checks(&Ok(trial)), Vec::new()).verdict;
    assert_eq!(verdict(trial.clone()), Verdict::Ok);
    let least = |links| trial::checks(&Ok(Trial { links, ..trial.clone() })).pop().unwrap().found;
    assert!(least(LinkKind::Perf).contains("CAP_SYS_ADMIN,"));
    assert!(least(LinkKind::Multi).contains("CAP_CHECKPOINT_RESTORE"));
    let without = |program| Trial { refused: vec![(program, "it said no".to_owned())], ..trial.clone() };
    let of_walk = trial::checks(&Ok(without(Program::Walk)));
    assert!(
        of_walk[1].found.contains("the plans of kernel launches") && of_walk[1].found.contains("it said no"),
        "{of_walk:?}"
    );
    assert!(of_walk[1].remedy.as_deref().unwrap().contains("--probes per-call"), "{of_walk:?}");
    assert_eq!(verdict(without(Program::Walk)), Verdict::Degraded);
    assert_eq!(verdict(without(Program::Return)), Verdict::Degraded);
    let none = trial::checks(&Err(TrialError::Load(anyhow::anyhow!("it said no"))));
    assert_eq!(none.iter().map(|check| check.verdict).collect::<Vec<_>>(), [Verdict::No]);
}

#[test]
fn a_host_whose_libraries_the_child_may_not_open_cannot_trace() {
    let refused = || io::Error::from_raw_os_error(1);
    let of_file = |read| libraries::judge_own(read).named("mapped files");
    let report = |check, library| Report::new(vec![check], Vec::from_iter(library)).verdict;
    assert_eq!(report(of_file(Ok(())), None), Verdict::Ok);
    assert_eq!(report(of_file(Err(ResolverError::Refused(refused()))), None), Verdict::No);
    assert_eq!(report(of_file(Err(ResolverError::Died("signal 31".to_owned()))), None), Verdict::No);
    // A rule of ncclflow's own, as for a program on FUSE, tells nothing of libraries.
    let not_asked = || io::Error::other("it is on FUSE");
    assert_eq!(report(of_file(Err(ResolverError::Refused(not_asked()))), None), Verdict::Degraded);

    let library = |error, opens_all| {
        let error = LibraryError::Open { pid: 7, path: "/lib/libnccl.so.2".into(), error };
        let check = libraries::unopened(&error, opens_all).named("process 7");
        assert!(check.remedy.is_some() && check.found.contains("libnccl.so.2"), "{check:?}");
        (check.verdict, report(of_file(Ok(())), Some(check)))
    };
    assert_eq!(library(refused(), true), (Verdict::No, Verdict::No));
    assert_eq!(library(refused(), false), (Verdict::Degraded, Verdict::Ok), "capabilities are missing");
    assert_eq!(library(not_asked(), true), (Verdict::Degraded, Verdict::Ok), "--allow-fuse");
    assert!(host::opens_all(&usual()) && !host::opens_all(&with_capabilities(&[39, 38, 19, 2])));
}

#[test]
fn what_ended_meanwhile_is_not_said_and_a_busy_host_asks_nobody_for_root() {
    let gone = || io::Error::from_raw_os_error(libc::ESRCH);
    let none = LibraryError::NoNccl { pid: 7, name: "train".to_owned() };
    assert_eq!(libraries::unexamined(&none, false, true), None, "it runs another program now");
    assert_eq!(libraries::unexamined(&LibraryError::Maps(7, gone()), true, true), None);
    for why in [libc::EAGAIN, libc::ENOMEM] {
        let error = LibraryError::Maps(7, io::Error::from_raw_os_error(why));
        let check = libraries::unexamined(&error, false, true).unwrap();
        assert_eq!(check.verdict, Verdict::Degraded);
        let remedy = check.remedy.unwrap();
        assert!(!remedy.contains("root") && remedy.contains("again"), "{remedy}");
    }
    let denied = LibraryError::Maps(7, io::Error::from_raw_os_error(libc::EACCES));
    let check = libraries::unexamined(&denied, false, false).unwrap();
    assert!(check.remedy.unwrap().contains("root"), "a user is told");
}

#[test]
fn verdicts_have_colours_and_the_rest_has_none() {
    let checks = vec![report::ok("fine").named("a"), report::degraded("less", "more").named("b\u{1b}[31m")];
    let mut text = Vec::new();
    let paint = |verdict: Verdict, words: &str| format!("<{}>{words}</>", verdict.name());
    Report::new(checks, Vec::new()).print(&mut text, None, paint).unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("<ok>ok      </>  a ") && lines[0].ends_with("  fine"), "{text}");
    assert!(lines[1].starts_with("<degraded>degraded</>  b\u{fffd}[31m  less"), "{text}");
    assert!(lines[2].trim_start().starts_with("-> more"), "{text}");
    assert!(lines[4].starts_with("<degraded>this host can trace, but"), "{text}");
}

#[test]
fn a_process_that_cannot_be_traced_is_a_no_on_a_host_that_can() {
    let host = Report::new(vec![report::ok("fine")], Vec::new());
    assert_eq!(host.worst(), Verdict::Ok);
    // Above the kernel's largest PID.
    let report = host.with_processes(process::checks(4_194_305));
    assert_eq!((report.verdict, report.worst()), (Verdict::Ok, Verdict::No));
    let mut text = Vec::new();
    report.print(&mut text, None, |_, words| words.to_owned()).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("-> give the PID of a running process: ncclflow ps"), "{text}");
    assert!(text.ends_with("this host can trace, but not what -p names: see above\n"), "{text}");
}

#[test]
fn long_lines_go_on_below_where_they_begin() {
    let checks = vec![report::degraded("one two three four five six seven", "eight nine ten").named("a")];
    let mut text = Vec::new();
    Report::new(checks, Vec::new()).print(&mut text, Some(34), |_, words| words.to_owned()).unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().take(3).collect();
    let indent = " ".repeat(13);
    let expected = ["degraded  a  one two three four".to_owned(), format!("{indent}  five six seven")];
    assert_eq!(lines, [&expected[0], &expected[1], &format!("{indent}-> eight nine ten")], "{text}");
}

#[test]
fn the_file_of_this_program_is_read_by_anybody() {
    let check = libraries::own_program().named("mapped files");
    assert_eq!(check.verdict, Verdict::Ok, "{check:?}");
}

#[test]
fn this_host_can_be_looked_at_by_anybody() {
    let facts = Facts::read();
    assert!(!facts.release.is_empty() && !facts.status.is_empty());
    let report = Report::new(host::checks(&facts), Vec::new());
    let mut text = Vec::new();
    report.print(&mut text, None, |_, words| words.to_owned()).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(&facts.release), "{text}");
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("ok") || line.starts_with("degraded") || line.starts_with("no"))
            .count(),
        report.checks.len()
    );
}
