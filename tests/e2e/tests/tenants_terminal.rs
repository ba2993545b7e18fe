//! A tenant chooses names of files and processes; root looks at them on a terminal. Nothing that a terminal
//! obeys is printed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{os::unix::process::CommandExt as _, process::Output};

use ncclflow_e2e::harness::prelude::*;

const VERSION: &str = "2.27.5-cu12";

/// Clears the screen, sets the window's title, and turns the rest of the line around.
const EVIL: &str = "\u{1b}[2J\u{1b}]0;evil\u{7}\u{9b}31m\u{202e}txt";

/// Fails if a terminal would obey any of it. Written without ncclflow's own list: by Unicode's properties.
fn assert_harmless(what: &str, output: &Output) -> String {
    let mut all = String::new();
    for stream in [&output.stdout, &output.stderr] {
        let text = std::str::from_utf8(stream).unwrap_or_else(|_| panic!("{what}: it is no UTF-8"));
        for c in text.chars() {
            let code = u32::from(c);
            let is_control = (code < 0x20 && c != '\n' && c != '\t') || (0x7f..=0x9f).contains(&code);
            let is_bidi = [0x61c, 0x200e, 0x200f].contains(&code)
                || (0x202a..=0x202e).contains(&code)
                || (0x2066..=0x2069).contains(&code);
            assert!(!is_control && !is_bidi, "{what} prints U+{code:04X}: {text:?}");
        }
        all.push_str(text);
    }
    all
}

fn output(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

#[test]
fn names_of_tenants_do_not_reach_the_terminal_as_they_are() {
    let (Some(ncclflow), Some(library)) = (programs::ncclflow(), programs::nccl(VERSION)) else { return };
    let folder = tempfile::tempdir().unwrap();
    let evil = folder.path().join(EVIL);
    fs::create_dir(&evil).unwrap();
    let path = evil.join("libnccl.so.2").display().to_string();

    let missing = output(&ncclflow, &["symbols", &path]);
    assert!(!missing.status.success());
    assert!(assert_harmless("an error", &missing).contains("txt/libnccl.so.2"), "it still names the file");
    fs::write(&path, "no ELF file").unwrap();
    let said = assert_harmless("an error of a file", &output(&ncclflow, &["symbols", &path]));
    assert!(said.contains("txt/libnccl.so.2"), "{said}");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&library, &path).unwrap();
    let text = assert_harmless("symbols", &output(&ncclflow, &["symbols", &path]));
    assert!(text.contains("ncclAllReduce"), "{text}");
    assert_harmless("symbols --json", &output(&ncclflow, &["symbols", "--json", &path]));
    let missing = folder.path().join("missing").join(EVIL).display().to_string();
    for command in [
        &["check", &missing][..],
        &["summary", &missing],
        &["export", &missing, "-f", "jsonl", "-o", &missing],
    ] {
        let output = output(&ncclflow, command);
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        let said = assert_harmless(command[0], &output);
        assert!(said.contains("txt"), "{command:?}: it still names the folder: {said}");
    }

    if !root() {
        return;
    }
    let sleep = Command::new("sleep").arg0(EVIL).arg("60").stdin(Stdio::null()).spawn().unwrap();
    let sleep = Killed(sleep);
    let pid = sleep.0.id().to_string();
    let said = assert_harmless("record", &output(&ncclflow, &["record", "-p", &pid, "-d", "1"]));
    assert!(said.contains("has no NCCL library mapped"), "{said}");
}

/// A job whose library is in such a folder, as `ps`, `record`, `dump`, `top` and `symbols -p` show it.
#[test]
fn libraries_of_tenants_do_not_reach_the_terminal_as_they_are() {
    let Some((ncclflow, bed, library)) = programs::needed(VERSION) else { return };
    let folder = tempfile::tempdir().unwrap();
    let evil = folder.path().join(EVIL);
    fs::create_dir(&evil).unwrap();
    let copy = evil.join("libnccl.so.2");
    fs::copy(&library, &copy).unwrap();
    let bed = Bed::start(&bed, &copy, folder.path(), &["--ranks", "2"]).unwrap();
    let pid = bed.ready.pids[0].to_string();
    let out = folder.path().join("out").display().to_string();
    for command in [
        &["ps"][..],
        &["ps", "--json"],
        &["symbols", "-p", &pid],
        &["doctor"],
        &["record", "-p", &pid, "-d", "1", "--no-cache", "-o", &out],
        &["record", "-p", &pid, "-d", "1", "--no-cache", "--no-files", "--metrics", "0", "--json"],
        &["top", "-p", &pid, "--once"],
        &["dump", "-p", &pid, "--json"],
    ] {
        let output = output(&ncclflow, command);
        assert_ne!(output.status.code(), Some(2), "{command:?}: it is not what was meant");
        let said = assert_harmless(&command.join(" "), &output);
        // All but `top` name the library.
        assert!(said.contains("31m") || command[0] == "top", "{command:?}: {said}");
    }
}
