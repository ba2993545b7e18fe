//! Containers of one image: each sees its library through an overlay of its own, and all of them are one
//! inode to the kernel. `record --all` must see each call once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::{harness::prelude::*, truth::call_log};

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
    let Some((_, program, library)) = programs::needed("2.27.5-cu12") else { return };
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
    let start = |name: &str, library: &Path| {
        let fixed = "--mode processes --ranks 2 --iters 12 --bytes 4096 --sync --channels 1";
        let workload = format!("{fixed} {CALL_LOG} --hold-file {{}}/../hold");
        Bed::of_words(&program, library, &place(name), &workload).unwrap()
    };
    let names = ["job-one", "job-two", "job-below"];
    let mut beds: Vec<Bed> =
        names.iter().zip(&libraries).map(|(name, library)| start(name, library)).collect();
    let output = place("out");
    let recorder = Recorder::of_node(&output, "--level api").unwrap();
    for bed in &beds {
        bed.go().unwrap();
    }
    let recorded = |bed: &Bed| -> BTreeMap<u64, u64> {
        let mut recorded = BTreeMap::new();
        let exported = exported::until_now(&output);
        for rank in 0..bed.ready.nranks {
            let path = exported.path().join(format!("0x{}/api_rank{rank}.jsonl", bed.ready.comm_hash));
            for line in lines(&fs::read_to_string(path).unwrap_or_default()) {
                *recorded.entry(number(&line["pid"])).or_insert(0) += 1;
            }
        }
        recorded
    };
    let is_done = |bed: &Bed| recorded(bed).values().sum::<u64>() >= 24;
    wait_until("every call is in the files", Duration::from_mins(1), || beds.iter().all(is_done));
    File::create(place("hold")).unwrap();
    beds.iter_mut().for_each(Bed::end);
    let said = recorder.interrupt().unwrap();
    for (name, bed) in names.iter().zip(&beds) {
        let calls = call_log::read(&place(name).join("calls")).unwrap();
        let made = calls.iter().filter(|call| call.function == "ncclAllReduce");
        let mut by_process: BTreeMap<u64, u64> = BTreeMap::new();
        made.for_each(|call| *by_process.entry(call.pid.into()).or_insert(0) += 1);
        assert_eq!(recorded(bed), by_process, "{name}: {said}");
    }
}
