//! What is judged over several refreshes: who is waited for, and who does the same.

use super::*;

/// Ranks of a communicator, and what is shown of them.
struct Watched {
    tally: Tally,
    state: State,
    seconds: u64,
    interval: u64,
    n_ranks: i32,
}

impl Watched {
    fn new(n_ranks: i32) -> Self {
        let shape = Shape { is_grouped: true, ..Shape::default() };
        Self { tally: Tally::default(), state: State::new(shape), seconds: 0, interval: 1, n_ranks }
    }

    /// Counts an op of a rank that waited so long for the rank before it.
    fn op(&mut self, rank: i32, wait: u64) {
        let mut record = Op { seq: self.seconds * 2, channel: 0, rank }.record();
        record.comm.n_ranks = self.n_ranks;
        record.peers[0].measured = messages(&[wait]);
        self.tally.flow(&record, &host(100 + rank.cast_unsigned()));
    }

    /// Looks at all that was counted, an interval later. Returns the ranks that are marked.
    fn refresh(&mut self) -> Vec<i32> {
        self.seconds += self.interval;
        let at_ns = self.seconds * SECOND;
        let now = Snapshot { at_ns, statistics: self.tally.snapshot(), gpus: Vec::new() };
        self.state.take(now, &Subject::default());
        let marked = self.state.rates.ranks.iter().filter(|rank| rank.lag.is_some());
        marked.filter_map(|rank| Some(rank.key?.rank)).collect()
    }
}

/// All wait equally long, as for another host. The waits of rank 1 are seen a second later than the others'.
#[test]
fn a_reading_between_the_ends_of_one_op_marks_nobody() {
    for iteration in [2, 3, 7, 15] {
        let mut watched = Watched::new(4);
        for second in 0..100 {
            for rank in 0..4 {
                if second % iteration == u64::from(rank == 1) {
                    watched.op(rank, SECOND);
                }
            }
            assert_eq!(watched.refresh(), [0; 0], "second {second}, an iteration takes {iteration}");
        }
    }
}

/// Iterations of 3 s, in which all wait for rank 1.
#[test]
fn a_late_rank_is_marked_once_it_is_sure_and_as_long_as_it_is_late() {
    let mut watched = Watched::new(4);
    for second in 0..180 {
        for rank in (0..4).filter(|_| second % 3 == 0) {
            let is_late = second < 90;
            watched.op(rank, if rank == 1 || !is_late { 1_000 } else { 2 * SECOND });
        }
        let marked = watched.refresh();
        match second {
            20..95 => assert_eq!(marked, [1], "second {second}"),
            0..9 | 160.. => assert_eq!(marked, [0; 0], "second {second}"),
            _ => {}
        }
    }
}

#[test]
fn a_late_rank_is_marked_at_any_interval() {
    for interval in [1, 2, 5, 7, 10, 20, 30, 60, 300] {
        let mut watched = Watched { interval, ..Watched::new(4) };
        for refresh in 0..40 {
            for rank in 0..4 {
                for _ in 0..interval {
                    watched.op(rank, if rank == 1 { SECOND / 10 } else { SECOND });
                    watched.seconds += 1;
                }
                watched.seconds -= interval;
            }
            let marked = watched.refresh();
            if refresh > 5 && watched.seconds > 20 {
                assert_eq!(marked, [1], "refresh {refresh}, each {interval} s");
            }
        }
    }
}

#[test]
fn a_new_member_begins_the_judgement_anew() {
    let mut watched = Watched::new(4);
    for second in 0..60 {
        for rank in 0..if second < 30 { 3 } else { 4 } {
            watched.op(rank, if rank == 1 { 1_000 } else { SECOND });
        }
        let marked = watched.refresh();
        match second {
            20..30 | 50.. => assert_eq!(marked, [1], "second {second}"),
            30..39 => assert_eq!(marked, [0; 0], "second {second}"),
            _ => {}
        }
    }
}

#[test]
fn one_interval_marks_a_rank_if_it_has_enough_ops() {
    let lags = |ops| -> Vec<bool> {
        let now = Snapshot { at_ns: 2 * SECOND, statistics: job(ops), gpus: Vec::new() };
        let before = Snapshot { at_ns: SECOND, ..Snapshot::default() };
        between(&before, &now).ranks.iter().map(|rank| rank.lag.is_some()).collect()
    };
    assert_eq!(lags([4; 4]), [false, true, false, false]);
    assert_eq!(lags([4, 4, 4, 3]), [false; 4]);
    // Without any wait, and without any time.
    let quiet = |at_ns, ops| {
        let mut tally = Tally::default();
        for number in 0..ops {
            for rank in 0..4 {
                tally.flow(&Op { seq: number * 2, channel: 0, rank }.record(), &host(100));
            }
        }
        Snapshot { at_ns, statistics: tally.snapshot(), gpus: Vec::new() }
    };
    assert!(between(&quiet(7, 1), &quiet(7, 9)).ranks.iter().all(|rank| rank.lag.is_none()));
}

/// Ops of 64 ranks, every 3 s; those of odd ranks are seen a second later. Rank 9 does half as many.
#[test]
fn ranks_are_one_row_also_where_an_iteration_takes_longer_than_a_refresh() {
    let mut watched = Watched::new(64);
    for second in 0..90 {
        for rank in 0..64 {
            let is_due = second % 3 == u64::from(rank % 2 == 1);
            if is_due && (rank != 9 || second % 6 == 1) {
                watched.op(rank, 0);
            }
        }
        watched.refresh();
        let rows: Vec<&str> = watched.state.rows().iter().map(|row| row.rank.as_str()).collect();
        if second > 40 {
            assert_eq!(rows, ["0-8, 10-63", "9/64"], "second {second}");
        }
    }
    watched.state.rates.ranks[5].lag = Some(Lag::WaitedFor(SECOND));
    watched.state.arrange(&Subject::default());
    let rows: Vec<&str> = watched.state.rows().iter().map(|row| row.rank.as_str()).collect();
    assert_eq!(rows, ["62 of 64", "5/64", "9/64"]);
}

#[test]
fn ranks_of_two_kinds_are_two_rows() {
    let mut watched = Watched::new(64);
    for second in 0..30 {
        for rank in 0..64 {
            let mut record = Op { seq: second * 2, channel: 0, rank }.record();
            record.comm.n_ranks = 64;
            if rank % 2 == 1 {
                record.op.algorithm = Some(nccl_library::nccl::Algorithm::Tree);
            }
            watched.tally.flow(&record, &host(100));
        }
        watched.refresh();
    }
    let rows: Vec<usize> = watched.state.rows().iter().map(|row| row.members.len()).collect();
    assert_eq!(rows, [32, 32]);
}

/// A recording ends while it is watched: a last reading comes some nanoseconds after the one before.
#[test]
fn rates_are_never_over_a_moment() {
    let mut state = state();
    let table = screen(&state, 80, 24);
    let now = Snapshot { at_ns: 20 * SECOND + 900, statistics: job([40; 4]), gpus: gpus() };
    state.take(now, &subject());
    assert_eq!(screen(&state, 80, 24), table);
    state.least_ns = SECOND / 2;
    for (ns, is_same) in [(SECOND / 2, true), (SECOND / 2 + 1, false)] {
        let now = Snapshot { at_ns: 20 * SECOND + ns, statistics: job([40; 4]), gpus: gpus() };
        state.take(now, &subject());
        assert_eq!(screen(&state, 80, 24) == table, is_same, "{ns}");
    }
}

#[test]
fn a_recording_that_is_over_says_so_and_is_judged_as_a_whole() {
    let mut subject = subject();
    let recording = ShownRecording { begun: "2026-11-28 05:12 UTC".to_owned(), is_over: true };
    subject.recording = Some(recording);
    let mut state = State::new(Shape::default());
    state.take(Snapshot { at_ns: SECOND, ..Snapshot::default() }, &subject);
    state.take(Snapshot { at_ns: 4 * SECOND, statistics: job([9; 4]), gpus: Vec::new() }, &subject);
    for width in [60, 80, 120] {
        let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &state, &subject)).unwrap();
        let cells = terminal.backend().buffer().content();
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        assert!(
            text.contains("recording of 2026-11-28 05:12 UTC, over") && text.contains("lost 0"),
            "{text}"
        );
        assert!(text.contains("by receivers"), "{text}");
    }
}
