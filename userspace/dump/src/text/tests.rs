//! Texts of made-up dumps.

use super::*;
use crate::{
    PythonThread,
    verdict::{JobVerdict, Verdict, tests::made::rank},
};
use flow::schema::PythonFrame;
use flow::text::REPORT_WIDTH;

const FIRST: &str =
    "rank 2 has not joined: AllReduce 4 of 5 launched; its main thread is at part0.py:40 in load";

/// A job of eight ranks with 48 communicators, of which one is stuck: with Python, a GPU for each rank and
/// torch's notes.
fn large_job(others: State) -> DumpReport {
    let frames = |line| {
        let frame = |n: u32| PythonFrame {
            file: format!("/opt/train/part{n}.py"),
            line: Some(line + n),
            ..PythonFrame::default()
        };
        (0..20).map(frame).collect::<Vec<_>>()
    };
    let ranks = || {
        (0..8).map(|n| RankReport {
            pid: 100 + n,
            n_ranks: 8,
            bus_id: Some(format!("0000:{n:02}:00.0")),
            ..rank(n, 5, Vec::new())
        })
    };
    let evidence = (0..20).map(|n| {
        format!(
            "rank {n} waits for rank 2: RECV from 2 (AllReduce, op 5, channel 0) has received 0 of 24 steps"
        )
    });
    let verdict = Verdict {
        state: State::Stuck,
        kind: Some(Kind::NotJoined),
        culprits: vec![2],
        victims: vec![0, 1, 3, 4, 5, 6, 7],
        evidence: evidence.chain([FIRST.to_owned()]).collect(),
        ..Verdict::default()
    };
    let group = |ranks: &[u32], line| PythonGroup {
        ranks: ranks.to_vec(),
        is_largest: ranks.len() > 1,
        frames: frames(line),
    };
    let stacks = vec![group(&[0, 1, 3, 4, 5, 6, 7], 50), group(&[2], 40)];
    let communicator = |n: u32| CommunicatorReport {
        comm_hash: format!("0x{n:016x}"),
        n_ranks: 8,
        ranks: ranks().collect(),
        verdict: if n == 30 {
            verdict.clone()
        } else {
            Verdict {
                state: others,
                evidence: vec!["the job waits elsewhere".to_owned()],
                ..Verdict::default()
            }
        },
        python_stacks: stacks.clone(),
        ..CommunicatorReport::default()
    };
    let main = |pid| PythonThread { tid: pid, is_main: true, frames: frames(40), ..PythonThread::default() };
    let process = |pid| ProcessReport {
        pid,
        communicators: 48,
        python: Some(PythonReport { threads: vec![main(pid)], ..PythonReport::default() }),
        threads: vec![Thread::default()],
        ..ProcessReport::default()
    };
    let gpu =
        |n: u32| GpuReport { index: n, bus_id: Some(format!("0000:{n:02}:00.0")), ..GpuReport::default() };
    let mut report = DumpReport {
        processes: (100..108).map(process).collect(),
        communicators: (0..48).map(communicator).collect(),
        gpus: (0..8).map(gpu).collect(),
        torch_notes: (0..33).map(|n| format!("torch's flight recorder, group {n}")).collect(),
        ..DumpReport::default()
    };
    report.job = crate::verdict::over_all(&report.communicators, &report.processes);
    report
}

#[test]
fn of_48_communicators_the_one_that_is_stuck_takes_no_more_than_40_lines() {
    for others in [State::Healthy, State::Unknown] {
        let report = large_job(others);
        let text = render(&report, false, REPORT_WIDTH);
        assert!(text.lines().count() <= 40, "{} lines:\n{text}", text.lines().count());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        // The same words on a narrower terminal.
        let narrow = render(&report, false, 60);
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        assert!(narrow.split_whitespace().eq(text.split_whitespace()), "{narrow}");
        for said in [
            "waits for rank 2 (process 102)",
            &format!("  - {FIRST}"),
            "communicator 0x000000000000001e: 8 of 8",
            "part0.py:40",
            "process 102",
            "GPU 2",
            "and 7 more GPUs",
            "-v shows all",
        ] {
            assert!(text.contains(said), "no `{said}`:\n{text}");
        }
        // All is there when it is asked for.
        let all = render(&report, true, REPORT_WIDTH);
        let processes = (100..108).filter(|pid| all.contains(&format!("\nprocess {pid} ")));
        assert_eq!((processes.count(), all.matches("\ncommunicator 0x").count()), (8, 48), "{all}");
    }
}

#[test]
fn the_verdict_and_its_reason_come_before_all_else() {
    let verdict = Verdict {
        state: State::Stuck,
        culprits: vec![2],
        victims: vec![0],
        evidence: vec![
            "rank 0 waits for rank 2: RECV".to_owned(),
            "rank 2 has not joined: AllReduce 3 of 4 launched".to_owned(),
        ],
        ..Verdict::default()
    };
    let communicator = CommunicatorReport { comm_hash: "0xab".to_owned(), verdict, ..Default::default() };
    let job = JobVerdict {
        state: State::Stuck,
        kind: None,
        next: None,
        sentence: "stuck: communicator 0xab waits for rank 2".to_owned(),
        communicators: vec!["0xab".to_owned()],
    };
    let report = DumpReport { job: Some(job), communicators: vec![communicator], ..DumpReport::default() };
    let text = render(&report, false, REPORT_WIDTH);
    let expected =
        "stuck: communicator 0xab waits for rank 2\nrank 2 has not joined: AllReduce 3 of 4 launched";
    assert_eq!(text.split("\n\n").next(), Some(expected), "{text}");
}
