//! The view on made-up statistics: rates, lags, rows, and what stands on a screen of 80 columns.

use std::sync::Arc;

use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

use super::{lag::Lag, *};
use flow::{
    made::ops::{Op, host, messages},
    schema::{GpuProcessRow, GpuRow},
    session::Level,
    statistics::{Statistics, Tally},
};

mod narrow;
mod over_time;

const SECOND: u64 = 1_000_000_000;

/// Four ranks, a process each, that did so many ops; rank 2 receives late, as it waits for rank 1.
fn job(ops: [u64; 4]) -> Arc<Statistics> {
    let mut tally = Tally::default();
    for (rank, ops) in (0..).zip(ops) {
        for number in 0..ops {
            let mut record = Op { seq: number * 2, channel: 0, rank }.record();
            let wait = if rank == 1 { 1_000 } else { SECOND / 4 };
            record.peers[0].measured = messages(&[wait]);
            tally.flow(&record, &host(100 + rank.cast_unsigned()));
        }
    }
    tally.snapshot()
}

fn subject() -> Subject {
    let process = |pid| (pid, WatchedProcess::new(pid, "train.py", "2.27.5".to_owned(), None));
    let processes = (100..104).map(process).collect();
    Subject { host: "node-1".to_owned(), level: Some(Level::Steps), processes, recording: None }
}

/// GPU 1 is another job's.
fn gpus() -> Vec<Arc<GpuRow>> {
    let gpu = |gpu: u32, pid: u32| GpuRow {
        gpu,
        period_ns: Some(2 * SECOND),
        sm_percent: Some(99),
        memory_percent: Some(0),
        nvlink_sent: Some(128_000_000_000),
        nvlink_received: Some(0),
        processes: Some(vec![GpuProcessRow { pid, ..GpuProcessRow::default() }]),
        ..GpuRow::default()
    };
    vec![Arc::new(gpu(0, 100)), Arc::new(gpu(1, 999))]
}

fn readings() -> [Snapshot; 2] {
    [(0, [1; 4]), (2, [11, 11, 21, 11])].map(|(seconds, ops)| Snapshot {
        at_ns: seconds * SECOND + 1,
        statistics: job(ops),
        gpus: gpus(),
    })
}

/// What is shown after some refreshes: in the last 2 s each rank did as many ops as in [`readings`].
fn state() -> State {
    let mut state = State::new(Shape { sort: Sort::Ops, is_grouped: true, ..Shape::default() });
    let ops = [[1; 4], [6; 4], [16; 4], [26; 4], [36, 36, 46, 36]];
    for (seconds, ops) in [0, 6, 12, 18, 20].into_iter().zip(ops) {
        let reading = Snapshot { at_ns: seconds * SECOND + 1, statistics: job(ops), gpus: gpus() };
        state.take(reading, &subject());
    }
    state
}

fn between(before: &Snapshot, now: &Snapshot) -> Rates {
    Rates::of_one_interval(before, before, now)
}

/// Presses keys. Returns whether the last one ends the view.
fn press(state: &mut State, keys: &str) -> bool {
    let mut is_end = false;
    for c in keys.chars() {
        let code = match c {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            c => KeyCode::Char(c),
        };
        is_end = state.key(KeyEvent::new(code, KeyModifiers::NONE), &subject()).is_break();
    }
    is_end
}

fn screen(state: &State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, &subject())).unwrap();
    let buffer = terminal.backend().buffer();
    let cells: Vec<&str> = buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect();
    cells.chunks(usize::from(width)).map(|line| line.concat().trim_end().to_owned()).collect()
}

#[test]
fn rates_are_of_the_time_between_and_totals_of_all() {
    let [before, now] = readings();
    let rates = between(&before, &now);
    assert!((rates.interval_s - 2.0).abs() < 1e-9);
    let seen: Vec<(u64, f64, f64)> =
        rates.ranks.iter().map(|rank| (rank.ops, rank.ops_per_s, rank.bytes_per_s)).collect();
    assert_eq!(seen, [(11, 5.0, 20480.0), (11, 5.0, 20480.0), (21, 10.0, 40960.0), (11, 5.0, 20480.0)]);
}

/// Ranks 2, 3 and 0 waited 2.5 s and more in 2 s, over their channels; rank 1 nothing to speak of.
#[test]
fn the_rank_that_others_wait_for_is_marked_and_no_other() {
    let [before, now] = readings();
    let lags: Vec<Option<Lag>> = between(&before, &now).ranks.iter().map(|rank| rank.lag).collect();
    assert_eq!(lags, [None, Some(Lag::WaitedFor(5 * SECOND)), None, None]);
}

#[test]
fn a_rank_that_has_not_launched_what_others_had_a_refresh_ago_is_behind() {
    let reading = |seconds: u64, launched: [u64; 3]| {
        let mut statistics = Tally::default();
        for (rank, launched) in (0..).zip(launched) {
            let pid = 100 + u32::try_from(rank).unwrap();
            statistics.flow(&Op { rank, ..Op::default() }.record(), &host(pid));
            statistics.event(&flow::made::ops::launch(rank, launched), Some(&host(pid)), 0);
        }
        Snapshot { at_ns: seconds * SECOND, statistics: statistics.snapshot(), gpus: Vec::new() }
    };
    let lags = |before, now| -> Vec<Option<Lag>> {
        between(&before, &now).ranks.iter().map(|rank| rank.lag).collect()
    };
    let healthy = lags(reading(1, [50, 49, 50]), reading(2, [70, 69, 68]));
    assert_eq!(healthy, [None; 3], "jitter is no lag");
    let ahead = lags(reading(1, [70, 50, 70]), reading(2, [90, 68, 90]));
    assert_eq!(ahead, [None; 3], "hosts run ahead of their GPUs");
    let one = lags(reading(1, [50, 40, 50]), reading(2, [50, 40, 50]));
    assert_eq!(one, [None, Some(Lag::Behind(10)), None]);
}

#[test]
fn all_that_matters_is_on_80_columns_and_24_lines() {
    let state = state();
    let lines = screen(&state, 80, 24);
    assert!(lines.iter().all(|line| line.chars().count() <= 80));
    let text = lines.join("\n");
    assert!(lines[0].contains("4 processes  4 ranks  lost 0"), "{text}");
    assert!(lines[2].starts_with("COMM"), "{text}");
    // Most ops first.
    assert!(lines[3].contains(" 2/4") && lines[3].contains("10") && lines[3].contains("41.0 KB"), "{text}");
    let late = lines.iter().find(|line| line.contains(" 1/4")).unwrap();
    assert!(late.contains("by receivers") && late.contains("RING/SIMPLE 100%"), "{text}");
    assert!(text.contains("RECV 1") && text.contains("250ms network"), "{text}");
    assert!(lines[23].contains("q quit"), "{text}");
    // No room for details, or for most of the screen: no panic.
    for (width, height) in [(80, 10), (20, 5), (10, 2), (1, 1), (250, 60)] {
        screen(&state, width, height);
    }
    assert!(screen(&state, 200, 50).join("\n").contains("AllReduce RING/SIMPLE 100%"));
}

#[test]
fn gpus_of_watched_processes_are_shown_where_there_is_room() {
    let mut state = state();
    let text = |state: &State, height| screen(state, 120, height).join("\n");
    let tall = text(&state, 40);
    assert!(tall.contains("GPU 0  99 % busy, 0 % memory  NVLink 64.0 GB/s out, 0 B/s in"), "{tall}");
    assert!(!tall.contains("GPU 1"), "another job's: {tall}");
    assert!(!text(&state, 24).contains("GPU 0"));
    press(&mut state, "u");
    assert!(text(&state, 24).contains("GPU 0") && !text(&state, 40).contains("GPU 0"));
}

#[test]
fn keys_sort_filter_freeze_and_change_the_view() {
    let mut state = state();
    assert!(!press(&mut state, "s"));
    assert_eq!(state.shape.sort, Sort::Bytes);
    press(&mut state, "sss");
    assert_eq!(state.shape.sort, Sort::Comm);
    assert!(screen(&state, 80, 24)[3].contains(" 0/4"));
    press(&mut state, "r");
    assert!(screen(&state, 80, 24)[3].contains(" 3/4"));

    press(&mut state, "/q102\n");
    assert!(screen(&state, 80, 24)[2].contains("no row fits"), "keys are text while a filter is typed");
    let _ = state.key(KeyEvent::new(KeyCode::Char('/'), KeyModifiers::NONE), &subject());
    for _ in 0..4 {
        let _ = state.key(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE), &subject());
    }
    press(&mut state, "102\n");
    assert_eq!(state.rows.len(), 1);

    press(&mut state, "f");
    let frozen = screen(&state, 80, 24);
    assert!(frozen[1].contains("FROZEN"));
    state.take(Snapshot { at_ns: 25 * SECOND, statistics: job([90; 4]), gpus: Vec::new() }, &subject());
    assert_eq!(screen(&state, 80, 24), frozen);

    press(&mut state, "/");
    let _ = state.key(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE), &subject());
    press(&mut state, "\t");
    assert!(screen(&state, 80, 24)[3].contains("4 of 4"), "one communicator");
    press(&mut state, "\t");
    assert_eq!(state.rows.len(), 4, "four processes");

    press(&mut state, "?");
    assert!(screen(&state, 80, 24).join("\n").contains("this help"));
    assert!(!press(&mut state, "q"), "it closes the help");
    let escape = KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE);
    assert!(state.key(escape, &subject()).is_continue(), "a step back from the table leads nowhere");
    assert!(press(&mut state, "q"));
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(state.key(interrupt, &subject()).is_break(), "raw mode makes no signal of it");
}

/// Two jobs, whose processes are of two pods; the larger communicator of each is first, whatever is busier.
#[test]
fn rows_stand_by_job_communicator_and_rank_and_stay_there() {
    let reading = |seconds: u64, busy: [u64; 6]| {
        let mut tally = Tally::default();
        let ranks = [(0, 7, 2), (1, 7, 2), (0, 5, 4), (0, 9, 2), (1, 9, 2), (2, 4, 4)];
        for ((at, ops), (rank, hash, n_ranks)) in (0..).zip(busy).zip(ranks) {
            for number in 0..ops {
                let mut record = Op { seq: number * 2, channel: 0, rank }.record();
                (record.comm.hash, record.comm.n_ranks) = (Some(hash), n_ranks);
                tally.flow(&record, &host(100 + u32::from(at >= 3)));
            }
        }
        Snapshot { at_ns: seconds * SECOND + 1, statistics: tally.snapshot(), gpus: Vec::new() }
    };
    let mut subject = subject();
    subject.processes.retain(|pid, _| *pid < 102);
    for (process, pod) in subject.processes.values_mut().zip(["b", "a"]) {
        process.member.named = Some(format!("job-{pod}"));
    }
    let of = |busy: [u64; 6]| -> Vec<(String, String, String)> {
        let rates = between(&reading(0, [1; 6]), &reading(2, busy));
        let rows = rows(&rates, &subject, &Shape::default());
        rows.into_iter().map(|row| (row.job, row.comm[16..].to_owned(), row.rank)).collect()
    };
    let calm = of([2; 6]);
    let named: Vec<(&str, &str, &str)> =
        calm.iter().map(|(job, comm, rank)| (job.as_str(), comm.as_str(), rank.as_str())).collect();
    let expected = [
        ("job-a", "04", "2/4"),
        ("job-a", "09", "0/2"),
        ("job-a", "09", "1/2"),
        ("job-b", "05", "0/4"),
        ("job-b", "07", "0/2"),
        ("job-b", "07", "1/2"),
    ];
    assert_eq!(named, expected);
    for busy in [[9, 2, 3, 4, 5, 6], [1, 7, 1, 7, 1, 7]] {
        assert_eq!(of(busy), calm, "rows do not move with their rates");
    }
}

/// Every digit that is on a wide screen is on a narrow one, or its whole column is not.
#[test]
fn columns_are_left_out_and_digits_never_cut() {
    let mut state = state();
    let values = |width: u16| -> Vec<String> {
        let lines = screen(&state, width, 24);
        lines[3..7].iter().flat_map(|line| line.split_whitespace()).map(str::to_owned).collect()
    };
    let wide = values(200);
    for width in [60, 80, 120] {
        let narrow = values(width);
        for word in narrow.iter().filter(|word| word.contains(|c: char| c.is_ascii_digit())) {
            // A hash is shown by its beginning.
            assert!(
                wide.iter().any(|whole| whole == word || whole.starts_with(&format!("0x{word}"))),
                "{word}"
            );
        }
        assert!(narrow.contains(&"1/4".to_owned()) && narrow.contains(&"receivers".to_owned()), "{width}");
    }
    for width in [60, 80] {
        let text = screen(&state, width, 24).join("\n");
        assert!(text.contains("41.0 KB") && text.contains("20.5 KB") && !text.contains("NAME"), "{text}");
        let heading = &screen(&state, width, 24)[0];
        assert!(heading.contains("4 ranks  lost 0") && !heading.ends_with("los"), "{heading}");
    }
    assert!(screen(&state, 200, 24)[2].contains("NAME"));
    press(&mut state, "\n");
    assert!(screen(&state, 60, 24).join("\n").contains("41.0 KB"), "on the page, too");
}

/// 64 ranks of which one is half as busy; another rank is behind.
#[test]
fn many_ranks_that_do_the_same_are_one_row() {
    let reading = |seconds: u64, ops: u64| {
        let mut tally = Tally::default();
        for rank in 0..64 {
            for number in 0..if rank == 9 { ops / 2 } else { ops } {
                let mut record = Op { seq: number * 2, channel: 0, rank }.record();
                record.comm.n_ranks = 64;
                tally.flow(&record, &host(100 + rank.cast_unsigned()));
            }
        }
        Snapshot { at_ns: seconds * SECOND + 1, statistics: tally.snapshot(), gpus: Vec::new() }
    };
    let mut state = State::new(Shape { is_grouped: true, ..Shape::default() });
    for reading in [reading(0, 2), reading(2, 22)] {
        state.take(reading, &Subject::default());
    }
    let named = |state: &State| -> Vec<(String, usize, f64)> {
        state.rows().iter().map(|row| (row.rank.clone(), row.members.len(), row.ops_per_s)).collect()
    };
    assert_eq!(named(&state), [("0-8, 10-63".to_owned(), 63, 10.0), ("9/64".to_owned(), 1, 5.0)]);
    let text = screen(&state, 80, 24).join("\n");
    assert!(text.contains("63 procs"), "{text}");
    press(&mut state, "e");
    assert_eq!(state.rows().len(), 64);
    assert!(screen(&state, 80, 24)[1].contains("rows 1-14 of 64"), "{:?}", screen(&state, 80, 24)[1]);
    press(&mut state, "G");
    assert!(screen(&state, 80, 24)[1].contains("rows 51-64 of 64"));
}

#[test]
fn a_job_that_has_ended_is_said_to_have() {
    let state = state();
    let mut subject = subject();
    subject.processes.get_mut(&100).unwrap().has_exited = true;
    assert!(!subject.has_ended());
    subject.processes.values_mut().for_each(|process| process.has_exited = true);
    assert!(subject.has_ended());
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, &state, &subject)).unwrap();
    let first: String =
        terminal.backend().buffer().content()[..80].iter().map(ratatui::buffer::Cell::symbol).collect();
    assert!(first.contains("ENDED"), "{first}");
}

/// Rates of a rank at three refreshes; the highest fills the line's height.
#[test]
fn a_row_has_a_history_and_a_page_of_its_own() {
    let mut state = State::new(Shape::default());
    for (seconds, ops) in [(0, [1; 4]), (2, [3, 11, 1, 1]), (4, [5, 51, 1, 1]), (6, [7, 55, 1, 1])] {
        let statistics = job(ops);
        state.take(Snapshot { at_ns: seconds * SECOND + 1, statistics, gpus: Vec::new() }, &subject());
    }
    press(&mut state, "j");
    let rates = state.history_of(&state.rows[1], |point| point.ops_per_s);
    assert_eq!(rates, [5.0, 20.0, 2.0]);
    let lines = screen(&state, 80, 24);
    // A quarter of 8 is 2.
    let line = lines.iter().find(|line| line.contains("peak 20")).unwrap();
    assert!(line.contains("▂█"), "{lines:?}");
    assert!(!press(&mut state, "\n"));
    let page = screen(&state, 80, 24).join("\n");
    assert!(page.contains("rank 1/4") && page.contains("process 101 (train.py) on node-1"), "{page}");
    assert!(page.contains("NCCL 2.27.5") && page.contains("RECV 0") && page.contains("network"), "{page}");
    assert!(page.contains("peak 20") && page.contains("peak 81.9 KB"), "{page}");
    press(&mut state, "j");
    assert!(screen(&state, 80, 24)[0].contains("rank 2/4"));
    for (width, height) in [(80, 10), (20, 5), (10, 2), (1, 1), (250, 60)] {
        screen(&state, width, height);
    }
    let escape = KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE);
    assert!(state.key(escape, &subject()).is_continue(), "it closes the page");
    assert!(screen(&state, 80, 24)[2].starts_with("COMM"));
    press(&mut state, "v");
    let busiest = state.history_of(&state.rows[0], |point| point.ops_per_s);
    assert_eq!(busiest, [5.0, 20.0, 2.0], "of a communicator, its busiest rank");
}
