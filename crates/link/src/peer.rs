//! The user at the other end of a loopback connection, as reported by the system.
//!
//! The kernel is asked for one socket (`sock_diag`). That takes microseconds for any number of connections,
//! so an event loop may ask. On kernels without this lookup, the tables in `/proc` are read instead.

mod diag;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// Returns the user at the other end of a connected TCP socket, or `None` if it is remote or unknown.
///
/// The result counts only if the socket is still connected after the lookup. After a reset, another user's
/// socket may get the address while earlier data of the first peer is still readable.
#[must_use]
pub fn user_of(socket: BorrowedFd<'_>) -> Option<u32> {
    let peer = connected_peer(socket)?;
    let local = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    let user = user_of_connection(peer, local);
    user.filter(|_| connected_peer(socket) == Some(peer))
}

fn connected_peer(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()
}

/// Returns the user who owns the other end of a loopback connection, or `None` if the user is unknown.
fn user_of_connection(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    match diag::owner(peer, local) {
        Ok(user) => user,
        Err(_) => TABLES.iter().find_map(|path| owner(&std::fs::read_to_string(path).ok()?, peer, local)),
    }
}

/// Returns the user of the connection from `from` to `to` in a table of `/proc`.
fn owner(table: &str, from: SocketAddr, to: SocketAddr) -> Option<u32> {
    // The IPv6 table may contain an IPv4 connection.
    let forms =
        [(table_address(from), table_address(to)), (mapped_table_address(from), mapped_table_address(to))];
    let mut found = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, remote) = (*fields.get(1)?, *fields.get(2)?);
        let is_connected = u8::from_str_radix(fields.get(3)?, 16).is_ok_and(diag::is_connected);
        let is_it = is_connected && forms.iter().any(|(from, to)| local == from && remote == to);
        // For a socket without a process the kernel reports user 0. That means unknown.
        let is_held = fields.get(9).is_some_and(|inode| *inode != "0");
        if is_it && is_held { fields.get(7)?.parse().ok() } else { None }
    });
    found.next().filter(|_| found.next().is_none())
}

/// Formats an address as in the tables of `/proc`: words in the byte order of the processor, then the port.
fn table_address(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => hex_address(&ip.octets(), address.port()),
        IpAddr::V6(ip) => hex_address(&ip.octets(), address.port()),
    }
}

fn mapped_table_address(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => hex_address(&ip.to_ipv6_mapped().octets(), address.port()),
        IpAddr::V6(ip) => hex_address(&ip.octets(), address.port()),
    }
}

fn hex_address(octets: &[u8], port: u16) -> String {
    let words = octets.chunks_exact(4).map(|chunk| {
        let word = u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        format!("{word:08X}")
    });
    format!("{}:{port:04X}", words.collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;

    fn line(from: &str, to: &str, uid: &str, inode: &str) -> String {
        format!(
            "   0: {from} {to} 01 00000000:00000000 00:00000000 00000000  {uid}        0 {inode} 1 0 20 4\n"
        )
    }

    #[test]
    fn the_user_of_a_connection_is_found() {
        let (from, to): (SocketAddr, SocketAddr) =
            ("127.0.0.1:4660".parse().expect("one"), "127.0.0.1:80".parse().expect("one"));
        let (f, t) = (table_address(from), table_address(to));
        let check =
            |table: &str, expected: Option<u32>| assert_eq!(owner(table, from, to), expected, "{table}");
        check(&line(&f, &t, "1000", "77"), Some(1000));
        check(&line(&mapped_table_address(from), &mapped_table_address(to), "7", "77"), Some(7));
        // This line is for the other direction of the connection.
        check(&line(&t, &f, "1000", "77"), None);
        // No process has the socket, so user 0 does not count.
        check(&line(&f, &t, "0", "0"), None);
        check(&line(&f, &t, "1000", "77").replace(" 01 ", " 0A "), None);
        check(&(line(&f, &t, "1", "7") + &line(&f, &t, "2", "8")), None);
        check("", None);
        check("  sl  local_address rem_address   st\n", None);
    }

    #[test]
    fn connections_of_this_process_belong_to_its_user() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // Not every machine has IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
            let (accepted, _) = listener.accept().expect("a connection");
            let ours = rustix::process::geteuid().as_raw();
            assert_eq!(user_of(accepted.as_fd()), Some(ours));
            drop(stream);
            drop(accepted);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_tables_never_panic(text in "[0-9A-F: \n]{0,120}") {
            let (from, to) = (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 2)));
            let _ = owner(&text, from, to);
        }
    }
}
