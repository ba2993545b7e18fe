//! Jobs that hang while they make or end communicators.

use super::*;

/// Three ranks make a communicator of four.
fn coming() -> World {
    let mut world = World::new(4);
    world.ranks.iter_mut().for_each(|rank| rank.is_coming = true);
    world.ranks[1].is_absent = true;
    world
}

#[test]
fn a_set_up_that_waits_for_a_rank_is_a_hang_and_its_process_is_looked_at_too() {
    let mut world = coming();
    world.dump = Some(Ok(stuck(Kind::SettingUp, None)));
    world.stand(60);
    let [(at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((10..=14).contains(&at), "{at}");
    world.looked_at.sort_unstable();
    assert_eq!(world.looked_at, [100, 101, 102, 103]);
    assert_eq!(world.events[0].1.verdict, Some(Kind::SettingUp));
    world.ranks.iter_mut().for_each(|rank| (rank.is_coming, rank.is_absent) = (false, false));
    world.work(30);
    let [_, (at, End, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((60..=66).contains(&at), "{at}");
}

#[test]
fn a_set_up_that_goes_on_is_none() {
    let mut world = coming();
    world.stand(8);
    world.ranks[1].is_absent = false;
    world.stand(8);
    world.ranks.iter_mut().for_each(|rank| rank.is_coming = false);
    world.work(1);
    assert_eq!(world.looks, 0);
    world.stand(300);
    assert_eq!(world.told(), []);
}

#[test]
fn ranks_that_end_a_communicator_which_others_do_not_end_are_looked_at() {
    let mut world = World::new(4);
    world.work(100);
    // It was idle for long: that is no wait.
    world.stand(600);
    world.ranks.iter_mut().take(3).for_each(|rank| rank.is_ending = true);
    world.dump = Some(Ok(stuck(Kind::CallNotMade, None)));
    world.stand(60);
    let [(at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((710..=714).contains(&at), "{at}");
}
