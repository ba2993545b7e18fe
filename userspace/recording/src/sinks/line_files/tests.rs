use flow::{
    made::ops::{Op as MadeOp, host},
    model::Rows,
};
use nccl_library::nccl::Pattern;

use super::*;

/// Returns the listed and the forgotten ranks, after so many short processes beside one that goes on.
fn after(processes: u32) -> (usize, u64) {
    let folder = tempfile::tempdir().unwrap();
    let dir = OutputDir::open(folder.path()).unwrap();
    let mut files = LineFiles::new(dir, Layout::ByProcess);
    files = files.forgetting_ended(false);
    let mut rows = Rows::default();
    for pid in 0..=processes {
        files.op(&rows.op(&MadeOp::default().record(), &host(1000 + pid)));
        if pid > 0 {
            files.close_process(1000 + pid);
        }
    }
    files.close();
    let ranks = files.ranks();
    assert!(ranks.iter().any(|rank| rank.pid == 1000), "it goes on to the end");
    assert!(files.flow_ranks.written > 0 && files.files().is_empty());
    (ranks.len(), files.forgotten)
}

/// Returns this process's lines in files, and its lines in none, as it had most files.
fn lines_of(files: &mut LineFiles, pid: u32) -> (u64, u64) {
    files.flush();
    let ranks = files.ranks();
    let of = ranks.iter().filter(|rank| rank.pid == pid);
    let over = files.over_share().find(|(of, _)| *of == pid).map_or(0, |(_, lines)| lines);
    (of.map(|rank| rank.proxy_flow_lines).sum(), over)
}

#[test]
fn a_process_with_many_ranks_gives_files_up_for_others_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = OutputDir::open(folder.path()).unwrap();
    let mut files = LineFiles::new(dir, Layout::ByProcess);
    files.most = 16;
    let mut rows = Rows::default();
    let mut op = |files: &mut LineFiles, pid: u32, rank: i32| {
        let made = MadeOp { rank, ..MadeOp::default() };
        files.op(&rows.op(&made.record(), &host(pid)));
    };
    (0..20).for_each(|rank| op(&mut files, 1, rank));
    assert_eq!(lines_of(&mut files, 1), (16, 4), "it has all there are, and no more");
    assert_eq!(files.take_errors().len(), 1);
    for pid in [2, 3] {
        (0..5).for_each(|rank| op(&mut files, pid, rank));
        assert_eq!(lines_of(&mut files, pid), (5, 0), "others lose nothing");
    }
    // The first six are still written; the others are complete as they are.
    (0..16).for_each(|rank| op(&mut files, 1, rank));
    assert_eq!(lines_of(&mut files, 1), (16 + 6, 4 + 10));
    // A process that would have as many loses its own, and takes none.
    (5..9).for_each(|rank| op(&mut files, 2, rank));
    assert_eq!((lines_of(&mut files, 2), lines_of(&mut files, 3)), ((5, 4), (5, 0)));
    // Files of a process that has ended are for others; those that were given up stay complete.
    files.close_process(3);
    (0..16).for_each(|rank| op(&mut files, 1, rank));
    assert_eq!(lines_of(&mut files, 1), (22 + 6, 14 + 10));
    op(&mut files, 2, 5);
    assert_eq!(lines_of(&mut files, 2), (6, 4));
    files.close();
    assert_eq!(files.lost().lines, 14 + 10 + 4);
    assert!(files.given_up.is_empty());
}

#[test]
fn ranks_of_processes_that_ended_long_ago_are_forgotten_and_counted() {
    assert_eq!(after(900), (901, 0));
    assert_eq!(after(3000), (MAX_ENDED + 1, 2000));
}

/// Channels come one after the other, so that lines of one op are far apart.
#[test]
fn an_op_is_counted_once_whatever_channels_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = LineFiles::new(OutputDir::open(folder.path()).unwrap(), Layout::ByProcess);
    let mut rows = Rows::default();
    for channel in 0..3 {
        for seq in [4, 6, 8] {
            let made = MadeOp { seq, channel, ..MadeOp::default() };
            files.op(&rows.op(&made.record(), &host(1)));
        }
        let mut send = MadeOp { seq: 1, channel, ..MadeOp::default() }.record();
        send.op.pattern = Pattern::Send;
        files.op(&rows.op(&send, &host(1)));
    }
    files.flush();
    let ranks = files.ranks();
    let [rank] = &ranks[..] else { panic!("{ranks:?}") };
    let counted = (rank.collectives, rank.sends_receives, rank.launches, rank.proxy_flow_lines);
    assert_eq!(counted, (3, 1, 0, 12));
}

/// It has the number of the captured op, whose channel it is not.
#[test]
fn each_replay_by_a_launch_of_its_graph_is_an_op() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = LineFiles::new(OutputDir::open(folder.path()).unwrap(), Layout::ByCommunicator);
    let mut rows = Rows::default();
    for launch in [None, Some(1), Some(2), Some(3)] {
        let mut op = rows.op(&MadeOp { seq: 4, ..MadeOp::default() }.record(), &host(1));
        op.row.graph_launch = launch;
        files.op(&op);
        (op.row.seq, op.row.pattern) = (7, Pattern::Send);
        files.op(&op);
    }
    files.close();
    let [rank] = &files.ranks()[..] else { panic!("one rank") };
    assert_eq!((rank.collectives, rank.sends_receives, rank.proxy_flow_lines), (4, 4, 8));
    let flow_rank =
        std::fs::read_to_string(folder.path().join(&rank.folder).join("flow_rank1.json")).unwrap();
    assert_eq!(flow_rank.matches("\"channels\":1,").count(), 2, "{flow_rank}");
}
