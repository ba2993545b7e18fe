//! What `ncclflow dump` can be pointed at: libraries of every sort, processes of every sort, and those that
//! change while they are read.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ncclflow_e2e::harness::{
    dumper::{Dump, DumpedCommunicator},
    job::{Shape, VERSIONS, check_culprit, libraries},
    prelude::*,
    processes::{children_of, resident_bytes},
};

const SMALL: Shape = Shape { ranks: 2, processes: false, tree: false };
/// A thread that runs has been sampled within this, in one of some dumps.
const SAMPLED: Duration = Duration::from_secs(120);
const SMALL_PROCESSES: Shape = Shape { ranks: 2, processes: true, tree: false };

/// A Python that says `ok` when it is ready; `None` if there is none.
fn python(script: &str, arguments: &[&Path]) -> Option<Killed> {
    let process = Killed::start(Command::new("python3").args(["-c", script]).args(arguments));
    if !need("python3", process.is_ok(), "install python3") {
        return None;
    }
    let mut process = process.unwrap();
    assert_eq!(process.line().unwrap(), "ok");
    Some(process)
}

/// What of the report is of the first process.
fn process_of(dump: &Dump) -> Value {
    let json: Value = serde_json::from_str(&dump.text).unwrap();
    json["processes"][0].clone()
}

fn library_of(dump: &Dump) -> Value {
    process_of(dump)["libraries"][0].clone()
}

/// Debugging information, symbol table, neither: layouts come from the file or are shipped, and
/// the verdict is the same.
#[test]
fn stripped_libraries_are_read_by_shipped_layouts() {
    // A dump asks for no functions, and so needs none.
    let kinds = [("--strip-debug", "symtab_with_shipped_layout"), ("--strip-all", "exports_only")];
    for (index, version) in VERSIONS.into_iter().enumerate() {
        let (option, rung) = kinds[index % 2];
        let has_objcopy = Command::new("objcopy").arg("--version").output().is_ok();
        if !need("binutils", has_objcopy, "install binutils") {
            return;
        }
        let objcopy = |original: &Path, folder: &Path| {
            let copy = folder.join("libnccl.so.2");
            run(Command::new("objcopy").arg(option).arg(original).arg(&copy)).ok();
            Ok(copy)
        };
        let workload = "--absent 1@3 --iters 6";
        let Some(job) = World::going_on_copy(version, objcopy, SMALL, workload).unwrap() else { return };
        let dump = job.check_stuck(1, "rank 1 has not joined").unwrap();
        let library = library_of(&dump);
        assert_eq!(
            (&library["layoutsFrom"], library["unusable"].is_null()),
            (&"shipped_for_build_id".into(), true),
            "{version}"
        );
        assert_eq!(library["symbols"], rung, "{version}: {library}");
        if option == "--strip-all" {
            let original = programs::nccl(version).unwrap().display().to_string();
            let dump = job.dump(&["--debug-file", &original]).unwrap();
            check_culprit(&dump, 1, "rank 1 has not joined");
            assert_eq!(library_of(&dump)["symbols"], "debug_file", "{version}");
        }
    }
}

#[test]
fn all_finds_libraries_under_other_names_that_were_deleted_and_other_failures_are_a_line() {
    let renamed = |original: &Path, folder: &Path| {
        let copy = folder.join("vendor-collectives.so");
        fs::copy(original, &copy)?;
        Ok(copy)
    };
    let started = World::going_on_copy("2.27.5-cu12", renamed, SMALL, "--absent 1@3 --iters 6");
    let Some(job) = started.unwrap() else { return };
    fs::remove_file(&job.library).unwrap();
    job.check_stuck(1, "rank 1 has not joined").unwrap();
    let pid = job.bed.ready.pids[0];
    // Beside it, a process that maps a file which only looks like NCCL.
    let fake = job.path("libnccl.so.2");
    fs::write(&fake, [0x7f; 8192]).unwrap();
    let script = "import mmap,sys,time\n\
        f=open(sys.argv[1]);m=mmap.mmap(f.fileno(),4096,mmap.MAP_PRIVATE,mmap.PROT_READ|mmap.PROT_EXEC)\n\
        print('ok',flush=True);time.sleep(600)";
    let Some(other) = python(script, &[&fake]) else { return };
    let dump = Dump::take(&job.ncclflow, "", &["--all"]).unwrap();
    let json: Value = serde_json::from_str(&dump.text).unwrap();
    let process = |pid: u32| {
        let found = list(&json["processes"]).iter().find(|process| process["pid"] == pid);
        found.unwrap_or_else(|| panic!("no process {pid}: {}", dump.text))
    };
    assert_eq!(process(pid)["communicators"], 2);
    assert!(text(&process(pid)["libraries"][0]["path"]).contains("vendor-collectives.so"));
    assert!(process(other.pid())["libraries"][0]["unusable"].is_string(), "{}", dump.text);
    let hash = |communicator: &&DumpedCommunicator| communicator.ranks.iter().any(|rank| rank["pid"] == pid);
    assert_eq!(dump.communicators.iter().find(hash).unwrap().verdict.culprits, [1]);
}

/// As torch's NCCL beside one that another library has brought: memory is searched by the layouts of both.
#[test]
fn beside_another_nccl_each_communicator_is_found_once_and_by_its_own_layout() {
    for (version, other) in
        [("2.27.5-cu12", "copy"), ("2.27.5-cu12", "2.24.3-cu12"), ("2.24.3-cu12", "2.27.5-cu12")]
    {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("libnccl.so.2");
        let Some(original) = programs::nccl(if other == "copy" { version } else { other }) else { return };
        fs::copy(original, &copy).unwrap();
        let workload = format!("--absent 1@3 --iters 6 --also-load {}", copy.display());
        let Some(job) = World::going(version, SMALL_PROCESSES, &workload).unwrap() else { return };
        let dump = job.check_stuck(1, "rank 1 has not joined").unwrap();
        assert_eq!(list(&process_of(&dump)["libraries"]).len(), 2, "{version} {other}");
        for rank in dump.communicators.iter().flat_map(|communicator| &communicator.ranks) {
            assert_eq!(rank["ncclVersion"], version.split_once('-').unwrap().0, "{other}");
        }
    }
}

/// Versions before the marks at both ends of a communicator. Their kernels move nothing here, so that all
/// ranks stand in the first op; what is read of them must be right all the same.
/// `cargo xtask nccl fetch 2.18.1 …`
#[test]
fn versions_before_2_21_are_read() {
    if !is_long() {
        return;
    }
    for version in ["2.18.1-cu12", "2.19.3-cu12", "2.20.5-cu12"] {
        let shape = Shape { ranks: 4, ..SMALL_PROCESSES };
        let workload = "--no-emulate --iters 4 --absent 2@2";
        let Some(job) = World::going(version, shape, workload).unwrap() else { return };
        let dump = job.stuck().unwrap();
        let [communicator] = &*dump.communicators else { panic!("{version}: {}", dump.text) };
        assert_eq!((communicator.n_ranks, communicator.ranks.len()), (4, 4), "{version}");
        for (number, rank) in (0u64..).zip(&communicator.ranks) {
            let launched = if number == 2 { 2 } else { 4 };
            assert_eq!(rank["counters"]["collOpCount"], launched, "{version}: {rank:#}");
            assert_eq!(rank["pid"], job.bed.ready.pids[usize::try_from(number).unwrap()], "{version}");
            assert_eq!(rank["kernelChannels"].as_array().map(Vec::len), Some(2), "{version}");
            for op in list(&rank["proxy"]["ops"]) {
                let to = if op["direction"] == "SEND" { (number + 1) % 4 } else { (number + 3) % 4 };
                assert_eq!(
                    (&op["peer"], &op["pattern"]),
                    (&json!(to), &json!("RING_TWICE")),
                    "{version}: {op}"
                );
            }
        }
    }
}

/// In a mount and PID namespace of its own, where the library's path names another file on the host.
#[test]
fn a_process_in_other_namespaces_is_read_through_its_own_root() {
    let Some(original) = programs::nccl("2.28.9-cu13") else { return };
    let Some(ncclflow) = programs::tracer() else { return };
    let folder = tempfile::tempdir().unwrap();
    let hidden = folder.path().join("libnccl.so.2");
    fs::write(&hidden, "not the library").unwrap();
    let script =
        "import ctypes,sys,os,time\nctypes.CDLL(sys.argv[1])\nprint('ok',flush=True)\ntime.sleep(600)";
    let command = format!(
        "mount --bind '{}' '{}' && exec python3 -c \"$0\" '{}'",
        original.display(),
        hidden.display(),
        hidden.display()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", &command, script]);
    let process = Killed::start(&mut unshare).and_then(|mut process| {
        process.line()?;
        Ok(process)
    });
    if !need("mount", process.is_ok(), "run where namespaces may be made (util-linux)") {
        return;
    }
    let pid = process.as_ref().unwrap().pid();
    let inner = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let dump = Dump::take_answered(&ncclflow, inner.trim(), &[], &[]).unwrap();
    let library = library_of(&dump);
    let found = (&library["version"], library["unusable"].is_null());
    assert_eq!(found, (&json!("2.28.9"), true), "{}", dump.text);
}

/// Takes dumps until one is as it should be, or [`SAMPLED`] is over.
fn sampled(take: impl Fn() -> Dump, is_it: impl Fn(&Dump) -> bool) -> Dump {
    let deadline = Instant::now() + SAMPLED;
    loop {
        let dump = take();
        if is_it(&dump) || Instant::now() > deadline {
            return dump;
        }
    }
}

/// Functions of the thread of the first process that is in this call, if a thread is, and if its stack is known.
fn functions_in(dump: &Dump, call: &str) -> Vec<String> {
    let process = process_of(dump);
    let thread = list(&process["threads"]).iter().find(|thread| thread["ncclApi"] == call);
    let frames = thread.and_then(|thread| thread["frames"].as_array()).into_iter().flatten();
    frames.filter_map(|frame| frame["function"].as_str().map(str::to_owned)).collect()
}

/// The proxy thread of the rank that waits is NCCL's own.
fn has_proxy(dump: &Dump) -> bool {
    let process = process_of(dump);
    list(&process["threads"])
        .iter()
        .any(|thread| thread["ncclFunction"].as_str().is_some_and(|name| name.contains("Proxy")))
}

/// Ranks that wait inside a call of NCCL: no op is in flight, and the job does not wait elsewhere.
#[test]
fn a_thread_inside_a_call_is_named_with_its_call() {
    for version in libraries() {
        let workload = "--absent 1@0 --iters 6 --ops sendrecv";
        let Some(job) = World::going(version, SMALL_PROCESSES, workload).unwrap() else { return };
        let call = "ncclGroupEnd (thread";
        let dump = sampled(|| job.stuck().unwrap(), |dump| dump.text.contains(call));
        check_culprit(&dump, 1, call);
        let is_whole = |dump: &Dump| {
            let functions = functions_in(dump, "ncclGroupEnd");
            let has = |word: &str| functions.iter().any(|name| name.contains(word));
            has("ncclGroupEnd") && has("ncclflow_bed::workload") && has_proxy(dump)
        };
        let dump = sampled(|| job.dump(&["--stacks"]).unwrap(), is_whole);
        assert!(is_whole(&dump), "{version}: {}", dump.text);
    }
}

/// A child that was forked has a copy of every communicator; it is not one rank more.
#[test]
fn a_forked_child_is_told_from_its_parent() {
    let workload = "--absent 1@3 --iters 6 --fork";
    let Some(job) = World::going("2.27.5-cu12", SMALL, workload).unwrap() else { return };
    job.check_stuck(1, "rank 1 has not joined").unwrap();
    let parent = job.bed.ready.pids[0];
    let child = children_of(parent).pop().unwrap();
    let dump = Dump::take_answered(&job.ncclflow, &format!("{child},{parent}"), &[], &[]).unwrap();
    check_culprit(&dump, 1, "rank 1 has not joined");
    assert!(dump.text.contains("forked"), "{}", dump.text);
}

#[test]
fn processes_that_exit_while_they_are_read_leave_a_line_and_no_crash() {
    let Some(library) = programs::nccl("2.21.5-cu12") else { return };
    let Some(ncclflow) = programs::tracer() else { return };
    // 512 MB, so that there is something to read.
    let script = "import ctypes,sys,mmap,time\nctypes.CDLL(sys.argv[1])\nm=mmap.mmap(-1,512<<20,mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)\n\
        for i in range(512): m[i<<20:(i+1)<<20]=b'z'*(1<<20)\nprint('ok',flush=True);time.sleep(600)";
    for round in 0..6 {
        let Some(mut victim) = python(script, &[&library]) else { return };
        let dump = Command::new(&ncclflow)
            .args(["dump", "-p", &victim.pid().to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(10 + 25 * round));
        victim.kill();
        let output = dump.wait_with_output().unwrap();
        let code = output.status.code();
        let said =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(matches!(code, Some(1 | 4)), "{code:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        assert!(code == Some(4) || said.contains("exit") || said.contains("there is no process"), "{said}");
    }
}

/// Maps and unmaps all the time.
#[test]
fn a_process_whose_mappings_change_while_it_is_read_is_read_to_the_end() {
    let Some(library) = programs::nccl("2.21.5-cu12") else { return };
    let Some(ncclflow) = programs::tracer() else { return };
    let script = "import ctypes,sys,mmap\nctypes.CDLL(sys.argv[1])\nprint('ok',flush=True)\nk=[]\n\
        while True:\n m=mmap.mmap(-1,8<<20,mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)\n m[0:8<<20]=b'y'*(8<<20)\n k.append(m)\n\
        \x20if len(k)>20: k.pop(0).close()";
    let Some(victim) = python(script, &[&library]) else { return };
    for _ in 0..5 {
        let pid = victim.pid().to_string();
        let dump = Dump::take_answered(&ncclflow, &pid, &["--interval", "0.1"], &[]).unwrap();
        let process = process_of(&dump);
        assert!(process["error"].is_null() && process["scan"]["complete"] == true, "{}", dump.text);
    }
}

/// Address space costs nothing, and the limits hold.
#[test]
fn two_hundred_gigabytes_of_address_space_are_passed_over_and_limits_are_kept() {
    let Some(library) = programs::nccl("2.27.5-cu12") else { return };
    let Some(ncclflow) = programs::tracer() else { return };
    // One mapping of 200 GB with a few pages, 20,000 small ones, and 256 MB that are filled.
    let script = "import ctypes,sys,mmap,time\nctypes.CDLL(sys.argv[1])\nN=0x4000\nA=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS\n\
        b=mmap.mmap(-1,200<<30,A|N)\n\
        for i in range(100): b[(i<<31)%(199<<30)]=7\n\
        c=ctypes.CDLL(None);c.mmap.restype=ctypes.c_void_p;c.mmap.argtypes=[ctypes.c_void_p,ctypes.c_size_t,ctypes.c_int,ctypes.c_int,ctypes.c_int,ctypes.c_long]\n\
        for i in range(20000): c.mmap(None,4096,3 if i%2 else 0,0x22,-1,0)\n\
        m=mmap.mmap(-1,256<<20,A)\n\
        for i in range(256): m[i<<20:(i+1)<<20]=b'z'*(1<<20)\nprint('ok',flush=True);time.sleep(600)";
    let Some(victim) = python(script, &[&library]) else { return };
    let pid = victim.pid().to_string();
    let started = Instant::now();
    let dump = Dump::take_answered(&ncclflow, &pid, &[], &[]).unwrap();
    let scan = &process_of(&dump)["scan"];
    assert!(scan["complete"] == true && number(&scan["mappedBytes"]) > 200 << 30, "{scan}");
    assert!(number(&scan["scannedBytes"]) < 2 << 30, "{scan}");
    // To read all of it takes longer than that, and the bytes that were read tell more.
    assert!(started.elapsed() < Duration::from_secs(120), "{:?}", started.elapsed());
    // Nothing of it was filled by the reading.
    let resident = resident_bytes(victim.pid());
    assert!(resident < 2 << 30, "{resident} bytes");
}

/// A program of another architecture: a 32-bit ELF file that is mapped as code.
#[test]
fn a_library_of_another_architecture_is_said_to_be_one() {
    let Some(ncclflow) = programs::tracer() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libnccl.so.2");
    // The head of an ELF file of 32 bits (e_ident), then nothing.
    fs::write(&path, [&[0x7f, b'E', b'L', b'F', 1, 1, 1, 0][..], &[0; 8184]].concat()).unwrap();
    let script = "import mmap,sys,time\nf=open(sys.argv[1])\nm=mmap.mmap(f.fileno(),4096,mmap.MAP_PRIVATE,mmap.PROT_READ|mmap.PROT_EXEC)\n\
        print('ok',flush=True);time.sleep(600)";
    let Some(victim) = python(script, &[&path]) else { return };
    let dump = Dump::take_answered(&ncclflow, &victim.pid().to_string(), &[], &[]).unwrap();
    let why = library_of(&dump)["unusable"].to_string();
    assert!(why.contains("not a 64-bit little-endian ELF file"), "{}", dump.text);
    assert_eq!(dump.code, Some(4));
}
