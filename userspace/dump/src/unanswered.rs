//! TCP connections that a process tries to make and that nobody answers: the other side's interface cannot be
//! reached from here, or a firewall drops what is sent.
//!
//! The kernel counts the times that the first packet was sent again ([`tcp`]): one that was sent again was
//! not answered for a second.

use serde::{Deserialize, Serialize};

use crate::tcp::{self, TcpState};
use inspect::process::Process;

/// Maximum number of connections that are reported of one process.
const MAX_LISTED: usize = 16;

/// A connection that a process tries to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unanswered {
    /// Address and port of the other side.
    pub to: String,
    /// Number of times that the first packet was sent again.
    pub retries: u32,
}

/// Returns the connections that the process tries to make, and that were not answered for a second at least.
pub(super) fn look(process: &Process) -> Vec<Unanswered> {
    let tried = tcp::of_process(process, |socket| socket.state == TcpState::SynSent && socket.retries > 0);
    let tried = tried.into_iter().flatten().take(MAX_LISTED);
    tried.map(|socket| Unanswered { to: socket.remote.to_string(), retries: socket.retries }).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        thread,
        time::{Duration, Instant},
    };

    use rustix::net::{
        AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, connect, getsockname, listen,
        socket_with,
    };

    use super::*;

    /// A listener whose queue is full answers nobody who comes.
    #[test]
    fn a_connection_that_nobody_answers_is_found_with_its_address() {
        let socket = || {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
        };
        let listener = socket();
        bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&listener, 0).unwrap();
        let at: SocketAddrAny = getsockname(&listener).unwrap();
        let callers: Vec<_> = (0..4).map(|_| socket()).collect();
        for caller in &callers {
            // It is in progress.
            let _ = connect(caller, &at);
        }
        let to = SocketAddr::try_from(at).unwrap().to_string();
        let this = Process::open(std::process::id()).unwrap();
        let begun = Instant::now();
        while !look(&this).iter().any(|tried| tried.to == to && tried.retries > 0) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", look(&this));
            thread::sleep(Duration::from_millis(100));
        }
    }
}
