//! Jobs that move, and do much less than they did.

use super::*;

/// Each rank has launched twenty collectives a second for some minutes; now there is one in so many seconds.
fn crawling(every: u64, dump: Look) -> World {
    let mut world = World::new(4);
    world.pass(180, |ranks, _| ranks.iter_mut().for_each(|rank| rank.launched += 20));
    world.dump = Some(Ok(dump));
    world.pass(300, |ranks, second| {
        let moves = second % every == 0;
        for (number, rank) in ranks.iter_mut().enumerate() {
            rank.launched += u64::from(moves);
            rank.in_flight = number != 1;
        }
    });
    world
}

#[test]
fn a_job_that_crawls_is_told_once_with_the_rank_that_it_waits_for_and_ends_when_it_is_mended() {
    for every in [2, 5, 8] {
        let mut world = crawling(every, stuck(Kind::NotJoined, None));
        let [(at, Begin, Slower)] = world.told()[..] else { panic!("{every}: {:?}", world.told()) };
        assert!((210..=260).contains(&at), "{every}: {at}");
        let event = &world.events[0].1;
        assert_eq!((event.culprits[0].rank, event.culprits[0].pid), (1, Some(101)));
        assert_eq!((event.waiting.as_slice(), event.verdict), (&[0, 2, 3][..], Some(Kind::NotJoined)));
        let said = [" times as long as before: 0.", "20.0 before. Dumps say: waits for rank 1"];
        assert!(said.iter().all(|said| event.sentence.contains(said)), "{}", event.sentence);
        world.ranks.iter_mut().for_each(|rank| rank.in_flight = false);
        world.pass(200, |ranks, _| ranks.iter_mut().for_each(|rank| rank.launched += 20));
        let [_, (_, End, Slower)] = world.told()[..] else { panic!("{every}: {:?}", world.told()) };
    }
}

#[test]
fn a_job_that_does_something_else_now_is_not_slower_and_is_seldom_dumped() {
    let healthy = Look { state: State::Healthy, ..Look::default() };
    let waits = Look { state: State::Waiting, ..stuck(Kind::NotJoined, None) };
    let saves = stuck(Kind::NotJoined, Some(Phase::Checkpoint));
    for look in [healthy, waits, saves] {
        let world = crawling(5, look);
        assert_eq!(world.told(), []);
        assert!((2..=7).contains(&world.looks), "{}", world.looks);
    }
}

#[test]
fn a_job_that_was_always_so_or_has_just_begun_does_not_crawl() {
    let mut world = World::new(4);
    world.dump = Some(Ok(stuck(Kind::NotJoined, None)));
    // It hands its weights out, and then has iterations of five seconds.
    world.pass(30, |ranks, _| ranks.iter_mut().for_each(|rank| rank.launched += 1000));
    world.pass(1200, |ranks, second| {
        for rank in ranks {
            rank.launched += u64::from(second % 5 == 0);
        }
    });
    assert_eq!((world.told(), world.looks), (vec![], 0));
}

#[test]
fn two_dumps_that_name_different_ranks_name_nobody() {
    let mut look = stuck(Kind::NotJoined, None);
    let mut crawl = crate::crawl::Crawl::default();
    let at = Duration::from_secs;
    assert!(crawl.wants_look(true, at(1)) && !crawl.wants_look(true, at(2)), "one at a time");
    assert!(!crawl.confirms(&Ok(look.clone()), at(3)) && !crawl.wants_look(true, at(4)));
    look.culprits[0].rank = 2;
    assert!(crawl.wants_look(true, at(14)) && !crawl.confirms(&Ok(look.clone()), at(15)));
    assert!(crawl.wants_look(true, at(26)) && !crawl.confirms(&Err("lost".to_owned()), at(27)));
    assert!(crawl.wants_look(true, at(40)) && crawl.confirms(&Ok(look), at(41)));
}
