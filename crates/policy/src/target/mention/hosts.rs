//! Finds hosts among the words of programs that need no scheme, and in names of socket files.
//!
//! Only the program knows which word is a host, and which number its port. So for rules that forbid, each
//! word that can be a host counts as one, with each number that can be a port.

use std::net::Ipv6Addr;

use crate::command::{Part, Word, listed};

/// Maximum number of hosts in one command. A command with more hosts may open any URL.
const MAX_HOSTS: usize = 256;

const MAX_PORTS: usize = 4;

/// Programs that take a host: `telnet HOST`, `socat TCP:HOST:1`, `ssh -L 1:HOST:2`.
const HOST_TAKERS: &str = "\
    arping autossh dig ftp host hping3 lftp links mariadb mongo mongosh mosh mtr mysql mysqldump nc ncat netcat nmap nslookup \
    openssl ping ping6 psql pg_dump redis-cli rlogin rsh sftp slogin socat ssh ssh-copy-id ssh-keyscan telnet tftp \
    traceroute tracepath whois";

/// Programs that take a host before a colon: `scp x HOST:y`.
const COPIERS: &str = "scp rsync sftp rclone pscp psftp unison sshfs hg svn";

/// Subcommands of git that take the URL of a repository.
const GIT_REMOTES: &str = "\
    archive bundle clone config fetch fetch-pack ls-remote pull push remote request-pull send-pack submodule subtree svn";

/// Returns the URLs of all hosts that the words of `part` may name, and of all hosts in files that the part
/// opens.
pub(super) fn addresses(part: &Part) -> Vec<String> {
    let is = |list: &str| part.programs().any(|name| listed(list, &name));
    let takes_hosts = is(HOST_TAKERS);
    let copies = is(COPIERS) || is("git") && part.words.iter().any(|word| listed(GIT_REMOTES, &word.text));
    let mut hosts: Vec<String> = Vec::new();
    let mut ports: Vec<&str> = Vec::new();
    let mut sockets: Vec<String> = Vec::new();
    let files = part.reads.iter().chain(&part.writes);
    for word in part.words.iter().chain(files).filter(|word| word.text.len() <= super::MAX_PATH_BYTES) {
        sockets.extend(socket_addresses(&word.text));
    }
    for (at, word) in part.words.iter().enumerate().skip(1).filter(|_| takes_hosts || copies) {
        let text = value(word);
        if word.text.len() > super::MAX_PATH_BYTES || text.starts_with(['/', '.', '~']) {
            continue;
        }
        if takes_hosts || part.words[at - 1].text == "-J" {
            hosts.extend(hosts_in(text));
        }
        if copies {
            hosts.extend(host_before_colon(text));
        }
        ports.extend(text.split([':', ',', '/']).filter(|port| is_port(port)));
        if hosts.len() + sockets.len() > MAX_HOSTS {
            return vec![String::new()];
        }
    }
    ports.truncate(MAX_PORTS);
    for host in hosts {
        for scheme in ["http", "https"] {
            sockets.push(format!("{scheme}://{host}/"));
            sockets.extend(ports.iter().map(|port| format!("{scheme}://{host}:{port}/")));
        }
    }
    sockets
}

/// Returns the word, or the value of the option in it: `--host=x`, `-hx`.
fn value(word: &Word) -> &str {
    let text = word.text.as_str();
    match text.strip_prefix("--") {
        Some(long) => long.split_once('=').map_or("", |(_, value)| value),
        None if word.is_option() => text.get(2..).unwrap_or_default(),
        None => text,
    }
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

fn is_host(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphanumeric() || "-._".contains(letter);
    !text.is_empty() && text.chars().all(is_letter)
}

/// Returns all parts of a text that may be a host. A number can be a host only if it is the whole text, or
/// something follows it.
fn hosts_in(text: &str) -> Vec<String> {
    let is_separator = |letter: char| !letter.is_alphanumeric() && !"-._:".contains(letter);
    let mut hosts: Vec<String> = Vec::new();
    for group in text.split(is_separator) {
        hosts.extend(group.parse::<Ipv6Addr>().ok().map(|address| format!("[{address}]")));
        let mut pieces = group.split(':').peekable();
        while let Some(piece) = pieces.next() {
            let is_number = piece.bytes().all(|byte| byte.is_ascii_digit());
            if is_host(piece) && (!is_number || pieces.peek().is_some() || piece == text) {
                hosts.push(piece.to_owned());
            }
        }
    }
    hosts
}

/// Returns the host in `user@HOST:path`, also after `name=`. A text with a slash before the colon is a file
/// name.
fn host_before_colon(text: &str) -> Option<String> {
    let text = text.rsplit_once('=').map_or(text, |(_, value)| value);
    let address = match text.split_once("]:") {
        Some((before, _)) => before.rsplit_once('[')?.1.parse::<Ipv6Addr>().ok(),
        None => None,
    };
    if let Some(address) = address {
        return Some(format!("[{address}]"));
    }
    let (before, _) = text.split_once(':')?;
    let host = before.rsplit('@').next()?;
    (!before.contains('/') && is_host(host)).then(|| host.to_owned())
}

/// Returns the URLs that shells and `gawk` open under file names: `/dev/tcp/HOST/PORT`,
/// `/inet/tcp/0/HOST/PORT`.
fn socket_addresses(text: &str) -> Vec<String> {
    let mut addresses = Vec::new();
    let mut add = |rest: &str| {
        let mut names = rest.split(['/', '"', '\'', ' ', ')', ';']);
        let host = names.next().unwrap_or_default();
        let host =
            if host.contains(':') { format!("[{}]", host.trim_matches(['[', ']'])) } else { host.to_owned() };
        let port = names.next().filter(|port| is_port(port)).unwrap_or("80");
        addresses.extend(["http", "https"].map(|scheme| format!("{scheme}://{host}:{port}/")));
    };
    for device in ["/dev/tcp/", "/dev/udp/"] {
        text.split(device).skip(1).for_each(&mut add);
    }
    for protocol in ["/tcp/", "/udp/"] {
        let from_inet = text.split(protocol).skip(1).filter(|_| text.contains("/inet"));
        from_inet.filter_map(|rest| rest.split_once('/')).for_each(|(_, rest)| add(rest));
    }
    addresses
}
