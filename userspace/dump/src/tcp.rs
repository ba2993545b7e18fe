//! TCP sockets of a process: those of its network namespace (/proc/PID/net/tcp) that it has descriptors of.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use inspect::process::{Process, read_text};

/// Maximum number of descriptors of a process that are looked at.
const MAX_DESCRIPTORS: usize = 65_536;

/// State of a socket (include/net/tcp_states.h), as far as it is told apart here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpState {
    Established,
    /// It has asked for a connection.
    SynSent,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcpSocket {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) state: TcpState,
    /// Number of times that the last packet was sent again.
    pub(super) retries: u32,
    inode: u64,
}

/// Returns those of the process's sockets that are wanted; `None` if it may not be looked at.
pub(super) fn of_process(
    process: &Process,
    is_wanted: impl Fn(&TcpSocket) -> bool,
) -> Option<Vec<TcpSocket>> {
    let folder = process.proc_path();
    let ipv4 = read_text(folder.join("net/tcp")).ok()?;
    // A kernel without IPv6 has no such list.
    let ipv6 = read_text(folder.join("net/tcp6")).unwrap_or_default();
    let mut sockets: Vec<TcpSocket> =
        ipv4.lines().chain(ipv6.lines()).filter_map(socket).filter(is_wanted).collect();
    if sockets.is_empty() {
        return Some(sockets);
    }
    let descriptors = fs::read_dir(folder.join("fd")).ok()?;
    let own: BTreeSet<u64> = descriptors
        .flatten()
        .take(MAX_DESCRIPTORS)
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        })
        .collect();
    sockets.retain(|socket| own.contains(&socket.inode));
    Some(sockets)
}

/// Parses a line of the list (net/ipv4/tcp_ipv4.c, get_tcp4_sock).
fn socket(line: &str) -> Option<TcpSocket> {
    let mut fields = line.split_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let (retries, inode) = (fields.nth(2)?, fields.nth(2)?);
    Some(TcpSocket {
        local: address(local)?,
        remote: address(remote)?,
        state: match state {
            "01" => TcpState::Established,
            "02" => TcpState::SynSent,
            _ => TcpState::Other,
        },
        retries: u32::from_str_radix(retries, 16).ok()?,
        inode: inode.parse().ok()?,
    })
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
    use super::*;

    const LINE: &str =
        "   3: 0A0010AC:C354 020011AC:C743 02 00000001:00000000 01:00000123 00000003     0        0 4711 2 0";

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        if cfg!(target_endian = "little") {
            let expected = TcpSocket {
                local: "172.16.0.10:50004".parse().unwrap(),
                remote: "172.17.0.2:51011".parse().unwrap(),
                state: TcpState::SynSent,
                retries: 3,
                inode: 4711,
            };
            assert_eq!(socket(LINE), Some(expected));
        }
        let state = |state| socket(&LINE.replace(" 02 ", state)).unwrap().state;
        assert_eq!((state(" 01 "), state(" 0A ")), (TcpState::Established, TcpState::Other));
        for line in
            ["", "  sl  local_address rem_address   st tx_queue", "1: a b 02", "1: a 1:1 02 a b 1 0 0 x"]
        {
            assert_eq!(socket(line), None, "{line}");
        }
        let six = "0000000000000000FFFF0000020011AC:0050";
        assert_eq!(address(six).map(|at| at.to_string()).as_deref(), Some("172.17.0.2:80"));
    }
}
