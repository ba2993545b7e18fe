//! The network devices that `ncclflow dump` gives connections, against NCCL's own log.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use ncclflow_e2e::{
    harness::{
        job::{Shape, VERSIONS},
        prelude::*,
        world::DEBUG_LOG,
    },
    truth::debug_log::DebugLog,
};

/// Parses the interfaces of `NET/Socket : Using [0]lo:127.0.0.1<0> [1]eth0:10.0.0.2<0>`, by number.
fn interfaces(log: &str) -> BTreeMap<u64, String> {
    let using = log.lines().find_map(|line| line.split_once("NET/Socket : Using ")).unwrap().1;
    let device = |word: &str| {
        let (number, rest) = word.strip_prefix('[')?.split_once(']')?;
        Some((number.parse().ok()?, rest.split_once(':')?.0.to_owned()))
    };
    using.split_whitespace().filter_map(device).collect()
}

#[test]
fn connections_go_over_the_devices_that_nccl_says() {
    let shape = Shape { ranks: 4, processes: true, tree: false };
    let (mut compared, mut devices) = (0, BTreeSet::new());
    for version in VERSIONS {
        // A machine without `eth0` has one device.
        let workload = format!("--absent 2@3 --iters 6 --env NCCL_SOCKET_IFNAME=lo,eth0 {DEBUG_LOG}");
        let Some(job) = World::going(version, shape, &workload).unwrap() else { return };
        let dump = job.check_stuck(2, "rank 2 has not joined").unwrap();
        let [communicator] = &*dump.communicators else { panic!("not one communicator: {}", dump.text) };
        let folder = job.path("log");
        let log = DebugLog::read_directory(&folder).unwrap();
        let files = fs::read_dir(&folder).unwrap().map(|file| fs::read_to_string(file.unwrap().path()));
        let names = files.map(|text| interfaces(&text.unwrap())).reduce(|one, other| {
            assert_eq!(one, other, "ranks of one host");
            one
        });
        let names = names.unwrap();
        for rank in &communicator.ranks {
            let number = i32::try_from(rank["rank"].as_i64().unwrap()).unwrap();
            let logged = log.communicators.iter().find(|one| one.rank == number).unwrap();
            let mut used = BTreeSet::new();
            for connection in rank["connections"].as_array().unwrap() {
                let is_send = connection["direction"] == "SEND";
                let peer = i32::try_from(connection["peer"].as_i64().unwrap()).unwrap();
                let ends = if is_send { (number, peer) } else { (peer, number) };
                let said = logged.connections.iter().find(|said| {
                    (said.from, said.to) == ends
                        && u64::from(said.channel) == connection["channel"].as_u64().unwrap()
                        && said.conn_index.is_none_or(|index| index == 0)
                        && said.speaker() == number
                });
                let said = said.unwrap_or_else(|| panic!("{version}, rank {number}: {connection}"));
                let dev = connection["netDev"].as_u64().unwrap();
                assert_eq!(said.details.split('/').nth(1), Some(&*dev.to_string()), "{version}: {said:?}");
                used.insert(dev);
                compared += 1;
            }
            let nics: BTreeMap<u64, String> = rank["nics"]
                .as_array()
                .unwrap()
                .iter()
                .map(|nic| {
                    assert_eq!((&nic["net"], &nic["guid"]), (&"Socket".into(), &Value::Null));
                    (nic["dev"].as_u64().unwrap(), nic["name"].as_str().unwrap().to_owned())
                })
                .collect();
            let expected = names.iter().filter(|(dev, _)| used.contains(dev));
            let expected: BTreeMap<u64, String> = expected.map(|(dev, name)| (*dev, name.clone())).collect();
            assert_eq!(nics, expected, "{version}, rank {number}");
            devices.extend(used);
        }
    }
    println!("{compared} connections compared, devices {devices:?}");
    assert!(compared >= 4 * 4 * 2, "too few connections: {compared}");
}
