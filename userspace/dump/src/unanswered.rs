//! TCP connections that a process tries to make and that nobody answers: the other side's interface cannot be
//! reached from here, or a firewall drops what is sent.
//!
//! The kernel lists the sockets of a network namespace in /proc/PID/net/tcp, with the times that the first
//! packet was sent again (net/ipv4/tcp_ipv4.c, get_tcp4_sock): one that was sent again was not answered for a
//! second.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use serde::{Deserialize, Serialize};

use inspect::process::{Process, read_text};

/// State of a socket that has asked for a connection (`TCP_SYN_SENT`, include/net/tcp_states.h).
const SYN_SENT: &str = "02";
/// Maximum number of descriptors of a process that are looked at.
const MAX_DESCRIPTORS: usize = 65_536;
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
    let folder = process.proc_path();
    let tried: Vec<(u64, Unanswered)> = ["net/tcp", "net/tcp6"]
        .iter()
        .filter_map(|list| read_text(folder.join(list)).ok())
        .flat_map(|text| text.lines().filter_map(unanswered).collect::<Vec<_>>())
        .collect();
    if tried.is_empty() {
        return Vec::new();
    }
    let descriptors = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
    let own: BTreeSet<u64> = descriptors
        .take(MAX_DESCRIPTORS)
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        })
        .collect();
    let of_process = tried.into_iter().filter(|(inode, _)| own.contains(inode));
    of_process.map(|(_, unanswered)| unanswered).take(MAX_LISTED).collect()
}

/// Parses a line of the list: the socket's inode and the connection, if it is tried and was not answered.
fn unanswered(line: &str) -> Option<(u64, Unanswered)> {
    let mut fields = line.split_whitespace().skip(2);
    let (to, state) = (fields.next()?, fields.next()?);
    let (retries, inode) = (fields.nth(2)?, fields.nth(2)?);
    let retries = u32::from_str_radix(retries, 16).ok()?;
    let to = address(to)?.to_string();
    (state == SYN_SENT && retries > 0).then_some((inode.parse().ok()?, Unanswered { to, retries }))
}

/// Parses an address as the list has it: words of the host's byte order in hexadecimal digits, a colon, the
/// port.
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let words = host.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).ok().filter(|word| word.len() == 8)?;
        Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
    });
    let words: Vec<[u8; 4]> = words.collect::<Option<_>>()?;
    let host = match &*words {
        [word] => IpAddr::from(Ipv4Addr::from(*word)),
        [_, _, _, _] => {
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(host, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use rustix::net::{
        AddressFamily, SocketAddrAny, SocketFlags, SocketType, bind, connect, getsockname, listen,
        socket_with,
    };

    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line = "   3: 0A0010AC:C354 020011AC:C743 02 00000001:00000000 01:00000123 00000003     0        0 4711 2 0";
        let expected = Unanswered { to: "172.17.0.2:51011".to_owned(), retries: 3 };
        if cfg!(target_endian = "little") {
            assert_eq!(unanswered(line), Some((4711, expected)));
        }
        // Established; asked for the first time; no line of a socket.
        assert_eq!(unanswered(&line.replace(" 02 ", " 01 ")), None);
        assert_eq!(unanswered(&line.replace("00000003 ", "00000000 ")), None);
        for line in
            ["", "  sl  local_address rem_address   st tx_queue", "1: a b 02", "1: a 1:1 02 a b 1 0 0 x"]
        {
            assert_eq!(unanswered(line), None, "{line}");
        }
        let six = "0000000000000000FFFF0000020011AC:0050";
        assert_eq!(address(six).map(|at| at.to_string()).as_deref(), Some("172.17.0.2:80"));
    }

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
