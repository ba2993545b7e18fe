//! Libraries that come and go while the whole node is recorded, as environments and containers do: one build
//! of NCCL, in one file after the other.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Mutex, PoisonError};

use nccl_library::elf::Image;
use ncclflow_e2e::harness::prelude::*;

const ROUNDS: u64 = 3;
const ITERATIONS: u64 = 5;

/// Each recording sees the whole node: the libraries of one test must not be there in the other.
static ALONE: Mutex<()> = Mutex::new(());

/// What each job does, until it is told to end.
const WORKLOAD: &str = "--iters 5 --bytes 4096 --channels 1 --sync --hold-file {}/hold";

/// A job on a library of its own, once it is traced.
fn traced_job(program: &Path, copy: &Path, mode: &str, output: &Path) -> Bed {
    let workload = format!("--mode {mode} {WORKLOAD}");
    let bed = Bed::of_words(program, copy, copy.parent().unwrap(), &workload).unwrap();
    wait_until("the job is traced", Duration::from_mins(1), || are_traced(&session(output), &bed.ready.pids));
    bed
}

/// Files that a process holds open below a folder.
fn held_below(pid: u32, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.map(|path| path.display().to_string()).filter(|path| path.starts_with(folder)).collect()
}

#[test]
fn a_build_of_nccl_is_given_its_probes_once_whatever_file_it_comes_in() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, program, library)) = programs::needed("2.27.5-cu12") else { return };
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().display().to_string();
    let output = folder.path().join("out");
    let recorder = Recorder::of_node(&output, "").unwrap();
    let mut jobs = Vec::new();
    for round in 0..ROUNDS {
        let place = folder.path().join(format!("environment-{round}"));
        fs::create_dir(&place).unwrap();
        let copy = place.join("libnccl.so.2");
        fs::copy(&library, &copy).unwrap();
        let mut bed = traced_job(&program, &copy, "processes", &output);
        bed.go().unwrap();
        File::create(place.join("hold")).unwrap();
        bed.end();
        jobs.push((bed.ready.comm_hash.clone(), bed.ready.pids.clone()));
        fs::remove_dir_all(&place).unwrap();
        // A file that is gone is let go of when nobody has it mapped.
        let below = format!("{mark}/environment");
        wait_until("no file of the job is held open", Duration::from_secs(30), || {
            held_below(recorder.pid(), &below).is_empty()
        });
    }
    let said = recorder.interrupt().unwrap();
    let session = session(&output);
    assert_no_loss(&session);
    for (hash, pids) in &jobs {
        for (rank, pid) in pids.iter().enumerate() {
            let is_it = |comm: &&Value| comm["commHash"] == format!("0x{hash}") && comm["rank"] == rank;
            let found: Vec<&Value> = list(&session["communicators"]).iter().filter(is_it).collect();
            let [communicator] = &*found else { panic!("{hash} {rank}: {said}") };
            assert_eq!(
                (&communicator["pid"], &communicator["proxyFlowLines"]),
                (&(*pid).into(), &ITERATIONS.into()),
                "{said}"
            );
        }
    }
    let is_ours = |library: &&Value| text(&library["path"]).starts_with(&mark);
    let libraries = list(&session["libraries"]);
    assert_eq!(libraries.iter().filter(is_ours).count(), 1, "{libraries:#?}");
    let at = libraries.iter().position(|library| is_ours(&library)).unwrap();
    let probes = list(&session["probes"]).iter();
    let mut places = BTreeSet::new();
    for probe in probes.filter(|probe| probe["library"] == at && probe["part"].is_null()) {
        assert!(places.insert((probe["symbol"].to_string(), probe["at"].to_string())), "twice: {probe:#}");
    }
    assert!(!places.is_empty());
}

/// A copy whose build-id is that of another library.
fn with_build_id_of(library: &Path, other: &Path, copy: &Path) {
    let id = |path: &Path| {
        let image = Image::open(path).unwrap();
        let id = image.build_id().unwrap().to_string();
        let digit = |at: usize| u8::from_str_radix(&id[at..at + 2], 16).unwrap();
        (0..id.len()).step_by(2).map(digit).collect::<Vec<u8>>()
    };
    let (own, wanted) = (id(library), id(other));
    assert!(own.len() == wanted.len() && own != wanted);
    let mut bytes = fs::read(library).unwrap();
    let at = memchr::memmem::find(&bytes, &own).unwrap();
    bytes[at..at + own.len()].copy_from_slice(&wanted);
    fs::write(copy, bytes).unwrap();
}

/// Anybody can write a build-id into a file. Probes of one library are not put into another for it.
#[test]
fn two_libraries_that_claim_one_build_are_each_traced_as_what_they_are() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let [Some((_, program, first)), Some((_, _, second))] =
        ["2.27.5-cu12", "2.21.5-cu12"].map(programs::needed)
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out");
    let mark = folder.path().display().to_string();
    let recorder = Recorder::of_node(&output, "").unwrap();
    let mut jobs = Vec::new();
    for (name, library) in [("true", &first), ("forged", &second)] {
        let place = folder.path().join(name);
        fs::create_dir(&place).unwrap();
        let copy = place.join("libnccl.so.2");
        if library == &first {
            fs::copy(library, &copy).unwrap();
        } else {
            with_build_id_of(library, &first, &copy);
        }
        jobs.push((traced_job(&program, &copy, "threads", &output), place.join("hold")));
    }
    let mut hashes = Vec::new();
    // Both at the same time.
    for (bed, hold) in &jobs {
        bed.go().unwrap();
        File::create(hold).unwrap();
    }
    for (mut bed, _) in jobs {
        bed.end();
        hashes.push(bed.ready.comm_hash.clone());
    }
    thread::sleep(Duration::from_secs(1));
    let said = recorder.interrupt().unwrap();
    let session = session(&output);
    let libraries = list(&session["libraries"]).iter();
    let ours = libraries.filter(|library| text(&library["path"]).starts_with(&mark));
    let ours: Vec<(String, String)> =
        ours.map(|library| (library["build_id"].to_string(), library["nccl_version"].to_string())).collect();
    let [(first_id, first_version), (second_id, second_version)] = &*ours else { panic!("{ours:?} {said}") };
    assert!(first_id == second_id && first_version != second_version, "{ours:?}");
    for hash in hashes {
        let communicators = list(&session["communicators"]).iter();
        let lines = communicators.filter(|comm| comm["commHash"] == format!("0x{hash}"));
        let lines: Vec<&Value> = lines.map(|comm| &comm["proxyFlowLines"]).collect();
        assert_eq!(lines, [ITERATIONS; 2], "{said}");
    }
    assert_eq!(session["loss"]["records_undecodable"], 0);
}
