//! Network namespaces that stand for hosts: on one bridge, each with an address.

use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use test_support::need;

use super::delayed_link::DelayedLink;

/// A test network (RFC 5737).
const NETWORK: &str = "192.0.2";
/// Bytes that a limited one can send at once, after it has sent nothing for a while.
pub const BURST: u32 = 4096;

/// Namespaces, numbered from 0. All are gone when this is dropped.
#[derive(Debug)]
pub struct Namespaces {
    bridge: String,
    prefix: String,
    count: u32,
}

fn ip(words: &str) -> bool {
    let status = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Namespaces {
    /// Makes them, with an interface `eth0` in each; `None`, as a skip, where none can be made.
    pub fn start(count: u32) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        // What was made before goes when its last process has, which can be a little later.
        let us = format!("{}x{}", std::process::id() % 100_000, MADE.fetch_add(1, Ordering::Relaxed) % 100);
        let made = Self { bridge: format!("nfb{us}"), prefix: format!("nfh{us}-"), count };
        let bridge = &made.bridge;
        let mut is_made =
            ip(&format!("link add {bridge} type bridge")) && ip(&format!("link set {bridge} up"));
        for (number, name) in made.names().into_iter().enumerate() {
            is_made = is_made
                && ip(&format!("netns add {name}"))
                && ip(&format!("netns exec {name} ip link set lo up"))
                && ip(&format!("link add nfn{us}-{number} type veth peer name eth0 netns {name}"))
                && made.connect(number, &format!("nfn{us}-{number}"));
        }
        let remedy = "run where bridges and network namespaces may be made (iproute2)";
        need("network namespaces", is_made, remedy).then_some(made)
    }

    /// Gives one its address at `eth0`, and puts the other end of that on the bridge.
    fn connect(&self, number: usize, far: &str) -> bool {
        let inside = format!("netns exec {}{number} ip", self.prefix);
        ip(&format!("link set {far} master {} up", self.bridge))
            && ip(&format!("{inside} address add {NETWORK}.{}/24 dev eth0", number + 1))
            && ip(&format!("{inside} link set eth0 up"))
    }

    /// Connects one anew, by a link whose delay can be set; `None`, as a skip, where the kernel has no TAP.
    pub fn delayed(&self, number: u32) -> Option<DelayedLink> {
        let (own, name) = (&self.bridge[3..], format!("{}{number}", self.prefix));
        let (near, far) = (format!("nft{own}-{number}"), format!("nff{own}-{number}"));
        let made = DelayedLink::start(&near, &far).ok().filter(|_| {
            ip(&format!("netns exec {name} ip link delete eth0"))
                && ip(&format!("link set {near} netns {name} name eth0"))
                && self.connect(number as usize, &far)
        });
        need("tap", made.is_some(), "run where /dev/net/tun makes interfaces").then_some(made)?
    }

    /// What the name of each begins with; its number comes behind.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn names(&self) -> Vec<String> {
        (0..self.count).map(|number| format!("{}{number}", self.prefix)).collect()
    }

    /// Lets one send so many kilobits a second from now on, or as fast as it can; false where the kernel has no
    /// token bucket.
    pub fn limit(&self, number: u32, kilobits: Option<u64>) -> bool {
        let inside = format!("netns exec {}{number} tc qdisc", self.prefix);
        match kilobits {
            Some(kilobits) => ip(&format!(
                "{inside} replace dev eth0 root tbf rate {kilobits}kbit burst {BURST} latency 2000ms"
            )),
            None => ip(&format!("{inside} delete dev eth0 root")),
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in self.names() {
            ip(&format!("netns delete {name}"));
        }
        ip(&format!("link delete {}", self.bridge));
    }
}
