//! Asks the kernel for the owner of a socket by its two addresses.
//!
//! A `sock_diag` request without `NLM_F_DUMP` names one connection. The kernel answers from the table it
//! routes packets with, so the answer is ready as soon as the request is sent.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 56;
const REPLY_BYTES: usize = 72;
const FAMILY_OFFSET: usize = 0;
const STATE_OFFSET: usize = 1;
const PORTS_OFFSET: usize = 4;
const ADDRESSES_OFFSET: usize = 8;
const UID_OFFSET: usize = 64;
const INODE_OFFSET: usize = 68;

/// `true` once the kernel has answered a lookup. A "not found" after that means that the socket does not
/// exist.
static KERNEL_ANSWERS: AtomicBool = AtomicBool::new(false);

/// Returns the user of the socket connected from `from` to `to`. `None` if there is no such socket or no
/// process has it. Fails if the kernel cannot be asked.
pub(super) fn owner(from: SocketAddr, to: SocketAddr) -> Result<Option<u32>, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::DGRAM;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::SOCK_DIAG))?;
    let kernel = netlink::SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &build_request(from, to), SendFlags::empty(), &kernel)?;
    let mut buffer = [0; 1024];
    let (length, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
    let found = parse_reply(buffer.get(..length).unwrap_or_default(), from, to);
    match found {
        Ok(_) => KERNEL_ANSWERS.store(true, Ordering::Relaxed),
        // Before the first answer, "not found" may also mean that the kernel lacks the lookup.
        Err(Errno::NOENT) if KERNEL_ANSWERS.load(Ordering::Relaxed) => return Ok(None),
        Err(_) => {}
    }
    found
}

/// Encodes the request for the socket that is connected from `from` to `to`.
fn build_request(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (from_ip, to_ip) = (from.ip().to_canonical(), to.ip().to_canonical());
    let family = if from_ip.is_ipv4() && to_ip.is_ipv4() { AF_INET } else { AF_INET6 };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    // The message is small, so its length fits into 32 bits.
    bytes.extend_from_slice(&((HEADER_BYTES + REQUEST_BYTES) as u32).to_ne_bytes());
    bytes.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and sender. Both are zero, because each netlink socket sends only one request.
    bytes.extend_from_slice(&[0; 8]);
    // The request asks for no extensions and accepts any state of the socket.
    bytes.extend_from_slice(&[family, IPPROTO_TCP, 0, 0]);
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes());
    bytes.extend_from_slice(&from.port().to_be_bytes());
    bytes.extend_from_slice(&to.port().to_be_bytes());
    for ip in [from_ip, to_ip] {
        let mut address = [0; 16];
        match ip {
            IpAddr::V4(ip) => address[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => address.copy_from_slice(&ip.octets()),
        }
        bytes.extend_from_slice(&address);
    }
    // The request is for any interface and has no cookie.
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&[0xff; 8]);
    bytes
}

/// Decodes a reply. If the connection does not exist, the kernel may return a listening socket of another
/// user. So a reply counts only if it describes a connection with the requested addresses.
fn parse_reply(answer: &[u8], from: SocketAddr, to: SocketAddr) -> Result<Option<u32>, Errno> {
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4)?;
        Some(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let kind = answer.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    match kind {
        Some(SOCK_DIAG_BY_FAMILY) if answer.len() >= HEADER_BYTES + REPLY_BYTES => {
            let reply = &answer[HEADER_BYTES..];
            let is_it =
                reply_address(reply, 0) == canonical(from) && reply_address(reply, 1) == canonical(to);
            if !is_it || !is_connected(reply[STATE_OFFSET]) {
                return Ok(None);
            }
            // For a socket without a process the kernel reports user 0. That means unknown.
            let is_held = word(HEADER_BYTES + INODE_OFFSET).is_some_and(|inode| inode != 0);
            Ok(word(HEADER_BYTES + UID_OFFSET).filter(|_| is_held))
        }
        Some(NLMSG_ERROR) => {
            let code = word(HEADER_BYTES).map_or(0, |code| (code as i32).wrapping_neg());
            Err(Errno::from_raw_os_error(code))
        }
        _ => Err(Errno::PROTO),
    }
}

/// Returns the local (index 0) or remote (index 1) address of a reply. An IPv6 socket reports an IPv4
/// address in its mapped form.
fn reply_address(reply: &[u8], index: usize) -> SocketAddr {
    let port = &reply[PORTS_OFFSET + 2 * index..];
    let mut octets = [0; 16];
    octets.copy_from_slice(&reply[ADDRESSES_OFFSET + 16 * index..][..16]);
    let ip: IpAddr = match reply[FAMILY_OFFSET] {
        AF_INET => [octets[0], octets[1], octets[2], octets[3]].into(),
        _ => octets.into(),
    };
    canonical(SocketAddr::new(ip, u16::from_be_bytes([port[0], port[1]])))
}

/// Returns the address with its port and without an IPv6 scope; a mapped IPv4 address becomes IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns `true` for the states of a connection that its process has not fully closed: established, or
/// half-closed by either side.
pub(super) fn is_connected(state: u8) -> bool {
    const ESTABLISHED: u8 = 1;
    const FIN_WAIT: [u8; 2] = [4, 5];
    const CLOSE_WAIT: u8 = 8;
    state == ESTABLISHED || FIN_WAIT.contains(&state) || state == CLOSE_WAIT
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::net::sockopt::set_socket_reuseaddr;

    use super::*;

    #[test]
    fn a_listener_on_the_port_of_a_lost_connection_is_not_its_owner() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = server.local_addr().unwrap();
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_reuseaddr(&socket, true).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let peer = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
        // The service of another user, started after the port was bound.
        let other = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set_socket_reuseaddr(&other, true).unwrap();
        rustix::net::bind(&other, &peer).unwrap();
        rustix::net::listen(&other, 1).unwrap();
        rustix::net::connect(&socket, &local).unwrap();
        let (accepted, from) = server.accept().unwrap();
        assert_eq!(from, peer);
        // Closing with linger time 0 resets the connection.
        rustix::net::sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO)).unwrap();
        drop(socket);
        // The kernel may lack the lookup by addresses.
        if let Ok(found) = owner(peer, local) {
            assert_eq!(found, None);
        }
        assert_eq!(crate::peer::user_of(std::os::fd::AsFd::as_fd(&accepted)), None);
    }

    #[test]
    fn the_kernel_names_the_user_of_a_connection_and_of_nothing_else() {
        for bound in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            // Not every machine has IPv6.
            let Ok(listener) = TcpListener::bind(bound) else { continue };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let local = accepted.local_addr().unwrap();
            let ours = rustix::process::geteuid().as_raw();
            let found = match owner(peer, local) {
                Ok(found) => found,
                // The kernel lacks the lookup by addresses, so there is nothing to test.
                Err(_) => return,
            };
            assert_eq!(found, Some(ours), "{bound}");
            drop(stream);
            // The other end has no process, or does not exist.
            assert_eq!(owner(peer, local).unwrap(), None, "{bound}");
            let other = SocketAddr::new(peer.ip(), 1);
            assert_eq!(owner(other, local).unwrap(), None, "{bound}");
        }
    }

    #[test]
    fn an_invalid_reply_names_no_user() {
        let (from, to) = (([127, 0, 0, 1], 1000).into(), ([127, 0, 0, 1], 80).into());
        let request = build_request(from, to);
        let parse_reply = |reply: &[u8]| parse_reply(reply, from, to);
        assert_eq!(parse_reply(b""), Err(Errno::PROTO));
        let mut message = vec![0; HEADER_BYTES + REPLY_BYTES];
        message[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        message[HEADER_BYTES + STATE_OFFSET] = 1;
        message[HEADER_BYTES + FAMILY_OFFSET] = AF_INET;
        // Ports and addresses are encoded as in a request.
        let addresses = &request[HEADER_BYTES + 8..][..36];
        message[HEADER_BYTES + PORTS_OFFSET..][..36].copy_from_slice(addresses);
        assert_eq!(parse_reply(&message), Ok(None), "without an inode");
        message[HEADER_BYTES + INODE_OFFSET] = 1;
        message[HEADER_BYTES + UID_OFFSET..HEADER_BYTES + UID_OFFSET + 4]
            .copy_from_slice(&1000_u32.to_ne_bytes());
        assert_eq!(parse_reply(&message), Ok(Some(1000)));
        for (at, value) in
            [(STATE_OFFSET, 10), (PORTS_OFFSET, 7), (ADDRESSES_OFFSET, 126), (FAMILY_OFFSET, AF_INET6)]
        {
            let mut other = message.clone();
            other[HEADER_BYTES + at] = value;
            assert_eq!(parse_reply(&other), Ok(None), "another socket, or one that listens");
        }
        assert_eq!(parse_reply(&message[..HEADER_BYTES + REPLY_BYTES - 1]), Err(Errno::PROTO));
        message[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        message[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!(parse_reply(&message), Err(Errno::NOENT));
    }
}
