//! Jobs of which a rank is slow.

use super::*;
use crate::event::AlertKind::Slow;

/// Four ranks whose GPUs do the same, and launch a collective a second.
fn even() -> World {
    let mut world = World::new(4);
    (world.activity, world.waited) = (vec![(99.0, 60.0); 4], vec![0.1; 4]);
    world.work(100);
    world
}

#[test]
fn a_gpu_that_computes_longer_for_a_minute_is_named_once_and_once_it_is_over() {
    let mut world = even();
    world.activity[2].1 = 70.0;
    world.work(300);
    let [(at, Begin, Slow)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((160..=190).contains(&at), "{at}");
    let event = &world.events[0].1;
    assert_eq!((event.culprits[0].rank, event.culprits[0].pid), (2, Some(102)), "{event:#?}");
    assert_eq!((event.culprits.len(), event.waiting.as_slice()), (1, &[0, 1, 3][..]));
    let said = "rank 2 (process 102, GPU 2): its GPU computes longer than those of ranks with equal work";
    assert!(event.sentence.contains(said), "{}", event.sentence);
    world.activity[2].1 = 60.0;
    world.work(300);
    let [_, (at, End, Slow)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((460..=490).contains(&at), "{at}");
    assert_eq!(world.events[0].1.alert, world.events[1].1.alert);
}

#[test]
fn even_ranks_short_differences_small_ones_and_pipelines_blame_nobody() {
    let mut world = even();
    world.work(600);
    world.activity[2].1 = 70.0;
    world.work(35);
    world.activity[2].1 = 62.0;
    world.work(600);
    // Its host leaves it idle, and nothing shows that its host can do anything for that.
    world.activity[2] = (70.0, 40.0);
    world.work(600);
    assert_eq!(world.told(), []);
    // Stages send to each other, and do other work.
    let mut world = even();
    world.activity[2].1 = 70.0;
    for second in 0..600 {
        world.sends = Some(second);
        world.work(1);
    }
    assert_eq!(world.told(), []);
}

#[test]
fn a_rank_that_evaluates_while_the_others_wait_is_not_blamed() {
    let mut world = even();
    // Of each half minute, rank 0 evaluates for ten seconds.
    for _ in 0..40 {
        world.work(20);
        world.activity[0].1 = 95.0;
        world.stand(10);
        world.activity[0].1 = 60.0;
    }
    assert_eq!(world.told(), []);
}

#[test]
fn a_host_without_a_processor_is_named_when_its_gpu_or_the_job_shows_that_it_costs_something() {
    let mut world = even();
    (world.activity[1].0, world.waited[1]) = (80.0, 4.0);
    world.work(200);
    let [(_, Begin, Slow)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert_eq!(world.events[0].1.culprits[0].rank, 1);
    assert!(
        world.events[0].1.sentence.contains("waited for a processor 40 %"),
        "{}",
        world.events[0].1.sentence
    );
    // Without counters of GPUs.
    let mut world = even();
    world.activity.clear();
    let many = |ranks: &mut Vec<Made>, by: u64| ranks.iter_mut().for_each(|rank| rank.launched += by);
    world.pass(1000, |ranks, _| many(ranks, 20));
    world.waited[1] = 4.0;
    world.pass(100, |ranks, _| many(ranks, 20));
    assert_eq!(world.told(), [], "it costs nothing");
    world.pass(400, |ranks, _| many(ranks, 10));
    let [(_, Begin, Slower), (_, Begin, Slow)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert_eq!(world.events[1].1.culprits[0].rank, 1);
}

#[test]
fn a_job_of_which_all_ranks_are_slower_says_so() {
    let mut world = even();
    let many = |ranks: &mut Vec<Made>, by: u64| ranks.iter_mut().for_each(|rank| rank.launched += by);
    world.pass(1000, |ranks, _| many(ranks, 20));
    world.pass(400, |ranks, _| many(ranks, 10));
    let [(_, Begin, Slower)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!(world.events[0].1.sentence.contains("No GPU and no host stands out"));
}

/// An error of a GPU, and then the job gets slower: the second alert waits for its minute.
#[test]
fn a_job_that_gets_slower_just_after_another_alert_is_told_later() {
    let mut world = World::new(4);
    let many = |ranks: &mut Vec<Made>, by: u64| ranks.iter_mut().for_each(|rank| rank.launched += by);
    world.pass(1000, |ranks, _| many(ranks, 20));
    world.pass(30, |ranks, _| many(ranks, 10));
    world.xids = vec![79];
    world.pass(1, |ranks, _| many(ranks, 10));
    world.xids.clear();
    world.pass(300, |ranks, _| many(ranks, 10));
    let slower: Vec<_> = world.told().into_iter().filter(|(_, _, kind)| *kind == Slower).collect();
    let [(at, Begin, Slower)] = slower[..] else { panic!("{:?}", world.told()) };
    assert!((1091..=1100).contains(&at), "{at}");
    // What is over before it may be told is not told.
    let mut world = World::new(4);
    world.pass(1000, |ranks, _| many(ranks, 20));
    for second in 1001..1400 {
        world.xids = if second == 1031 { vec![79] } else { Vec::new() };
        world.pass(1, |ranks, _| many(ranks, if second > 1065 { 20 } else { 10 }));
    }
    assert!(world.told().iter().all(|(_, _, kind)| *kind == Error), "{:?}", world.told());
}
