//! Jobs that rest: whether anybody waits is not known from counters.

use super::*;

#[test]
fn busy_idle_and_slow_messages_are_no_hang_and_are_not_dumped_all_the_time() {
    let mut world = World::new(4);
    world.work(2000);
    world.stand(2000);
    assert_eq!(world.told(), [], "it is idle: nothing is in flight");
    assert!((3..=10).contains(&world.looks), "{}", world.looks);
    world.looks = 0;
    // A message over a slow network: nothing is launched, and steps are made.
    world.work(10);
    world.ranks.iter_mut().for_each(|rank| rank.in_flight = true);
    world.pass(600, |ranks, _| ranks.iter_mut().for_each(|rank| rank.steps += 1));
    assert_eq!((world.told(), world.looks), (vec![], 0));
    // It looks like a hang, and a dump says that it is none.
    world.stand(3600);
    assert_eq!(world.told(), []);
    assert!((2..=10).contains(&world.looks), "{}", world.looks);
}

#[test]
fn over_nvlink_gpus_tell_whether_it_is_worth_a_dump() {
    let mut world = World::new(4);
    world.has_proxy = false;
    world.busy = Some(3);
    world.work(100);
    world.stand(300);
    assert!((1..=6).contains(&world.looks), "no GPU runs a kernel: {} looks", world.looks);
    world.busy = Some(100);
    world.dump = Some(Ok(stuck(Kind::OtherOperation, None)));
    world.stand(300);
    let [(_, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
}

#[test]
fn a_communicator_that_was_never_used_is_looked_at_seldom_and_its_hang_is_one() {
    let mut world = World::new(4);
    world.stand(7200);
    assert_eq!(world.told(), []);
    assert!((3..=15).contains(&world.looks), "{}", world.looks);
    let mut world = World::new(4);
    world.dump = Some(Ok(stuck(Kind::NoCounterpart, None)));
    world.stand(20);
    let [(at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((10..=13).contains(&at), "{at}");
}

/// Ranks are in `ncclCommSplit`, which one does not call: they have launched the same, and nothing is in flight.
#[test]
fn a_job_that_rests_is_looked_at_once_and_seldom_where_it_often_rests() {
    let mut world = World::new(4);
    world.work(100);
    world.dump = Some(Ok(stuck(Kind::CallNotMade, None)));
    world.stand(20);
    let [(at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((110..=113).contains(&at), "{at}");
    // It serves: for a few seconds every half minute.
    let mut world = World::new(4);
    world.pass(7200, |ranks, second| {
        for rank in ranks {
            rank.launched += u64::from(second % 30 < 5);
        }
    });
    assert_eq!(world.told(), []);
    assert!((3..=15).contains(&world.looks), "{}", world.looks);
    // It has worked for long: its next rest is looked at as the first one was, after five of its usual iterations.
    world.work(10_000);
    world.dump = Some(Ok(stuck(Kind::CallNotMade, None)));
    world.stand(200);
    let [(at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((17_300..=17_360).contains(&at), "{at}");
}

#[test]
fn a_communicator_that_stands_from_the_first_reading_on_was_not_seen_to_move() {
    let mut world = World::new(2);
    world.ranks.iter_mut().for_each(|rank| rank.launched = 7);
    let seen =
        |world: &World| world.book.view().all(|job| job.comms.iter().all(|comm| comm.was_seen_to_move));
    world.stand(5);
    assert!(!seen(&world));
    world.work(5);
    assert!(seen(&world));
}

/// Its memory does not answer, and so not to a dump either.
#[test]
fn a_job_that_is_not_read_is_not_said_to_stand_and_one_of_which_a_rank_is_read_is() {
    for unread in [4, 3] {
        let mut world = World::new(4);
        world.work(100);
        world.ranks.iter_mut().for_each(|rank| rank.in_flight = true);
        world.work(1);
        world.ranks[..unread].iter_mut().for_each(|rank| rank.is_unread = true);
        world.dump = Some(Ok(Look::default()));
        world.stand(600);
        let hangs: Vec<_> = world.told().into_iter().filter(|told| told.2 == Hang).collect();
        assert_eq!(hangs.len(), 4 - unread, "{:?}", world.told());
    }
    // It stood before: that was read.
    let mut world = World::new(4);
    world.work(100);
    world.hang();
    world.dump = None;
    world.stand(30);
    world.ranks.iter_mut().for_each(|rank| rank.is_unread = true);
    world.stand(300);
    let [(_, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
}
