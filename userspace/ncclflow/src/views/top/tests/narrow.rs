//! What stands on small screens, and how marks, the help and the selection look.

use ratatui::{
    buffer::Buffer,
    style::{Color, Modifier},
};

use super::{columns::fitting, once::mix, rates::KindRates, *};

const MARK: Option<Lag> = Some(Lag::WaitedFor(SECOND));

/// 64 ranks, a row each.
fn many() -> State {
    let reading = |seconds: u64| {
        let mut tally = Tally::default();
        for rank in 0..64 {
            for number in 0..seconds {
                let mut record = Op { seq: number * 2, channel: 0, rank }.record();
                record.comm.n_ranks = 64;
                tally.flow(&record, &host(100 + rank.cast_unsigned() / 8));
                tally.event(&flow::made::ops::launch(rank, 29_031), Some(&host(100)), 0);
            }
        }
        Snapshot { at_ns: seconds * SECOND, statistics: tally.snapshot(), gpus: Vec::new() }
    };
    let mut state = State::new(Shape::default());
    for seconds in 1..4 {
        state.take(reading(seconds), &subject());
    }
    state
}

fn buffer(state: &State) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, state, &subject())).unwrap();
    terminal.backend().buffer().clone()
}

#[test]
fn frozen_and_the_filter_stay_on_a_narrow_screen() {
    let mut state = many();
    press(&mut state, "/64\n");
    press(&mut state, "f");
    let line = screen(&state, 60, 24).swap_remove(1);
    assert!(line.contains("filter: 64  FROZEN"), "{line}");
    assert!(line.contains("rows 1-14 of 64") || !line.contains("rows"), "{line}");
    press(&mut state, "/");
    press(&mut state, &"x".repeat(60));
    let line = screen(&state, 60, 24).swap_remove(1);
    assert!(line.ends_with("xx_  FROZEN"), "{line}");
}

#[test]
fn a_rank_that_lags_is_named_where_its_row_is_not_on_the_screen() {
    let mut state = many();
    state.rates.ranks[60].lag = MARK;
    state.arrange(&subject());
    let heading = |state: &State| screen(state, 60, 24).swap_remove(0);
    assert!(heading(&state).contains("waited for: rank 60 (below)"), "{}", heading(&state));
    state.rates.ranks[61].lag = MARK;
    state.arrange(&subject());
    assert!(heading(&state).contains("waited for: rank 60 (below), 1 more"), "{}", heading(&state));
    press(&mut state, "G");
    assert!(!heading(&state).contains("waited"), "{}", heading(&state));
    state.rates.ranks[60].lag = None;
    state.rates.ranks[61].lag = None;
    state.rates.ranks[0].lag = MARK;
    state.arrange(&subject());
    assert!(heading(&state).contains("waited for: rank 0 (above)"), "{}", heading(&state));
    press(&mut state, "/9/64\n");
    assert!(heading(&state).contains("waited for: rank 0 (filtered out)"), "{}", heading(&state));
}

#[test]
fn a_row_of_several_ranks_says_which_one_lags() {
    let mut state = many();
    state.rates.ranks[15].lag = MARK;
    press(&mut state, "vv");
    let row = state.rows()[1].clone();
    assert_eq!((row.pid.as_str(), row.waited_for().as_str()), ("101", "rank 15 by receivers"));
    assert!(screen(&state, 60, 24).join("\n").contains("rank 15 by receivers"));
    press(&mut state, "j\n");
    let page = screen(&state, 80, 24).join("\n");
    assert!(page.contains("Others wait long to receive from rank 15, and it"), "{page}");
}

#[test]
fn no_column_moves_when_a_mark_appears() {
    for view in ["", "v", "vv"] {
        let mut state = many();
        press(&mut state, view);
        let headings = [60, 80, 120].map(|width| screen(&state, width, 24).swap_remove(2));
        state.rates.ranks[15].lag = MARK;
        state.arrange(&subject());
        assert_eq!([60, 80, 120].map(|width| screen(&state, width, 24).swap_remove(2)), headings, "{view}");
    }
}

/// A process with two communicators, of which one is busier.
#[test]
fn a_process_has_the_kinds_of_all_its_communicators() {
    let mut tally = Tally::default();
    for (hash, ops) in [(7, 10), (8, 30)] {
        for number in 0..ops {
            let mut record = Op { seq: number * 2, channel: 0, rank: 0 }.record();
            record.comm.hash = Some(hash);
            if number % 10 == 0 {
                record.op.algorithm = Some(nccl_library::nccl::Algorithm::Tree);
            }
            tally.flow(&record, &host(100));
        }
    }
    let now = Snapshot { at_ns: 2 * SECOND, statistics: tally.snapshot(), gpus: Vec::new() };
    let rates = between(&Snapshot { at_ns: SECOND, ..Snapshot::default() }, &now);
    let shape = Shape { view: View::Processes, ..Shape::default() };
    let rows = rows(&rates, &subject(), &shape);
    let kinds: Vec<(String, f64)> =
        rows[0].kinds.iter().map(|kind| (kind.algorithm_and_protocol(), kind.ops_per_s)).collect();
    assert_eq!(kinds, [("RING/SIMPLE".to_owned(), 36.0), ("TREE/SIMPLE".to_owned(), 4.0)]);
    assert!((rows[0].ops_per_s - 40.0).abs() < 1e-9);
    assert_eq!(rates.communicators(), ["0x0000000000000007", "0x0000000000000008"]);
}

/// Every number of a wide page is on a narrow one.
#[test]
fn a_page_cuts_no_number() {
    let mut state = many();
    press(&mut state, "\n");
    let page = |width| screen(&state, width, 24).join(" ");
    for width in [40, 60, 80, 120] {
        let page = page(width);
        for whole in ["NCCL has launched 29031 collectives", "NCCL 2.27.5", "0x0000000000000007", "node-1"] {
            assert!(page.contains(whole), "{width}: {page}");
        }
    }
    let waits = ["12.5ms network", "3.25ms GPU ready"].map(str::to_owned);
    assert_eq!(fitting(waits, 20), "12.5ms network");
}

#[test]
fn a_small_page_has_a_row_below_each_heading() {
    let mut state = state();
    press(&mut state, "\n");
    for height in 8..16 {
        let lines = screen(&state, 80, height);
        for (heading, below) in [("OPERATION", "AllReduce"), ("PEER", "RECV")] {
            let at = lines.iter().position(|line| line.starts_with(heading));
            let is_there = at.is_none_or(|at| lines[at + 1].contains(below));
            assert!(is_there, "{height}: {lines:?}");
        }
    }
    assert!(screen(&state, 80, 10).join("\n").contains("AllReduce"));
}

#[test]
fn the_help_is_aligned_and_its_end_can_be_reached() {
    let mut state = state();
    press(&mut state, "?");
    let text = |state: &State, height| screen(state, 80, height).join("\n");
    assert!(text(&state, 50).contains("│ q, Ctrl-C"), "{}", text(&state, 50));
    assert!(!text(&state, 12).contains("nothing else here is measured"));
    press(&mut state, "G");
    assert!(text(&state, 12).contains("nothing else here is measured"), "{}", text(&state, 12));
    press(&mut state, "k");
    assert!(!text(&state, 12).contains("nothing else here is measured"), "one line up");
    press(&mut state, "gx");
    assert!(!text(&state, 12).contains("Ctrl-C"), "any other key closes it");
    press(&mut state, "?");
    let narrow = screen(&state, 60, 60).join("\n");
    assert!(narrow.contains("detached") && narrow.contains("│ row  "), "no word is cut: {narrow}");
}

#[test]
fn shares_of_kinds_that_look_alike_are_added_up() {
    let kind = |coll: &str, ops_per_s| KindRates {
        coll: Some(coll.to_owned()),
        algorithm: Some("RING"),
        protocol: Some("SIMPLE"),
        ops: 1,
        ops_per_s,
        bytes: 0,
        bytes_per_s: 0.0,
        unsized_ops: 0,
    };
    let kinds = [kind("AllReduce", 5.0), kind("AllGather", 5.0)];
    assert_eq!(mix(&kinds, 20), "RING/SIMPLE 100%");
    assert_eq!(mix(&kinds, 80), "AllReduce RING/SIMPLE 50%, AllGather RING/SIMPLE 50%");
}

#[test]
fn the_selected_row_can_be_read() {
    let mut state = state();
    assert!(state.rows()[0].idle_s > 5.0);
    let first = |buffer: &Buffer| buffer[(0, 3)].clone();
    let cell = first(&buffer(&state));
    assert_eq!((cell.bg, cell.fg), (Color::Indexed(238), Color::Reset), "also where it is silent");
    assert_eq!(buffer(&state)[(0, 4)].fg, Color::DarkGray);
    state.is_plain = true;
    let plain = buffer(&state);
    assert!(plain.content().iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)));
    assert!(first(&plain).modifier.contains(Modifier::REVERSED));
    assert!(!plain[(0, 4)].modifier.contains(Modifier::REVERSED));
}

#[test]
fn rows_by_lag_stay_where_they_are_while_nothing_lags() {
    let order = |idle: [f64; 4]| -> Vec<String> {
        let [before, now] = readings();
        let mut rates = between(&before, &now);
        for (rank, idle_s) in rates.ranks.iter_mut().zip(idle) {
            (rank.lag, rank.idle_s) = (None, idle_s);
        }
        let shape = Shape { sort: Sort::Lag, ..Shape::default() };
        rows(&rates, &subject(), &shape).into_iter().map(|row| row.rank).collect()
    };
    assert_eq!(order([0.1, 0.4, 1.2, 3.0]), ["0/4", "1/4", "2/4", "3/4"]);
    assert_eq!(order([0.1, 7.2, 7.9, 9.0]), ["3/4", "1/4", "2/4", "0/4"]);
}
