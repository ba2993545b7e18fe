//! Address at which metrics are served: this host alone, unless the user says otherwise.

use std::net::{Ipv4Addr, SocketAddr};

/// Parses an address. `9400` is port 9400 of the loopback address; others are taken as given.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let of_this_host = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if let Ok(port) = text.parse() {
        return Ok(of_this_host(port));
    }
    if let Some(port) = text.strip_prefix("localhost:") {
        return port.parse().map(of_this_host).map_err(|_| format!("`{port}` is not a port"));
    }
    if let Some(port) = text.strip_prefix(':') {
        return Err(format!("which address? `{port}` is this host alone, `0.0.0.0:{port}` all of IPv4"));
    }
    text.parse()
        .map_err(|_| "expected a port, or an address and a port: 9400, 10.0.0.5:9400, [::]:9400".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_explicit_address_leaves_the_host() {
        for local in ["9400", "localhost:9400", "127.0.0.1:9400"] {
            assert_eq!(parse_address(local).unwrap().to_string(), "127.0.0.1:9400");
        }
        assert_eq!(parse_address("[::1]:1").unwrap().to_string(), "[::1]:1");
        assert_eq!(parse_address("10.0.0.5:9400").unwrap().to_string(), "10.0.0.5:9400");
        for wrong in [":9400", "", "70000", "host", "10.0.0.5", "localhost:x"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
