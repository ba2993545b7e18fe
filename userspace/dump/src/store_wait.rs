//! Waits in torch's store: for what, for which key, and who has come to the store.
//!
//! Before there is a communicator, ranks meet in the store: a server of one rank, or of the launcher, to
//! which all connect. Which of its functions a thread waits in, its native stack tells
//! (torch/csrc/distributed/c10d: TCPStore.cpp, PrefixStore.cpp, ProcessGroupNCCL.cpp). The key is an argument
//! there, which no call frame information leads to. So it is taken from the variables of the Python frame
//! that called, and where those do not name one, it is not known.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use serde::{Deserialize, Serialize};

use crate::{
    PythonThread, PythonVariable,
    tcp::{self, TcpSocket, TcpState},
};
use inspect::{
    process::Process,
    threads::{NativeNames, waits_in},
};

/// Libraries of torch that wait in the store.
const LIBRARIES: [&str; 2] = ["libtorch_cpu.so", "libtorch_cuda.so"];
/// Maximum number of hosts whose connections are counted.
const MAX_HOSTS: usize = 4096;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitsFor {
    /// The process has the store, and waits for all ranks to come to it.
    Ranks,
    /// The store: the process tries to connect to it.
    Server,
    /// The id of a communicator, which the first rank of the group puts into the store.
    CommunicatorId,
    /// A key, or several.
    Key,
    /// A kind that a newer version knows.
    #[serde(other)]
    Unknown,
}

/// Wait of a process in torch's store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreWait {
    pub waits_for: WaitsFor,
    /// Variables of the innermost Python frame that can name what is waited for, as they are called there.
    pub variables: Vec<PythonVariable>,
    /// The thread that waits, if that is not the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// The process's own store, if it waits for the ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<StoreServer>,
}

/// Connections to a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreServer {
    pub port: u16,
    /// Number of connections of other processes, by the address that they come from.
    pub connections: BTreeMap<IpAddr, u32>,
}

/// Tells whether a variable is called as those that hold a store's key or address.
pub(super) fn is_variable(name: &str) -> bool {
    const OTHERS: [&str; 6] = ["hostname", "host_name", "port", "worker_count", "world_size", "group_name"];
    is_key(name) || OTHERS.contains(&name)
}

fn is_key(name: &str) -> bool {
    ["key", "keys"].iter().any(|key| {
        let before = name.strip_suffix(key);
        before.is_some_and(|before| before.is_empty() || before.ends_with('_'))
    })
}

impl WaitsFor {
    /// Tells what a thread waits for by the functions of torch that it is in, innermost first.
    fn by(functions: &[String]) -> Option<Self> {
        let is_in = |name: &str| functions.iter().any(|function| function.contains(name));
        let is_store = |function: &String| {
            let (class, method) = function.rsplit_once("::").unwrap_or_default();
            class.starts_with("c10d::")
                && class.ends_with("Store")
                && ["get", "wait", "multiGet"].contains(&method)
        };
        if is_in("c10d::TCPStore::waitForWorkers") {
            return Some(Self::Ranks);
        }
        if is_in("c10d::TCPStore::TCPStore") && is_in("::connect") {
            return Some(Self::Server);
        }
        if !functions.iter().any(is_store) {
            return None;
        }
        let is_id = is_in("c10d::ProcessGroupNCCL::broadcastUniqueNCCLID");
        Some(if is_id { Self::CommunicatorId } else { Self::Key })
    }
}

impl WaitsFor {
    /// Tells that a thread is in torch's barrier in the store, which looks at a key again and again: between
    /// two looks it is in no function of the store.
    fn by_python(thread: &PythonThread) -> Option<Self> {
        let innermost = thread.frames.first()?;
        let is_barrier = innermost.function == "_store_based_barrier";
        (is_barrier && innermost.file.ends_with("/torch/distributed/distributed_c10d.py"))
            .then_some(Self::Key)
    }
}

impl StoreWait {
    /// Reads what a thread of a process waits for in the store; `None` if it does not.
    pub(super) fn read(process: &Process, thread: &PythonThread, names: &mut NativeNames) -> Option<Self> {
        let functions = waits_in(process, thread.tid, &LIBRARIES, names);
        let waits_for = WaitsFor::by(&functions).or_else(|| WaitsFor::by_python(thread))?;
        let variables = thread.variables.clone();
        let tid = (!thread.is_main).then_some(thread.tid);
        let wait = Self { waits_for, variables, tid, server: None };
        let server = wait.port().filter(|_| waits_for == WaitsFor::Ranks);
        Some(Self { server: server.and_then(|port| StoreServer::of(process, port)), ..wait })
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|variable| variable.name == name).map(|variable| &*variable.value)
    }

    fn port(&self) -> Option<u16> {
        self.variable("port")?.parse().ok()
    }

    /// Returns the store's host and port, as the Python frame has them.
    pub(crate) fn address(&self) -> Option<String> {
        let host = self.variable("hostname").or_else(|| self.variable("host_name"))?;
        Some(format!("{host}:{}", self.port()?))
    }

    /// Returns how many ranks had come to torch's barrier when it looked last, and how many there are.
    pub(crate) fn came(&self) -> Option<(u32, u32)> {
        let number = |name| self.variable(name)?.parse().ok();
        Some((number("worker_count")?, number("world_size")?))
    }

    /// Returns the key that is waited for, and the variable that has it. Of several variables that hold keys
    /// one counts only if torch's own function is known to wait for it (`_store_based_barrier`,
    /// torch.distributed; `barrier`, torch.distributed.elastic).
    pub(crate) fn key(&self) -> Option<&PythonVariable> {
        const KNOWN: [&str; 2] = ["last_worker_key", "last_member_key"];
        let mut keys = self.variables.iter().filter(|variable| is_key(&variable.name));
        let known = keys.clone().find(|variable| KNOWN.contains(&&*variable.name));
        known.or_else(|| keys.next().filter(|_| keys.next().is_none()))
    }
}

impl StoreServer {
    /// Counts the connections that a process has accepted at this port.
    fn of(process: &Process, port: u16) -> Option<Self> {
        let is_own =
            |socket: &TcpSocket| socket.local.port() == port && socket.state == TcpState::Established;
        let of_port = |socket: &TcpSocket| is_own(socket) || socket.remote.port() == port;
        let sockets = tcp::of_process(process, of_port)?;
        let ends: Vec<SocketAddr> = sockets.iter().map(|socket| socket.local).collect();
        let mut connections = BTreeMap::new();
        // Its own are not counted.
        for socket in sockets.iter().filter(|one| is_own(one) && !ends.contains(&one.remote)) {
            let from = socket.remote.ip().to_canonical();
            if connections.len() < MAX_HOSTS || connections.contains_key(&from) {
                *connections.entry(from).or_default() += 1;
            }
        }
        Some(Self { port, connections })
    }
}

/// Counts the connections of a process to these ports; `None` if it may not be looked at.
pub(super) fn connections(process: &Process, ports: &[u16]) -> Option<u32> {
    let is_connection =
        |socket: &TcpSocket| socket.state == TcpState::Established && ports.contains(&socket.remote.port());
    let count = tcp::of_process(process, is_connection)?.len();
    Some(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions as torch 2.11 has them on its stacks.
    #[test]
    fn what_is_waited_for_follows_from_torchs_functions() {
        let by = |functions: &[&str]| {
            WaitsFor::by(&functions.iter().map(ToString::to_string).collect::<Vec<String>>())
        };
        let constructor = "c10d::TCPStore::TCPStore";
        assert_eq!(by(&["c10d::TCPStore::waitForWorkers", constructor]), Some(WaitsFor::Ranks));
        let connect = [
            "c10d::detail::(anonymous namespace)::SocketConnectOp::tryConnect",
            "c10d::detail::Socket::connect",
            "c10d::detail::TCPClient::connect",
            constructor,
        ];
        assert_eq!(by(&connect), Some(WaitsFor::Server));
        let get = [
            "c10d::detail::SocketImpl::waitForInput",
            "c10d::TCPStore::doWait",
            "c10d::TCPStore::doGet",
            "c10d::TCPStore::get",
            "c10d::PrefixStore::get",
        ];
        assert_eq!(by(&get), Some(WaitsFor::Key));
        let id = [&get[..], &["c10d::ProcessGroupNCCL::broadcastUniqueNCCLID"]].concat();
        assert_eq!(by(&id), Some(WaitsFor::CommunicatorId));
        // What sets a key, or waits for a work, waits for no other rank's key.
        for others in [&["c10d::TCPStore::set"][..], &["c10d::ProcessGroupGloo::SendWork::wait"], &[]] {
            assert_eq!(by(others), None, "{others:?}");
        }
    }

    #[test]
    fn a_key_is_named_only_by_the_one_variable_that_can_hold_it() {
        let key = |names: &[&str]| {
            let variable =
                |name: &&str| PythonVariable { name: (*name).to_owned(), value: format!("of {name}") };
            let variables = names.iter().map(variable).collect();
            let wait = StoreWait { waits_for: WaitsFor::Key, variables, tid: None, server: None };
            wait.key().map(|variable| variable.value.clone())
        };
        assert_eq!(key(&["port", "key"]).as_deref(), Some("of key"));
        let barrier = ["store_key", "last_worker_key", "worker_count"];
        assert_eq!(key(&barrier).as_deref(), Some("of last_worker_key"));
        assert_eq!(key(&["src_key", "dst_key"]), None);
        assert_eq!(key(&["prefix"]), None);
        assert!(is_variable("keys") && is_variable("port"));
        for other in ["monkey", "password", "keyword", "token"] {
            assert!(!is_variable(other), "{other}");
        }
    }
}
