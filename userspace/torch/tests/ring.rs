//! Rings that are read from outside against what was put into them.

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{CREATED, Subject};
use torch::{
    RingReport, Unknown,
    flight_recorder::{GroupStatus, ProcessGroup, State, Work},
    read,
};

/// Minor versions of torch, one for each layout.
const MINORS: [u32; 7] = [4, 5, 6, 7, 8, 11, 15];

fn fill(subject: &mut Subject, count: u64) {
    for number in 0..count {
        subject.record(number, if number % 2 == 0 { "nccl:all_reduce" } else { "nccl:_reduce_scatter_base" });
    }
}

/// Checks that the entries from `first` on are those of [`fill`].
fn check(ring: &RingReport, first: u64, count: u64) {
    assert_eq!((ring.entries.len() as u64, ring.torn), (count, 0));
    for (number, entry) in (first..).zip(&ring.entries) {
        let function = if number % 2 == 0 { "nccl:all_reduce" } else { "nccl:_reduce_scatter_base" };
        assert_eq!((entry.record_id, entry.pg_id, entry.op_id), (number, 0, number));
        assert_eq!(
            (entry.collective_seq_id, entry.p2p_seq_id, &*entry.profiling_name),
            (number, 0, function)
        );
        assert!(entry.is_of("0", "default_pg"));
        assert_eq!(entry.time_created_ns.cast_unsigned(), CREATED + number);
        assert_eq!((&*entry.input_sizes, &*entry.output_sizes), (&[vec![16, 4]][..], &[vec![64]][..]));
        assert_eq!((&*entry.input_dtypes[0], &*entry.output_dtypes[0]), ("Float", "BFloat16"));
        assert!(!entry.is_p2p && !entry.retired && entry.state == State::Scheduled);
    }
}

#[test]
fn a_ring_is_read_while_it_fills_and_when_it_is_full() {
    for minor in MINORS {
        let Some(mut subject) = Subject::start(minor, "libtorch_cuda.so", &[("TORCH_FR_BUFFER_SIZE", "50")])
        else {
            return;
        };
        let empty = subject.read(None);
        assert_eq!((empty.enabled, empty.max_entries, empty.entries.len()), (true, 50, 0), "torch 2.{minor}");
        fill(&mut subject, 7);
        check(&subject.read(None), 0, 7);
        for number in 7..50 {
            subject.record(
                number,
                if number % 2 == 0 { "nccl:all_reduce" } else { "nccl:_reduce_scatter_base" },
            );
        }
        check(&subject.read(None), 0, 50);
        for number in 50..123 {
            subject.record(
                number,
                if number % 2 == 0 { "nccl:all_reduce" } else { "nccl:_reduce_scatter_base" },
            );
        }
        let full = subject.read(None);
        check(&full, 73, 50);
        assert_eq!(full.recorded, 123);
    }
}

#[test]
fn every_field_is_read() {
    for minor in MINORS {
        let Some(mut subject) = Subject::start(minor, "libtorch_cuda.so", &[]) else { return };
        let long = "a process group whose name is longer than a string keeps in place";
        subject.ask(&json!(["group", "0", "default_pg", "0 1 2 3"]));
        subject.ask(&json!(["group", "17", long, "3 1"]));
        subject.ask(&json!(["library", "2.28.9", 3]));
        let tensors: Vec<String> = (0..20).map(|size| format!("6 3 {size} 1 2")).collect();
        let tensors = tensors.join(" ");
        let record = |created: u64, is_p2p: bool, inputs: &str| {
            json!(["record", 5, "17", long, 4711, 2, 4800, "nccl:send 1->3", created, is_p2p, inputs, ""])
        };
        subject.ask(&record(CREATED, true, &tensors));
        subject.ask(&record(CREATED + 1, false, "7 0"));
        subject.ask(&json!(["notice", 0, CREATED + 10, CREATED + 20, 1.5, true]));
        subject.ask(&json!(["notice", 1, CREATED + 10, 0, -1, false]));
        subject.ask(&json!(["status", 5, 4712, -1, 4711, "ALLREDUCE", 64]));

        let ring = subject.read(None);
        let group = |name: &str, description: &str, ranks: &[u64]| ProcessGroup {
            name: name.into(),
            description: description.into(),
            ranks: ranks.to_vec(),
            ..ProcessGroup::default()
        };
        let work = |seq, name: &str, elements| Work {
            seq,
            name: name.to_owned(),
            elements_in: elements,
            elements_out: elements,
        };
        let status = GroupStatus {
            last_enqueued: work(4712, "ALLREDUCE", Some(64)),
            last_started: work(-1, "", None),
            last_completed: work(4711, "ALLREDUCE", Some(64)),
        };
        let second = ProcessGroup {
            pg_id: Some(5),
            status: (minor >= 5).then_some(status),
            ..group("17", long, &[3, 1])
        };
        assert_eq!(ring.groups, [group("0", "default_pg", &[0, 1, 2, 3]), second]);
        assert_eq!(ring.library_version.as_deref(), (minor >= 8).then_some("2.28.9"), "torch 2.{minor}");
        assert_eq!(ring.rank, (minor >= 15).then_some(3));
        let [first, second] = &*ring.entries else { panic!("{ring:#?}") };
        assert!(first.is_of("17", long) && first.pg_id == 5);
        let numbers = (first.collective_seq_id, first.p2p_seq_id, first.op_id, first.is_p2p);
        assert_eq!(numbers, (4711, 2, 4800, true));
        let shapes: Vec<Vec<i64>> = (0..20).map(|size| vec![size, 1, 2]).collect();
        assert_eq!((&first.input_sizes, &first.input_dtypes), (&shapes, &vec!["Float".to_owned(); 20]));
        assert!(first.output_sizes.is_empty() && first.output_dtypes.is_empty());
        assert_eq!((first.state, first.duration_ms, first.retired), (State::Completed, Some(1.5), true));
        let times = (first.time_discovered_started_ns, first.time_discovered_completed_ns);
        assert_eq!(times, (Some((CREATED + 10).cast_signed()), Some((CREATED + 20).cast_signed())));
        assert_eq!(first.timeout_ms, (minor >= 5).then_some(600_000));
        // CPython calls its main thread by the program's name.
        let thread = first.thread_name.as_deref();
        assert_eq!(thread.is_some_and(|name| name.starts_with("python")), minor >= 8, "{thread:?}");
        assert_eq!(first.thread_id.is_some(), minor >= 8);
        assert_eq!((second.state, second.duration_ms, second.retired), (State::Started, None, false));
        assert_eq!(second.input_sizes, [Vec::<i64>::new()], "a number is a tensor without dimensions");
    }
}

#[test]
fn a_ring_that_is_off_says_so_and_one_that_was_reset_has_what_came_after() {
    let Some(subject) = Subject::start(11, "libtorch_cuda.so", &[("TORCH_FR_BUFFER_SIZE", "0")]) else {
        return;
    };
    let ring = subject.read(None);
    assert_eq!((ring.enabled, ring.max_entries, ring.entries.len()), (false, 0, 0));

    let Some(mut subject) = Subject::start(11, "libtorch_cuda.so", &[("TORCH_FR_BUFFER_SIZE", "50")]) else {
        return;
    };
    fill(&mut subject, 70);
    subject.ask(&json!(["reset"]));
    assert!(subject.read(None).entries.is_empty());
    fill(&mut subject, 33);
    check(&subject.read(None), 0, 33);
    for number in 33..90 {
        subject.record(number, if number % 2 == 0 { "nccl:all_reduce" } else { "nccl:_reduce_scatter_base" });
    }
    check(&subject.read(None), 40, 50);
}

/// 2.15's `nccl` records into a ring that a table in libtorch_cpu.so leads to.
#[test]
fn a_ring_in_a_table_is_found_with_the_name_of_its_backend() {
    let Some(mut subject) = Subject::start(15, "libtorch_cpu.so", &[]) else { return };
    fill(&mut subject, 5);
    let found = subject.find().unwrap();
    assert_eq!(found.iter().map(|found| found.backend.as_deref()).collect::<Vec<_>>(), [Some("nccl2")]);
    check(&subject.read(None), 0, 5);
}

/// Another thread records thousands of entries a second meanwhile: no entry is a mixture of two.
#[test]
fn entries_that_are_overwritten_while_they_are_read_are_left_out_and_never_mixed_up() {
    for minor in [6, 11] {
        let size = [("TORCH_FR_BUFFER_SIZE", "300")];
        let Some(mut subject) = Subject::start(minor, "libtorch_cuda.so", &size) else { return };
        subject.ask(&json!(["keep_recording"]));
        let ring = |subject: &Subject| {
            let found = subject.find().ok()?.pop()?;
            read(&subject.memory, found.address, &subject.offsets, None, torch::Patience::default()).ok()
        };
        let (mut whole, mut torn) = (0, 0);
        // A busy machine reads seldom, or the writer runs seldom.
        let deadline = Instant::now() + Duration::from_secs(120);
        while (whole < 3000 || torn == 0) && Instant::now() < deadline {
            // While the vector grows it may be found nowhere.
            let Some(ring) = ring(&subject) else { continue };
            torn += ring.torn;
            for entry in &ring.entries {
                let number = entry.op_id;
                let expected = (
                    number,
                    &*format!("nccl:operation_number_{number}"),
                    vec![vec![number.cast_signed(), 3]],
                );
                let found = (entry.collective_seq_id, &*entry.profiling_name, entry.input_sizes.clone());
                assert_eq!(found, expected);
                assert_eq!((entry.time_created_ns - CREATED.cast_signed()).cast_unsigned(), number);
                assert!(!entry.retired || entry.is_completed(), "{entry:?}");
                whole += 1;
            }
        }
        println!("torch 2.{minor}: {whole} entries whole, {torn} left out");
        assert!(whole >= 3000 && torn > 0, "{whole} {torn}");
    }
}

/// A table of another version does not fit: nothing is read, instead of something wrong.
#[test]
fn another_versions_layouts_show() {
    let Some(mut subject) = Subject::start(11, "libtorch_cuda.so", &[]) else { return };
    subject.ask(&json!(["group", "0", "default_pg", "0 1"]));
    subject.ask(&json!(["status", 0, 1, -1, -1, "ALLREDUCE", 64]));
    fill(&mut subject, 12);
    let address = subject.find().unwrap()[0].address;
    let own = subject.offsets;
    for row in torch::shipped_rows() {
        subject.offsets = row.offsets;
        let found = subject.find().unwrap();
        let ring = read(&subject.memory, address, &row.offsets, None, torch::Patience::default());
        // 2.10 to 2.14 have the same layouts, and 2.15 has a field more at the end.
        let recorder = torch::RecorderOffsets { size: own.recorder.size, rank: None, ..row.offsets.recorder };
        let fits = torch::Offsets { version: own.version, recorder, ..row.offsets } == own;
        assert_eq!(!found.is_empty(), fits, "torch {}", row.offsets.version);
        match ring {
            Ok(ring) => {
                assert!(fits, "torch {}: {ring:#?}", row.offsets.version);
                check(&ring, 0, 12);
            }
            Err(why) => assert!(!fits && matches!(why, Unknown::Contradiction(_)), "{why:?}"),
        }
    }
}

/// Python's frames, by code objects and instructions.
#[test]
fn frames_are_those_that_python_itself_has() {
    let Some(mut subject) = Subject::start(11, "libtorch_cuda.so", &[]) else { return };
    let mut truths: Vec<Value> = Vec::new();
    for number in 0..9 {
        truths.push(subject.record(number, "nccl:all_reduce"));
    }
    let Some(python) = support::python_of(subject.job.pid(), &subject.memory) else { return };
    let ring = subject.read(Some(python));
    assert_eq!(ring.entries.len(), truths.len());
    for (entry, truth) in ring.entries.iter().zip(&truths) {
        let frames = entry.frames.as_ref().unwrap().iter();
        let frames: Value = frames
            .map(|frame| json!({ "name": frame.function, "filename": frame.file, "line": frame.line }))
            .collect();
        assert_eq!(frames, *truth);
    }
    assert_ne!(truths[0], truths[1], "two ways lead to the call");
}
