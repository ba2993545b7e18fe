//! Containers of one image: each sees its library through an overlay of its own, and all of them are one
//! inode to the kernel. `record --all` must see each call once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use ncclflow_e2e::{
    harness::{bed::Bed, exported, programs, recorder::Recorder},
    truth::call_log,
};
use rustix::process::Signal;
use serde_json::Value;
use test_support::{need, root, wait_until};

/// An overlay over `lower`; it is unmounted when this is dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(lower: &Path, folder: &Path) -> Option<Self> {
        let [upper, work, merged] = ["upper", "work", "merged"].map(|name| {
            let path = folder.join(name);
            fs::create_dir_all(&path).unwrap();
            path
        });
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let mounted =
            Command::new("mount").args(["-t", "overlay", "none", "-o", &options]).arg(&merged).status();
        let mounted = mounted.is_ok_and(|status| status.success());
        need("mount", mounted, "run where overlays may be mounted").then_some(Self(merged))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn containers_of_one_image_are_traced_once_each() {
    let (Some(ncclflow), Some(program), Some(library), true) =
        (programs::ncclflow(), programs::bed(), programs::nccl("2.27.5-cu12"), root())
    else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    fs::create_dir(&image).unwrap();
    let below = image.join("libnccl.so.2");
    if fs::hard_link(&library, &below).is_err() {
        fs::copy(&library, &below).unwrap();
    }
    let place = |name: &str| folder.path().join(name);
    let overlays: Vec<Overlay> =
        ["one", "two"].iter().filter_map(|name| Overlay::mount(&image, &place(name))).collect();
    let [one, two] = &*overlays else { return };
    // And a process of the host itself, that has the file below.
    let libraries = [one.0.join("libnccl.so.2"), two.0.join("libnccl.so.2"), below];
    let hold = place("hold").display().to_string();
    let start = |name: &str, library: &Path| {
        fs::create_dir_all(place(name)).unwrap();
        let calls = place(name).join("calls").display().to_string();
        let arguments = ["--mode", "processes", "--ranks", "2", "--iters", "12", "--bytes", "4096", "--sync"];
        let more = ["--channels", "1", "--call-log", &calls, "--hold-file", &hold];
        Bed::start(&program, library, &place(name), &[&arguments[..], &more].concat()).unwrap()
    };
    let names = ["job-one", "job-two", "job-below"];
    let mut beds: Vec<Bed> =
        names.iter().zip(&libraries).map(|(name, library)| start(name, library)).collect();
    let output = place("out");
    let recorder = Recorder::start_all(&ncclflow, &output, &["--level", "api"]).unwrap();
    for bed in &beds {
        bed.go().unwrap();
    }
    let lines = |bed: &Bed| -> BTreeMap<u64, u64> {
        let mut lines = BTreeMap::new();
        let exported = exported::until_now(&ncclflow, &output);
        for rank in 0..bed.ready.nranks {
            let path = exported.path().join(format!("0x{}/api_rank{rank}.jsonl", bed.ready.comm_hash));
            for line in fs::read_to_string(path).unwrap_or_default().lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                *lines.entry(line["pid"].as_u64().unwrap()).or_insert(0) += 1;
            }
        }
        lines
    };
    let is_done = |bed: &Bed| lines(bed).values().sum::<u64>() >= 24;
    wait_until("every call is in the files", Duration::from_mins(1), || beds.iter().all(is_done));
    File::create(&hold).unwrap();
    for bed in &mut beds {
        assert!(bed.finish().unwrap().1.ok);
    }
    recorder.signal(Signal::INT).unwrap();
    let (status, said) = recorder.finish().unwrap();
    assert!(status.success(), "{said}");
    for (name, bed) in names.iter().zip(&beds) {
        let calls = call_log::read(&place(name).join("calls")).unwrap();
        let made = calls.iter().filter(|call| call.function == "ncclAllReduce");
        let mut by_process: BTreeMap<u64, u64> = BTreeMap::new();
        made.for_each(|call| *by_process.entry(call.pid.into()).or_insert(0) += 1);
        assert_eq!(lines(bed), by_process, "{name}: {said}");
    }
}
