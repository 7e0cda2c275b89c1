//! The contenders: TCP, WebSocket and Streamable HTTP of `narrows bus`, and any other server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use crate::bus::contender::{Running, free_port, narrows, own};
use crate::bus::load::Way;
use crate::bus::message::Dialect;
use crate::bus::options::Named;

const PATH: &str = "/acp";

/// One way from the load to the agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// `narrows bus`, in lines over TCP: the reference for the others.
    Tcp,
    WebSocket,
    Http,
    /// Another server, measured over both.
    Peer(Peer),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// Command line. `{port}` stands for the port, and `{worker}` for the program of an agent, which takes
    /// the argument `bus-worker`.
    pub(crate) command: String,
    /// URL of the server, with `{port}`.
    pub(crate) url: String,
}

impl Named for Contender {
    fn name(&self) -> &str {
        match self {
            Self::Tcp => "tcp",
            Self::WebSocket => "ws",
            Self::Http => "http",
            Self::Peer(peer) => &peer.name,
        }
    }
}

impl Contender {
    pub(crate) fn is_ours(&self) -> bool {
        !matches!(self, Self::Peer(_))
    }

    pub(crate) fn start(&self, place: &Path) -> Result<Server, String> {
        let port = free_port().map_err(|error| format!("there is no port: {error}"))?;
        let own = own()?;
        let (running, path) = match self {
            Self::Peer(peer) => {
                let (address, path) = peer.at(port)?;
                (Running::start(peer.command(&own, port)?, address), path)
            }
            ours => {
                let scheme = if *ours == Self::Tcp { "tcp" } else { "ws" };
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                let listen = listen(scheme, address);
                let running = Running::logged(narrows(&own, place, &listen)?, address, place);
                (running.and_then(|running| running.staffed(place)), PATH.to_owned())
            }
        };
        let running = running.map_err(|problem| format!("{} {problem}", self.name()))?;
        Ok(Server { running, path, lines: *self == Self::Tcp })
    }
}

/// Returns the listener settings of `narrows bus`, with limits that the load does not reach.
fn listen(scheme: &str, address: SocketAddr) -> String {
    let (path, auth) = if scheme == "tcp" { ("", "") } else { (PATH, "auth = \"none\"\n") };
    format!(
        "[[listen]]\nurl = \"{scheme}://{address}{path}\"\n{auth}\n\
         [limits]\nmax_connections = 6000\nmax_connections_per_identity = 6000\nmax_rate_per_identity = 0\n"
    )
}

impl Peer {
    fn command(&self, own: &Path, port: u16) -> Result<Command, String> {
        let words = shlex::split(&self.command).unwrap_or_default();
        let mut words = words.into_iter().map(|word| {
            word.replace("{worker}", &own.to_string_lossy()).replace("{port}", &port.to_string())
        });
        let program = words.next().ok_or_else(|| format!("`{}` is no command", self.command))?;
        let mut command = Command::new(program);
        command.args(words);
        Ok(command)
    }

    /// Returns the address and path of the URL.
    fn at(&self, port: u16) -> Result<(SocketAddr, String), String> {
        let url = self.url.replace("{port}", &port.to_string());
        let rest = url.strip_prefix("ws://").or_else(|| url.strip_prefix("http://"));
        let parts = rest.and_then(|rest| rest.split_once('/'));
        let address = parts.and_then(|(address, _)| address.parse().ok());
        match (address, parts) {
            (Some(address), Some((_, path))) => Ok((address, format!("/{path}"))),
            _ => Err(format!("`{url}` is not like ws://127.0.0.1:{{port}}/acp")),
        }
    }
}

pub(crate) struct Server {
    running: Running,
    path: String,
    lines: bool,
}

impl Server {
    pub(crate) fn process(&self) -> u32 {
        self.running.process()
    }

    pub(crate) fn way(&self) -> Way<'_> {
        let web_socket = (!self.lines).then_some(self.path.as_str());
        Way { address: self.running.address, dialect: Dialect::Acp, web_socket }
    }

    pub(crate) fn at(&self) -> (SocketAddr, &str) {
        (self.running.address, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(command: &str, url: &str) -> Peer {
        Peer { name: "other".into(), command: command.into(), url: url.into() }
    }

    #[test]
    fn a_peer_gets_its_port_and_url() {
        let peer = peer("server --port {port} -- '{worker}' bus-worker", "ws://127.0.0.1:{port}/agents/acp");
        let command = peer.command(Path::new("echo"), 77).expect("a command");
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(words, ["--port", "77", "--", "echo", "bus-worker"]);
        let expected = (SocketAddr::from((Ipv4Addr::LOCALHOST, 77)), "/agents/acp".to_owned());
        assert_eq!(peer.at(77), Ok(expected));
    }

    #[test]
    fn an_invalid_url_is_refused() {
        for url in ["", "127.0.0.1:1/acp", "wss://127.0.0.1:1/acp", "ws://127.0.0.1:1", "ws://other/acp"] {
            assert!(peer("server", url).at(1).is_err(), "{url}");
        }
        assert!(peer("", "ws://127.0.0.1:1/acp").command(Path::new("echo"), 1).is_err());
    }

    #[test]
    fn narrows_listens_as_configured() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
        assert!(listen("tcp", address).contains("url = \"tcp://127.0.0.1:9\"\n\n"));
        assert!(listen("ws", address).contains("url = \"ws://127.0.0.1:9/acp\"\nauth = \"none\"\n"));
    }
}
