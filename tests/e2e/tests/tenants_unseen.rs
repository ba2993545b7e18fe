//! A tracer that may not look at processes says so, everywhere: it would take a node full of jobs for an empty one.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(target_arch = "x86_64")]

use std::{io::Read as _, io::Write as _, net::TcpStream};

use ncclflow_e2e::harness::{
    callers::{self, Caller, Reduce},
    prelude::*,
    privileges::has_setpriv,
    program_files, scrape,
};

const TENANT: u32 = 1_234_005;

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Without CAP_SYS_PTRACE, beside a process of a user that calls NCCL.
#[test]
fn without_the_right_to_look_the_first_words_the_report_the_metrics_and_the_exit_say_so() {
    let Some(ncclflow) = programs::tracer().filter(|_| has_setpriv()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = callers::library(&folder.path().join("libnccl.so.2"), Reduce::Returns(1)).unwrap()
    else {
        return;
    };
    let caller = callers::program(folder.path()).unwrap().unwrap();
    // Others than root must be able to read it.
    Command::new("chmod").args(["-R", "a+rX"]).arg(folder.path()).status().unwrap();
    let _tenant = Caller::start(&caller, &library, TENANT, 1, 0).unwrap();
    let blind = folder.path().join("blind");
    let text = format!("exec setpriv --bounding-set=-sys_ptrace,-sys_admin '{}' \"$@\"", ncclflow.display());
    program_files::script(&blind, &text).unwrap();

    let out = folder.path().join("out");
    let options = ["--level", "api", "--metrics", "127.0.0.1:0", "--strict"];
    let mut recorder = Recorder::start_all(&blind, &out, &options).unwrap();
    recorder.hear("cannot inspect").unwrap();
    let address = recorder.metrics_address().unwrap().to_owned();
    wait_until("it is not ready", Duration::from_secs(30), || {
        let answer = get(&address, "/readyz");
        answer.starts_with("HTTP/1.1 503") && answer.contains("cannot inspect")
    });
    assert!(get(&address, "/healthz").starts_with("HTTP/1.1 200"), "it is alive");
    let denied = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("ncclflow_processes_denied ")).unwrap();
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let without = denied(&scrape::fetch(&address).unwrap());
    assert!(without >= 1.0);
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert_eq!(status.code(), Some(3), "--strict: {said}");
    assert!(said.contains("cannot inspect"), "{said}");
    assert!(number(&session(&out)["processes_denied"]) >= 1);

    // With the right it is ready. Single processes can be denied to root, too: those of a user namespace above ours.
    let seeing = folder.path().join("seeing");
    let recorder = Recorder::start_all(&ncclflow, &seeing, &options[..4]).unwrap();
    let address = recorder.metrics_address().unwrap().to_owned();
    wait_until("it is ready", Duration::from_secs(30), || {
        get(&address, "/readyz").starts_with("HTTP/1.1 200")
    });
    assert!(denied(&scrape::fetch(&address).unwrap()) < without);
    recorder.interrupt().unwrap();
}
