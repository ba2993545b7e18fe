use crate::{
    CommunicatorReport, Motion, ProcessReport, RankReport,
    activity::Activity,
    rank_gpu::Work,
    verdict::{
        Kind, State, Verdict, judge, judge_all,
        tests::made::{check, lazy, over_nvlink, rank, waiting},
    },
};
use torch_history::{Noted, NotedCall, NotedKind, NotedMessage, NotedMessages, NotedWay};

const SECOND: i64 = 1_000_000_000;
const READ: i64 = 1_000 * SECOND;

/// Makes calls of a rank, each of a kind by its text, a second apart; the latest was 12 s before. `completed`
/// is the number of completed ones.
fn noted(calls: &[&str], completed: usize) -> Noted {
    let kind = |what: &&str| NotedKind {
        what: format!("{what} (model.py:88)"),
        // The text without the line of code.
        must_match: (*what).to_owned(),
    };
    let call = |at: usize| NotedCall {
        seq: 4701 + at as u64,
        kind: at,
        called_ns: READ - (12 + 10 - i64::try_from(at).unwrap()) * SECOND,
        completed_ns: (at < completed).then_some(READ - 11 * SECOND),
    };
    Noted {
        group: "\"tensor_parallel\" (3)".to_owned(),
        read_ns: READ,
        noticed_ns: (completed > 0).then_some(READ - 11 * SECOND),
        is_whole: true,
        kinds: calls.iter().map(kind).collect(),
        calls: (0..calls.len()).map(call).collect(),
        messages: Vec::new(),
    }
}

/// A rank that has called so many sends to a peer, and receives from it; the last receive has not ended.
fn with_messages(peer: u32, sent: u64, received: u64, called_before: i64) -> Noted {
    let what = "recv [1024] Float (model.py:9)".to_owned();
    let open = NotedMessage { what, called_ns: READ - called_before * SECOND };
    let receives = NotedWay { called: received, open: (received > 0).then_some(open) };
    let sends = NotedWay { called: sent, open: None };
    Noted { messages: vec![NotedMessages { peer, sends, receives }], ..noted(&[REDUCE], 1) }
}

const REDUCE: &str = "all_reduce [1024] Float";
const GATHER: &str = "all_gather [1024] Float";
const ALL_TO_ALL: &str = "all_to_all [1024] Float";

fn with(ranks: [RankReport; 4], notes: [Noted; 4]) -> Vec<RankReport> {
    ranks.into_iter().zip(notes).map(|(rank, noted)| RankReport { noted: Some(noted), ..rank }).collect()
}

fn says(verdict: &Verdict, words: &str) {
    assert!(verdict.evidence.iter().any(|sentence| sentence.contains(words)), "`{words}`: {verdict:#?}");
}

/// All-to-alls are sends and receives: NCCL counts none of them, and says that nothing is wrong.
#[test]
fn a_rank_that_is_behind_is_named_where_the_counters_cannot_tell() {
    let ranks = || [0, 1, 2, 3].map(|number| over_nvlink(number, 0, None));
    let (ahead, behind) = (noted(&[ALL_TO_ALL, ALL_TO_ALL], 1), noted(&[ALL_TO_ALL], 1));
    let notes = || [ahead.clone(), ahead.clone(), behind.clone(), ahead.clone()];
    assert_eq!(judge(&ranks(), &[]).state, State::Healthy);
    let verdict = judge(&with(ranks(), notes()), &[]);
    check(
        &verdict,
        State::Stuck,
        &[2],
        &[0, 1, 3],
        "rank 2 has not called collective 4702 of \"tensor_parallel\" (3), which ranks 0, 1, 3 called \
         21.0 s before, by torch's flight recorder: all_to_all [1024] Float (model.py:88)",
    );
    assert_eq!(verdict.kind, Some(Kind::NotJoined));
    says(&verdict, "rank 2 completed 4701 (all_to_all");
    says(&verdict, "noticed is 11.0 s old, and the watchdog can hang, too");
    // The rank works elsewhere.
    let activity = Activity { seconds: 1.0, cpu_seconds: Some(0.9), ..Activity::default() };
    let busy = ProcessReport { pid: 102, activity: Some(activity), ..ProcessReport::default() };
    assert_eq!(judge(&with(ranks(), notes()), &[busy]).state, State::Waiting);
    // Incomplete notes decide nothing, nor do those of only some ranks.
    let mut torn = with(ranks(), notes());
    torn[1].noted.as_mut().unwrap().is_whole = false;
    assert_eq!(judge(&torn, &[]).state, State::Healthy);
    torn[1].noted = None;
    assert_eq!(judge(&torn, &[]).state, State::Healthy);
    // A communicator that moves is not stuck.
    let mut moving = with(ranks(), notes());
    moving[0].motion.counters_moved = true;
    assert_eq!(judge(&moving, &[]).state, State::Healthy);
    // The others called a moment ago.
    let mut early = with(ranks(), notes());
    for rank in &mut early {
        rank.noted.as_mut().unwrap().read_ns = READ - 21 * SECOND;
    }
    assert_eq!(judge(&early, &[]).state, State::Healthy);
}

#[test]
fn of_several_that_are_behind_the_last_one_is_waited_for() {
    let ranks = [0, 1, 2, 3].map(|number| over_nvlink(number, 0, None));
    let [three, two, none] = [
        noted(&[ALL_TO_ALL; 3], 1),
        noted(&[ALL_TO_ALL; 2], 1),
        Noted { calls: Vec::new(), ..noted(&[], 0) },
    ];
    let verdict =
        judge(&with(ranks.clone(), [three.clone(), two.clone(), three.clone(), three.clone()]), &[]);
    check(&verdict, State::Stuck, &[1], &[0, 2, 3], "rank 1 has not called collective 4703");
    let verdict = judge(&with(ranks, [three.clone(), two, none, three]), &[]);
    check(&verdict, State::Stuck, &[2], &[0, 1, 3], "rank 2 has not called collective 4701");
    says(&verdict, "rank 2 called none");
}

#[test]
fn another_operation_or_size_under_one_number_is_named_with_both_lines() {
    let ranks = || [0, 1, 2, 3].map(|number| over_nvlink(number, 4, Some(Work::Waits)));
    assert_eq!(judge(&ranks(), &[]).state, State::Unknown);
    let (most, other) = (noted(&[REDUCE, REDUCE], 1), noted(&[REDUCE, "all_reduce [512] Float"], 1));
    let verdict = judge(&with(ranks(), [most.clone(), other.clone(), most.clone(), most.clone()]), &[]);
    check(&verdict, State::Stuck, &[1], &[0, 2, 3], "collective 4702 of \"tensor_parallel\" (3) differs");
    assert_eq!(verdict.kind, Some(Kind::OtherOperation));
    says(&verdict, "ranks 0, 2, 3 called all_reduce [1024] Float (model.py:88)");
    says(&verdict, "rank 1 called all_reduce [512] Float (model.py:88)");
    // Over a network it has not joined. That it spins in its own call is no progress.
    let late = [waiting(0), rank(1, 4, Vec::new()), waiting(2), waiting(3)];
    let spins = |pid| {
        let activity = Activity { seconds: 1.0, cpu_seconds: Some(0.9), ..Activity::default() };
        ProcessReport { pid, activity: Some(activity), ..ProcessReport::default() }
    };
    assert_eq!(judge(&late, &[spins(101)]).state, State::Waiting);
    let late = with(late, [most.clone(), other.clone(), most.clone(), most.clone()]);
    let verdict = judge(&late, &[spins(101)]);
    check(&verdict, State::Stuck, &[1], &[0, 2, 3], "collective 4702 of \"tensor_parallel\" (3) differs");
    assert_eq!(verdict.kind, Some(Kind::OtherOperation));
    // The notes tell which explanation of the GPUs is right.
    let mut idle = ranks();
    idle[0] = over_nvlink(0, 4, Some(Work::Idle));
    let plain = judge(&idle, &[]);
    assert_eq!((plain.kind, &*plain.culprits), (Some(Kind::GpuIdle), &[0][..]));
    let verdict = judge(&with(idle, [most.clone(), other.clone(), most.clone(), most.clone()]), &[]);
    assert_eq!((verdict.kind, &*verdict.culprits), (Some(Kind::OtherOperation), &[1][..]));
    // By the notes all is over here: a GPU that runs something does so for another communicator.
    let mut elsewhere = ranks();
    elsewhere[0] = over_nvlink(0, 4, Some(Work::Idle));
    let all = noted(&[REDUCE, REDUCE], 2);
    let verdict = judge(&with(elsewhere.clone(), [all.clone(), all.clone(), all.clone(), all.clone()]), &[]);
    assert_eq!(verdict.state, State::Healthy, "{verdict:#?}");
    says(&verdict, "all that ranks called of \"tensor_parallel\" (3) has ended");
    let one_goes_on = noted(&[REDUCE, REDUCE], 1);
    let verdict = judge(&with(elsewhere, [all.clone(), all.clone(), all, one_goes_on]), &[]);
    assert_eq!(verdict.state, State::Stuck, "{verdict:#?}");
    // A difference that all have completed hangs nobody.
    let over = noted(&[REDUCE, "all_reduce [512] Float"], 2);
    let done = noted(&[REDUCE, REDUCE], 2);
    let verdict = judge(&with(ranks(), [done.clone(), over, done.clone(), done]), &[]);
    assert_eq!(verdict.state, State::Unknown, "{verdict:#?}");
}

#[test]
fn notes_never_overrule_what_was_measured_and_disagreement_is_said() {
    let (ahead, behind) = (noted(&[REDUCE, GATHER], 1), noted(&[REDUCE], 1));
    // Counters name rank 1, the notes rank 2.
    let ranks =
        || [rank(0, 5, Vec::new()), rank(1, 4, Vec::new()), rank(2, 5, Vec::new()), rank(3, 5, Vec::new())];
    let verdict = judge(&with(ranks(), [ahead.clone(), ahead.clone(), behind.clone(), ahead.clone()]), &[]);
    check(
        &verdict,
        State::Stuck,
        &[1],
        &[0, 2, 3],
        "torch's flight recorder points to rank 2, and NCCL's memory to rank 1",
    );
    // Counters and notes name the same rank.
    let verdict = judge(&with(ranks(), [ahead.clone(), behind.clone(), ahead.clone(), ahead.clone()]), &[]);
    check(&verdict, State::Stuck, &[1], &[0, 2, 3], "all_gather [1024] Float (model.py:88)");
    assert!(!verdict.evidence.iter().any(|sentence| sentence.contains("both")), "{verdict:#?}");
    // By the notes all have called the same.
    let same = || [ahead.clone(), ahead.clone(), ahead.clone(), ahead.clone()];
    check(
        &judge(&with(ranks(), same()), &[]),
        State::Stuck,
        &[1],
        &[0, 2, 3],
        "torch's flight recorder says otherwise",
    );
    // An op in flight names rank 1 as well.
    let flying = [waiting(0), lazy(1), waiting(2), waiting(3)];
    let verdict = judge(&with(flying, [ahead.clone(), ahead.clone(), ahead.clone(), behind.clone()]), &[]);
    check(&verdict, State::Stuck, &[1], &[0, 2, 3], "points to rank 3, and NCCL's memory to rank 1");
    // The counters are equal, and would not be if one more had been launched.
    let equal = [0, 1, 2, 3].map(|number| over_nvlink(number, 5, None));
    let verdict = judge(&with(equal, [ahead.clone(), ahead.clone(), behind.clone(), ahead.clone()]), &[]);
    check(&verdict, State::Unknown, &[], &[], "rank 2 has not called collective 4702");
    says(&verdict, "NCCL's own memory says otherwise");
}

/// NCCL does not count sends and receives, and its GPUs only tell that something waits.
#[test]
fn a_receive_that_no_send_was_called_for_names_the_rank_that_should_send() {
    let ranks = || [0, 1, 2, 3].map(|number| over_nvlink(number, 4, Some(Work::Waits)));
    let idle = || noted(&[REDUCE], 1);
    let judged = |first: Noted, second: Noted| judge(&with(ranks(), [first, second, idle(), idle()]), &[]);
    let verdict = judged(with_messages(1, 0, 3, 9), with_messages(0, 2, 0, 9));
    check(
        &verdict,
        State::Stuck,
        &[1],
        &[0],
        "rank 0 called recv [1024] Float (model.py:9) 9.0 s before, and rank 1 has called 2 of 3 sends to rank 0",
    );
    assert_eq!(verdict.kind, Some(Kind::NoCounterpart));
    // Both receive first.
    let verdict = judged(with_messages(1, 0, 1, 9), with_messages(0, 0, 1, 9));
    check(&verdict, State::Stuck, &[], &[0, 1], "the ranks wait for each other in a circle");
    // The send was called: the link is slow, or stands.
    assert_eq!(judged(with_messages(1, 0, 3, 9), with_messages(0, 3, 0, 9)).state, State::Unknown);
    // The receive was called a moment ago.
    assert_eq!(judged(with_messages(1, 0, 3, 0), with_messages(0, 2, 0, 0)).state, State::Unknown);
}

/// Two ranks of which torch has two groups each: which of them the communicator is, nothing tells.
#[test]
fn ranks_that_wait_for_each_other_in_one_of_two_groups_are_named_whichever_communicator_it_is() {
    let group = |name: &str, noted: Noted| Noted { group: name.to_owned(), ..noted };
    let judged = |first: [Noted; 2], second: [Noted; 2]| {
        let [a, b] = first;
        let [c, d] = second;
        let twins = [vec![group("(0)", a), group("(pp)", c)], vec![group("(0)", b), group("(pp)", d)]];
        let ranks = twins.into_iter().zip([0, 1]).map(|(noted_twins, number)| RankReport {
            n_ranks: 2,
            noted_twins,
            ..over_nvlink(number, 1, Some(Work::Waits))
        });
        judge(&ranks.collect::<Vec<_>>(), &[])
    };
    let through = || [noted(&[REDUCE], 1), noted(&[REDUCE], 1)];
    let both_receive = || [with_messages(1, 0, 1, 9), with_messages(0, 0, 1, 9)];
    let verdict = judged(through(), both_receive());
    assert_eq!(verdict.kind, Some(Kind::NoCounterpart), "{verdict:#?}");
    says(
        &verdict,
        "rank 0 called recv [1024] Float (model.py:9) 9.0 s before, and rank 1 has called 0 of 1 sends to rank 0",
    );
    says(&verdict, "which communicator it is, nothing tells: process groups (0), (pp) have the same ranks");
    // In both, none, or as the other side sends, nothing is known.
    let unknown = |first, second| assert_eq!(judged(first, second).kind, None);
    unknown(both_receive(), both_receive());
    unknown(through(), through());
    unknown(through(), [with_messages(1, 0, 3, 9), with_messages(0, 3, 0, 9)]);
    let [mut torn, other] = through();
    torn.is_whole = false;
    unknown([torn, other], both_receive());
}

/// A receive is posted ahead in a group that goes on; the notes of it are of another communicator.
#[test]
fn nobody_is_named_by_one_of_two_groups_while_a_communicator_of_the_same_ranks_moves() {
    let twins = [
        vec![noted(&[REDUCE], 1), with_messages(1, 0, 1, 9)],
        vec![noted(&[REDUCE], 1), with_messages(0, 0, 0, 9)],
    ];
    let ranks = twins.into_iter().zip([0, 1]).map(|(mut noted_twins, number)| {
        noted_twins[0].group = "(0)".to_owned();
        RankReport { n_ranks: 2, noted_twins, ..over_nvlink(number, 1, Some(Work::Waits)) }
    });
    let ranks: Vec<RankReport> = ranks.collect();
    let one = |hash: &str, moves: bool| {
        let of = |rank: &RankReport| RankReport {
            comm_hash: hash.to_owned(),
            motion: Motion { counters_moved: moves, ..rank.motion },
            ..rank.clone()
        };
        CommunicatorReport {
            comm_hash: hash.to_owned(),
            n_ranks: 2,
            ranks: ranks.iter().map(of).collect(),
            ..CommunicatorReport::default()
        }
    };
    let kinds = |moves| {
        let mut both = [one("0x1", false), one("0x2", moves)];
        judge_all(&mut both, &[]);
        both.map(|one| (one.verdict.state, one.verdict.kind))
    };
    assert_eq!(kinds(false), [(State::Stuck, Some(Kind::NoCounterpart)); 2]);
    let [still, moving] = kinds(true);
    assert_eq!((still.1, moving.0), (None, State::Healthy));
}
