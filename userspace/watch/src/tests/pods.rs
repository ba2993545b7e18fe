//! Pods of one user: of one job, and such that forge ranks of another's communicator.

use super::*;

/// Two ranks of pod `a` and one of pod `b`, of a communicator with more ranks on other hosts.
fn world() -> World {
    let mut world = World::new(3);
    (world.n_ranks, world.pods) = (Some(8), vec!["a", "a", "b"]);
    world
}

/// Rank 1 does not come; what pod `b` does makes a dump of all say that all is well.
fn hang(world: &mut World) {
    world.ranks[0].launched += 1;
    world.ranks[0].in_flight = true;
    let (root, standing) = (Some((HASH.into(), 8)), vec![(HASH.into(), 8)]);
    world.alone = Some((vec![100, 101], Look { root, standing, ..stuck(Kind::NotJoined, None) }));
}

#[test]
fn pods_that_claim_different_ranks_are_one_job_and_are_not_dumped_while_they_move() {
    let mut world = world();
    world.work(300);
    assert_eq!((world.told(), world.looks), (vec![], 0));
    let pids: Vec<Vec<u32>> = world.book.view().map(|view| view.job.pids).collect();
    assert_eq!(pids, [[100, 101, 102]]);
}

#[test]
fn a_forged_rank_that_moves_does_not_hide_a_hang() {
    let mut world = world();
    world.work(100);
    hang(&mut world);
    world.pass(60, |ranks, _| ranks[2].launched += 1);
    let [(at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((110..=130).contains(&at), "{at}");
    assert!(world.events[0].1.seconds.is_some_and(|seconds| seconds >= 10.0), "{:?}", world.events);
}

#[test]
fn a_forged_rank_that_stands_or_moves_seldom_does_not_put_off_looks_at_others() {
    for every in [120, u64::MAX] {
        let mut world = world();
        world.pass(2000, |ranks, second| {
            ranks[..2].iter_mut().for_each(|rank| rank.launched += 1);
            ranks[2].launched += u64::from(second % every == 0);
            ranks[2].in_flight = true;
        });
        assert_eq!(world.told(), []);
        hang(&mut world);
        world.stand(300);
        let [(at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
        assert!((2010..=2200).contains(&at), "{at}");
    }
}

#[test]
fn forged_failures_do_not_hold_back_a_hang() {
    let mut world = world();
    let fail = |ranks: &mut Vec<Made>, second: u64| {
        ranks[2].launched += 1;
        ranks[2].failure = (second % 12 < 6).then_some("ncclSystemError");
    };
    world.pass(100, |ranks, second| {
        ranks[..2].iter_mut().for_each(|rank| rank.launched += 1);
        fail(ranks, second);
    });
    hang(&mut world);
    world.pass(60, fail);
    let hangs: Vec<u64> = world.told().into_iter().filter(|told| told.2 == Hang).map(|told| told.0).collect();
    assert!(hangs.len() == 1 && (110..=140).contains(&hangs[0]), "{:?}", world.told());
}

/// Pod `b` feigns a hang, by its ranks of the shared communicator, or by another one of its own; the others go on.
#[test]
fn a_hang_that_another_pod_feigns_holds_none_of_ones_own() {
    let mut world = world();
    world.work(100);
    let (root, standing) = (Some((HASH.into(), 8)), vec![(HASH.into(), 8)]);
    let feigned =
        Look { root, standing, waiting: vec![2], culprits: Vec::new(), ..stuck(Kind::NotJoined, None) };
    world.dump = Some(Ok(feigned));
    world.ranks[2].in_flight = true;
    let goes_on = |ranks: &mut Vec<Made>, _| ranks[..2].iter_mut().for_each(|rank| rank.launched += 1);
    world.pass(100, goes_on);
    let [(110..=115, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    world.pass(300, goes_on);
    assert_eq!(world.told().len(), 1, "{:?}", world.told());
    hang(&mut world);
    world.stand(60);
    let [_, (at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((510..=520).contains(&at), "{at}");
    let event = &world.events[1].1;
    let job = event.job.as_ref().unwrap();
    assert_eq!(
        (job.pids.as_slice(), job.pod.as_deref(), job.whose.as_str()),
        (&[100, 101][..], Some("a"), "a")
    );
    assert_eq!(event.culprits[0].rank, 1);
    // What is mended ends, and the other's stays.
    world.ranks[1].launched += 1;
    world.ranks[0].in_flight = false;
    world.pass(20, goes_on);
    let [_, _, (_, End, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert_eq!(world.events[2].1.alert, world.events[1].1.alert);
    // It hangs again, the pod that forged ends, and it goes on: both are over.
    world.pass(100, goes_on);
    hang(&mut world);
    world.stand(60);
    world.ranks[2].is_live = false;
    world.stand(100);
    world.ranks[0].in_flight = false;
    world.pass(20, goes_on);
    let told: Vec<_> = world.told().into_iter().skip(3).map(|(_, event, kind)| (event, kind)).collect();
    assert_eq!(told, [(Begin, Hang), (End, Hang), (End, Hang)]);
}

/// Each reading takes what is one tenant's out of what all have.
#[test]
fn what_each_of_many_pods_has_costs_no_copies_of_what_the_others_have() {
    const PODS: usize = 250;
    let mut world = World::new(PODS);
    world.pods = (0..PODS).map(|pod| &*Box::leak(format!("pod-{pod}").into_boxed_str())).collect();
    world.work(3);
    let view = world.book.view().next().unwrap();
    let begun = std::time::Instant::now();
    for (at, pod) in world.pods.iter().enumerate() {
        let own = view.comms[0].of_tenant(pod).unwrap();
        let pids: Vec<u32> = own.ranks.keys().map(|(_, process)| process.pid).collect();
        assert_eq!(pids, [100 + u32::try_from(at).unwrap()]);
        assert!(own.key.tenant.as_deref() == Some(pod) && !own.is_shared());
    }
    assert!(view.comms[0].of_tenant("another").is_none());
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn errors_that_another_pod_feigns_hold_none_of_ones_own() {
    let mut world = world();
    world.pass(400, |ranks, second| {
        for rank in ranks.iter_mut() {
            rank.launched += 1;
        }
        // The forger's are first in order, and come again whenever one may begin.
        ranks[2].failure = (second % 10 < 6).then_some("ncclSystemError");
        ranks[0].failure = (second >= 100).then_some("ncclInternalError");
    });
    let of = |rank: u32| {
        let errors = world.events.iter().filter(|(_, event)| event.event == Begin);
        errors.filter(|(_, event)| event.culprits[0].rank == rank).map(|(at, _)| *at).collect::<Vec<_>>()
    };
    assert!(of(2).len() > 3, "{:?}", world.told());
    assert!(of(0).len() == 1 && (103..=105).contains(&of(0)[0]), "{:?}", world.told());
}

#[test]
fn pods_that_claim_one_rank_are_two_jobs_and_neither_moves_for_the_other() {
    let process = |pid: u32, pod: &str, rank: u32, launched: u64| {
        let comm = Arc::new(CommKey { hash: HASH.into(), n_ranks: 2, ..CommKey::default() });
        let counts = Counts { by_function: vec![launched], is_set_up: true, ..Counts::default() };
        let rank = RankReading {
            info: Arc::new(RankInfo { comm, rank, ..RankInfo::default() }),
            state: RankCounts::Read(counts),
            steps: None,
            failure: None,
        };
        let (key, pod) = (ProcessKey { pid, started: 1 }, Some(pod.to_owned()));
        let info = Arc::new(ProcessInfo { key, pod, ..ProcessInfo::default() });
        ProcessReading { info, is_live: true, ranks: vec![rank], processor: None }
    };
    let mut book = Book::default();
    let jobs = |book: &Book| -> Vec<(Vec<u32>, Duration)> {
        book.view().map(|view| (view.job.pids, view.comms[0].stands_for(Duration::from_secs(30)))).collect()
    };
    let mut take = |second: u64, all: &[ProcessReading]| {
        book.take(all, &HostReading::default(), Duration::from_secs(second));
        jobs(&book)
    };
    let at = Duration::from_secs;
    take(1, &[process(2, "a", 0, 1), process(3, "a", 1, 1)]);
    take(10, &[process(2, "a", 0, 2), process(3, "a", 1, 2)]);
    for second in 11..30 {
        let forged = process(4, "b", 1, second);
        let all = [process(2, "a", 0, 2), process(3, "a", 1, 2), forged];
        assert_eq!(take(second, &all), [(vec![2, 3], at(20)), (vec![4], at(30 - second))]);
    }
    // Without the other's, the key is again as it was.
    assert_eq!(take(30, &[process(5, "c", 0, 1)]), [(vec![5], at(0))]);
}
