//! Which user is at the other end of a loopback connection, as far as the system tells.
//!
//! The kernel is asked for the one socket (`sock_diag`), which takes microseconds however many connections there are, so
//! an event loop may ask. Only where the kernel lacks that, its tables in `/proc` are read.

mod diag;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

/// Where the system lists its TCP connections.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// Returns the user at the other end of a connected TCP socket; `None` if it is not on this machine or cannot be determined.
#[must_use]
pub fn user_of(socket: BorrowedFd<'_>) -> Option<u32> {
    let peer = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    let local = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    of_connection(peer, local)
}

/// Returns the user whose socket the other end of a loopback connection is; `None` if the system does not tell.
#[must_use]
pub fn of_connection(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    match diag::owner(peer, local) {
        Ok(user) => user,
        Err(_) => TABLES.iter().find_map(|path| owner(&std::fs::read_to_string(path).ok()?, peer, local)),
    }
}

/// The user of the connection from `from` to `to` in a table of them.
fn owner(table: &str, from: SocketAddr, to: SocketAddr) -> Option<u32> {
    // One of IPv4 may stand among those of IPv6.
    let forms = [(plain(from), plain(to)), (mapped(from), mapped(to))];
    let mut found = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, remote) = (*fields.get(1)?, *fields.get(2)?);
        let is_it = forms.iter().any(|(from, to)| local == from && remote == to);
        // Of a socket that no process has any more the user is not known, and told as 0.
        let is_held = fields.get(9).is_some_and(|inode| *inode != "0");
        if is_it && is_held { fields.get(7)?.parse().ok() } else { None }
    });
    found.next().filter(|_| found.next().is_none())
}

/// An address as such a table has it: the words of the address as the processor has them, and the port.
fn plain(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => written(&ip.octets(), address.port()),
        IpAddr::V6(ip) => written(&ip.octets(), address.port()),
    }
}

fn mapped(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => written(&ip.to_ipv6_mapped().octets(), address.port()),
        IpAddr::V6(ip) => written(&ip.octets(), address.port()),
    }
}

fn written(octets: &[u8], port: u16) -> String {
    let words = octets.chunks_exact(4).map(|chunk| {
        let word = u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        format!("{word:08X}")
    });
    format!("{}:{port:04X}", words.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use proptest::prelude::*;

    use super::*;

    fn line(from: &str, to: &str, uid: &str, inode: &str) -> String {
        format!(
            "   0: {from} {to} 01 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0 20 4\n"
        )
    }

    #[test]
    fn a_connection_is_whose_socket_it_is() {
        let (from, to): (SocketAddr, SocketAddr) =
            ("127.0.0.1:4660".parse().expect("one"), "127.0.0.1:80".parse().expect("one"));
        let (f, t) = (plain(from), plain(to));
        let check =
            |table: &str, expected: Option<u32>| assert_eq!(owner(table, from, to), expected, "{table}");
        check(&line(&f, &t, "1000", "77"), Some(1000));
        check(&line(&mapped(from), &mapped(to), "7", "77"), Some(7));
        // The same seen from the other side.
        check(&line(&t, &f, "1000", "77"), None);
        // Nobody has it any more, and what is told of it is not true.
        check(&line(&f, &t, "0", "0"), None);
        check(&(line(&f, &t, "1", "7") + &line(&f, &t, "2", "8")), None);
        check("", None);
        check("  sl  local_address rem_address   st\n", None);
    }

    #[test]
    fn our_own_connections_are_ours() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // Not every machine has IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
            let (accepted, peer) = listener.accept().expect("a connection");
            let local = accepted.local_addr().expect("an address");
            let ours = rustix::process::geteuid().as_raw();
            assert_eq!(of_connection(peer, local), Some(ours));
            drop(stream);
            drop(accepted);
        }
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_no_harm(text in "[0-9A-F: \n]{0,120}") {
            let (from, to) = (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 2)));
            let _ = owner(&text, from, to);
        }
    }
}
