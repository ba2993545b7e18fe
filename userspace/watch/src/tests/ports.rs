//! Jobs whose network adapters lose a link.

use super::*;
use inspect::adapters::Port;

fn ports(states: [&str; 2]) -> Vec<Port> {
    let port = |(number, state): (u32, &str)| Port {
        adapter: format!("mlx5_{number}"),
        port: 1,
        state: state.into(),
        ..Port::default()
    };
    (0..).zip(states).map(port).collect()
}

#[test]
fn a_port_that_goes_down_under_a_job_of_several_hosts_is_an_error_that_names_no_rank() {
    let mut world = World::new(4);
    world.n_ranks = Some(8);
    world.ports = Some(ports(["ACTIVE", "DOWN"]));
    world.work(100);
    assert_eq!(world.told(), [], "one that was never up is not missed");
    world.ports = Some(ports(["DOWN", "DOWN"]));
    world.work(50);
    // It flaps.
    world.ports = Some(ports(["ACTIVE", "DOWN"]));
    world.work(5);
    world.ports = Some(ports(["INIT", "DOWN"]));
    world.work(5);
    world.ports = Some(ports(["ACTIVE", "DOWN"]));
    world.work(50);
    let [(at, Begin, Error), (_, End, Error)] = world.told()[..] else { panic!("{:?}", world.told()) };
    let event = &world.events[0].1;
    assert_eq!((at, event.culprits.len()), (101, 0));
    assert!(event.sentence.contains("The port mlx5_0:1 of a network adapter of this host is DOWN"));
}

#[test]
fn a_job_of_one_host_and_adapters_that_do_not_answer_are_no_error() {
    let mut world = World::new(4);
    world.ports = Some(ports(["ACTIVE", "ACTIVE"]));
    world.work(100);
    world.ports = Some(ports(["DOWN", "DOWN"]));
    world.work(100);
    world.n_ranks = Some(8);
    world.ports = None;
    world.work(100);
    assert_eq!(world.told(), []);
}
