//! The network devices that `ncclflow dump` and `ncclflow record` give connections, against NCCL's own log.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use ncclflow_e2e::{
    harness::{
        job::{Shape, libraries},
        prelude::*,
        world::DEBUG_LOG,
    },
    truth::debug_log::DebugLog,
};

/// Two devices; a machine without `eth0` has one.
const DEVICES: &str = "--env NCCL_SOCKET_IFNAME=lo,eth0";

/// What NCCL said of its devices and connections.
struct Said {
    /// Interfaces by number.
    names: BTreeMap<u64, String>,
    log: DebugLog,
}

/// Parses the interfaces of `NET/Socket : Using [0]lo:127.0.0.1<0> [1]eth0:10.0.0.2<0>`, by number.
fn interfaces(log: &str) -> BTreeMap<u64, String> {
    let using = log.lines().find_map(|line| line.split_once("NET/Socket : Using ")).unwrap().1;
    let device = |word: &str| {
        let (number, rest) = word.strip_prefix('[')?.split_once(']')?;
        Some((number.parse().ok()?, rest.split_once(':')?.0.to_owned()))
    };
    using.split_whitespace().filter_map(device).collect()
}

impl Said {
    /// Reads the log files of all ranks, which are on one host.
    fn read(folder: &Path) -> Self {
        let files = fs::read_dir(folder).unwrap().map(|file| fs::read_to_string(file.unwrap().path()));
        let names = files.map(|text| interfaces(&text.unwrap())).reduce(|one, other| {
            assert_eq!(one, other, "ranks of one host");
            one
        });
        Self { names: names.unwrap(), log: DebugLog::read_directory(folder).unwrap() }
    }

    /// The number of the device of a connection of a rank.
    fn dev(&self, rank: i32, direction: &str, peer: i32, channel: u64) -> u64 {
        let ends = if direction == "SEND" { (rank, peer) } else { (peer, rank) };
        let logged = self.log.communicators.iter().find(|one| one.rank == rank).unwrap();
        let said = logged.connections.iter().find(|said| {
            (said.from, said.to) == ends
                && u64::from(said.channel) == channel
                && said.conn_index.is_none_or(|index| index == 0)
                && said.speaker() == rank
        });
        let said = said.unwrap_or_else(|| panic!("rank {rank}, {direction} {peer}, channel {channel}"));
        said.details.split('/').nth(1).unwrap().parse().unwrap()
    }

    #[track_caller]
    fn check_name(&self, nic: &Value) {
        assert_eq!((&nic["net"], &nic["guid"]), (&"Socket".into(), &Value::Null));
        assert_eq!(nic["name"].as_str(), self.names.get(&nic["dev"].as_u64().unwrap()).map(String::as_str));
    }
}

fn number(value: &Value) -> i32 {
    i32::try_from(value.as_i64().unwrap()).unwrap()
}

#[test]
fn a_dump_has_the_devices_that_nccl_says() {
    let shape = Shape { ranks: 4, processes: true, tree: false };
    let (mut compared, libraries) = (0, libraries());
    for version in &libraries {
        let workload = format!("--absent 2@3 --iters 6 {DEVICES} {DEBUG_LOG}");
        let Some(job) = World::going(version, shape, &workload).unwrap() else { return };
        let dump = job.check_stuck(2, "rank 2 has not joined").unwrap();
        let [communicator] = &*dump.communicators else { panic!("not one communicator: {}", dump.text) };
        let said = Said::read(&job.path("log"));
        for rank in &communicator.ranks {
            let mut used = BTreeSet::new();
            for connection in rank["connections"].as_array().unwrap() {
                let direction = connection["direction"].as_str().unwrap();
                let channel = connection["channel"].as_u64().unwrap();
                let dev = connection["netDev"].as_u64().unwrap();
                let truth = said.dev(number(&rank["rank"]), direction, number(&connection["peer"]), channel);
                assert_eq!(dev, truth, "{version}: {connection}");
                used.insert(dev);
                compared += 1;
            }
            let nics = rank["nics"].as_array().unwrap();
            for nic in nics {
                said.check_name(nic);
            }
            let devs: BTreeSet<u64> = nics.iter().map(|nic| nic["dev"].as_u64().unwrap()).collect();
            assert_eq!(devs, used, "{version}");
        }
    }
    assert!(compared >= libraries.len() * 4 * 2, "too few connections: {compared}");
}

#[test]
fn a_recording_has_the_devices_that_nccl_says() {
    let (mut compared, libraries) = (0, libraries());
    for version in &libraries {
        let options = "--ranks 3 --mode processes --channels 2 --iters 20 --interval-ms 20";
        let workload = format!("--ops allreduce --bytes 4096 {options} {DEVICES} {DEBUG_LOG}");
        let Some(mut world) = World::start(version, &workload) else { return };
        world.record_all("--level flow");
        let said = Said::read(&world.path("log"));
        let session = session(&world.out());
        for rank in session["communicators"].as_array().unwrap() {
            for nic in rank["nics"].as_array().unwrap() {
                said.check_name(nic);
                for (key, direction) in [("sends", "SEND"), ("receives", "RECV")] {
                    for (peer, channels) in nic[key].as_object().unwrap() {
                        for channel in channels.as_array().unwrap() {
                            let (peer, channel) = (peer.parse().unwrap(), channel.as_u64().unwrap());
                            let truth = said.dev(number(&rank["rank"]), direction, peer, channel);
                            assert_eq!(nic["dev"].as_u64(), Some(truth), "{version}: {nic}");
                            compared += 1;
                        }
                    }
                }
            }
        }
    }
    // Each rank has two channels with two neighbours.
    assert!(compared >= libraries.len() * 3 * 4, "too few connections: {compared}");
}
