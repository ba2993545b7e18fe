//! Verdicts on ranks that are made up.

use super::*;
use torch::flight_recorder::State;

const NOW: i64 = 1_700_000_100_000_000_000;
const SECOND: i64 = 1_000_000_000;

fn entry(seq: u64, function: &str, size: i64, called: i64, completed: bool) -> Entry {
    Entry {
        record_id: seq,
        process_group: ["3".into(), "tensor_parallel".into()],
        collective_seq_id: seq,
        profiling_name: format!("nccl:{function}"),
        input_sizes: vec![vec![size]],
        input_dtypes: vec!["Float".to_owned()],
        output_sizes: vec![vec![size]],
        output_dtypes: vec!["Float".to_owned()],
        state: if completed { State::Completed } else { State::Scheduled },
        time_created_ns: NOW - called,
        time_discovered_completed_ns: completed.then_some(NOW - called + 1000),
        ..Entry::default()
    }
}

/// All reductions of 8 elements, one a second, the latest half a second ago.
fn usual(numbers: std::ops::RangeInclusive<u64>) -> Vec<Entry> {
    let last = *numbers.end();
    let called = |seq: u64| i64::try_from(last - seq).unwrap() * SECOND + SECOND / 2;
    numbers.map(|seq| entry(seq, "all_reduce", 8, called(seq), true)).collect()
}

fn judged(ranks: &[Vec<Entry>]) -> GroupVerdict {
    let entries: Vec<Vec<&Entry>> = ranks.iter().map(|entries| entries.iter().collect()).collect();
    let ranks: Vec<Rank> = (0u32..)
        .zip(&entries)
        .map(|(number, entries)| Rank::new(Some(number.into()), 100 + number, NOW, entries))
        .collect();
    judge("3", "tensor_parallel", ranks.len(), &ranks)
}

#[test]
fn ranks_that_called_the_same_agree_as_far_as_all_rings_reach_back() {
    let mut second = usual(1..=20);
    // Entries that the first rank's ring no longer has do not count.
    second[3].profiling_name = "nccl:broadcast".to_owned();
    let verdict = judged(&[usual(10..=20), second]);
    assert_eq!(verdict.state, HistoryState::Agree, "{verdict:#?}");
    assert_eq!(
        verdict.sentences,
        [
            "\"tensor_parallel\" (3): ranks 0, 1 called the same: collectives 10 to 20",
            "\"tensor_parallel\" (3): ranks 0, 1 completed 20 (all_reduce [8] Float)",
        ]
    );
}

#[test]
fn the_first_collective_that_differs_is_named() {
    for (change, what) in [
        (0, "rank 1 called broadcast [8] Float"),
        (1, "rank 1 called all_reduce [9] Float"),
        (2, "rank 1 called all_reduce [8] Half"),
    ] {
        let mut second = usual(1..=20);
        for at in [11, 15] {
            match change {
                0 => second[at].profiling_name = "nccl:broadcast".to_owned(),
                1 => second[at].input_sizes = vec![vec![9]],
                _ => second[at].input_dtypes = vec!["Half".to_owned()],
            }
        }
        let verdict = judged(&[usual(1..=20), second, usual(1..=20)]);
        assert_eq!(verdict.state, HistoryState::Differ, "{verdict:#?}");
        let difference = verdict.difference.unwrap();
        assert_eq!(difference.collective_seq_id, 12);
        assert_eq!((&*difference.calls[0].ranks, &*difference.calls[1].ranks), (&[0, 2][..], &[1][..]));
        let sentence = &verdict.sentences[0];
        let expected = format!(
            "\"tensor_parallel\" (3): collective 12 differs: ranks 0, 2 called all_reduce [8] Float; {what}"
        );
        assert_eq!(*sentence, expected);
    }
}

#[test]
fn parts_of_uneven_size_are_no_difference() {
    let uneven = |function: &str, input, output| {
        let mut entries = usual(1..=5);
        entries[2] = entry(3, function, input, 3 * SECOND, true);
        entries[2].output_sizes = vec![vec![output]];
        entries
    };
    for (function, first, second) in [
        ("all_gather", (8, 20), (12, 20)),
        ("reduce_scatter", (20, 8), (20, 12)),
        ("all_to_all", (3, 4), (5, 6)),
        ("gather", (3, 30), (4, 0)),
    ] {
        let ranks = [uneven(function, first.0, first.1), uneven(function, second.0, second.1)];
        assert_eq!(judged(&ranks).state, HistoryState::Agree, "{function}");
    }
    let ranks = [uneven("all_gather", 8, 20), uneven("all_gather", 8, 21)];
    assert_eq!(judged(&ranks).state, HistoryState::Differ);
}

#[test]
fn a_rank_that_has_not_called_for_long_is_late_and_one_that_was_read_a_moment_before_is_not() {
    let mut first = usual(1..=10);
    first.push(entry(11, "all_gather", 4, 12 * SECOND, false));
    let ranks = [first.clone(), usual(1..=10), first.clone()];
    let verdict = judged(&ranks);
    assert_eq!(verdict.state, HistoryState::Waiting);
    let late = verdict.late.unwrap();
    assert_eq!((late.collective_seq_id, &*late.ranks, late.seconds), (11, &[1][..], 12.0));
    assert_eq!(
        verdict.sentences[0],
        "\"tensor_parallel\" (3): rank 1 has not called collective 11, which ranks 0, 2 called 12.0 s before: all_gather [4] Float"
    );
    assert_eq!(verdict.pending.unwrap().ranks, [0, 2]);

    let mut soon = usual(1..=10);
    soon.push(entry(11, "all_gather", 4, SECOND / 2, false));
    assert_eq!(judged(&[soon, usual(1..=10)]).state, HistoryState::Agree);
    // A rank that has called nothing at all.
    let verdict = judged(&[first, Vec::new()]);
    assert_eq!((verdict.state, verdict.late.unwrap().ranks), (HistoryState::Waiting, vec![1]));
}

#[test]
fn what_all_called_and_none_completed_is_pending() {
    let rank = || {
        let mut entries = usual(1..=10);
        entries.push(entry(11, "all_reduce", 8, 5 * SECOND, false));
        entries
    };
    let verdict = judged(&[rank(), rank()]);
    assert_eq!((verdict.state, verdict.late), (HistoryState::Waiting, None));
    assert_eq!(verdict.pending.unwrap().collective_seq_id, 11);
    // Parts of a collective that were put together are never marked as completed: the whole one is.
    let coalesced = || {
        let mut entries = rank();
        entries.push(entry(11, "coalesced", 8, 5 * SECOND, true));
        entries
    };
    assert_eq!(judged(&[coalesced(), coalesced()]).state, HistoryState::Agree);
}

#[test]
fn who_called_and_who_completed_last_is_told_of_the_latest_that_all_did() {
    let mut slow = usual(1..=10);
    slow[9].time_created_ns += 300_000_000;
    slow[9].time_discovered_completed_ns = slow[9].time_discovered_completed_ns.map(|at| at + 100_000_000);
    let verdict = judged(&[usual(1..=10), slow]);
    let called = verdict.called_last.unwrap();
    assert_eq!((called.collective_seq_id, &*called.ranks, called.seconds), (10, &[1][..], 0.3));
    let completed = verdict.completed_last.unwrap();
    assert_eq!((completed.collective_seq_id, &*completed.ranks, completed.seconds), (10, &[1][..], 0.1));
}

#[test]
fn one_rank_alone_is_compared_with_nothing() {
    assert_eq!(judged(&[]).state, HistoryState::Unknown);
    assert_eq!(judged(&[Vec::new(), Vec::new()]).state, HistoryState::Unknown);
    let entries = usual(1..=3);
    let entries: Vec<&Entry> = entries.iter().collect();
    let alone = |size| judge("0", "default_pg", size, &[Rank::new(None, 77, NOW, &entries)]);
    assert_eq!(alone(8).state, HistoryState::Unknown);
    assert!(alone(8).sentences[0].contains("only process 77 of 8 was read"), "{:?}", alone(8));
    assert_eq!(alone(1).state, HistoryState::Agree);
}

/// Each pair numbers its sends and receives for itself.
#[test]
fn sends_and_receives_are_left_out() {
    let mut first = usual(1..=5);
    first.push(Entry { is_p2p: true, ..entry(6, "send 0->1", 8, 9 * SECOND, false) });
    assert_eq!(judged(&[first, usual(1..=5)]).state, HistoryState::Agree);
}

#[test]
fn ranks_of_several_jobs_in_groups_of_one_name_are_not_compared() {
    let mut other = usual(1..=20);
    other[3].profiling_name = "nccl:broadcast".to_owned();
    let (one, other): (Vec<_>, Vec<_>) = (usual(1..=20), other);
    let entries: Vec<Vec<&Entry>> = [&one, &one, &other].iter().map(|rank| rank.iter().collect()).collect();
    let rank = |number: u64, pid, at: usize| Rank::new(Some(number), pid, NOW, &entries[at]);
    let verdict = judge("0", "default_pg", 2, &[rank(0, 7, 0), rank(1, 8, 1), rank(1, 7, 2)]);
    assert_eq!((verdict.state, verdict.difference), (HistoryState::Unknown, None));
    assert!(verdict.sentences[0].contains("rank 1 was read more than once"), "{:?}", verdict.sentences);
}

/// On two hosts, processes can have one PID.
#[test]
fn a_rank_is_not_mixed_up_with_one_of_the_same_pid_on_another_host() {
    let mut first = usual(1..=10);
    first.push(entry(11, "all_gather", 4, 12 * SECOND, false));
    let late = usual(1..=10);
    let entries: Vec<Vec<&Entry>> = [&first, &late].iter().map(|rank| rank.iter().collect()).collect();
    let ranks = [0, 1].map(|at| Rank::new(Some(at as u64), 100, NOW, &entries[at]));
    let verdict = judge("0", "default_pg", 2, &ranks);
    assert!(
        verdict.sentences[0].contains(": rank 1 has not called collective 11, which rank 0 called"),
        "{verdict:?}"
    );
}
