//! The contenders: a direct connection, the null router, `narrows bus`, and any other router.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::message::Dialect;
use super::options::Named;

pub(crate) const WORKERS: usize = 4;
const LOG_FILE: &str = "narrows.log";
const ADMIN_SOCKET: &str = "admin.sock";
const START_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// One way from the load to the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    /// The load speaks directly to one worker.
    Direct,
    Null,
    Narrows,
    Peer(Peer),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// Command line. `{config}` stands for the file and `{port}` for the port on 127.0.0.1.
    pub(crate) command: String,
    /// Configuration file. `{worker}` stands for the program of a worker, which takes the argument
    /// `bus-worker`, and `{workers}` for the number of workers.
    pub(crate) config: PathBuf,
}

impl Named for Contender {
    fn name(&self) -> &str {
        match self {
            Self::Direct => "direct",
            Self::Null => "null",
            Self::Narrows => "narrows",
            Self::Peer(peer) => &peer.name,
        }
    }
}

impl Contender {
    pub(crate) fn is_ours(&self) -> bool {
        !matches!(self, Self::Peer(_))
    }

    pub(crate) fn dialect(&self) -> Dialect {
        if self.is_ours() { Dialect::Acp } else { Dialect::Top }
    }

    /// Starts the contender. `place` is a directory for its files.
    pub(crate) fn start(&self, place: &Path) -> Result<Running, String> {
        let port = free_port().map_err(|error| format!("there is no port: {error}"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let own = own()?;
        let command = match self {
            Self::Direct => {
                let mut command = Command::new(&own);
                command.args(["bus-worker", "--listen", &address.to_string()]);
                command
            }
            Self::Null => {
                let mut command = Command::new(&own);
                command.args(["bus-null", &address.to_string(), &WORKERS.to_string()]);
                command
            }
            Self::Narrows => {
                let listen = format!("[[listen]]\nurl = \"tcp://{address}\"\n");
                narrows(&own, place, &listen)?
            }
            Self::Peer(peer) => peer.command(&own, place, port)?,
        };
        let running = match self {
            Self::Narrows => Running::logged(command, address, place),
            _ => Running::start(command, address),
        };
        running.map_err(|problem| format!("{} {problem}", self.name()))
    }
}

impl Peer {
    fn command(&self, own: &Path, place: &Path, port: u16) -> Result<Command, String> {
        let template = std::fs::read_to_string(&self.config)
            .map_err(|error| format!("{}: {error}", self.config.display()))?;
        let config = template
            .replace("{worker}", &own.to_string_lossy())
            .replace("{workers}", &WORKERS.to_string())
            .replace("{port}", &port.to_string());
        // The file keeps its name, because some programs infer the format from it.
        let file = place.join(self.config.file_name().unwrap_or("config".as_ref()));
        std::fs::write(&file, config).map_err(|error| format!("{}: {error}", file.display()))?;
        let words = shlex::split(&self.command).unwrap_or_default();
        let mut words = words.into_iter().map(|word| {
            word.replace("{config}", &file.to_string_lossy()).replace("{port}", &port.to_string())
        });
        let program = words.next().ok_or_else(|| format!("`{}` is no command", self.command))?;
        let mut command = Command::new(program);
        command.args(words);
        Ok(command)
    }
}

/// Returns the command of `narrows bus`, which was built into the same directory as this program.
///
/// `listen` is the beginning of its configuration with the listeners, without the pool.
pub(crate) fn narrows(own: &Path, place: &Path, listen: &str) -> Result<Command, String> {
    let program = own.with_file_name("narrows");
    if !program.is_file() {
        return Err("there is no `narrows` beside this program: `cargo xtask bench` builds it".to_owned());
    }
    let (config, none) = (place.join("bus.toml"), place.join("narrows.toml"));
    let written =
        std::fs::write(&config, bus_toml(own, place, listen)).and_then(|()| std::fs::write(&none, ""));
    written.map_err(|error| format!("no configuration: {error}"))?;
    let mut command = Command::new(program);
    command.arg("bus").arg("--config").arg(config);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("NARROWS_")) {
            command.env_remove(name);
        }
    }
    // An empty file instead of the user's configuration.
    command.env("NARROWS_CONFIG", none);
    Ok(command)
}

fn bus_toml(own: &Path, place: &Path, listen: &str) -> String {
    // Written as JSON strings, which are also valid TOML strings.
    let word = |path: &Path| serde_json::Value::from(path.to_string_lossy()).to_string();
    let (worker, admin) = (word(own), word(&place.join(ADMIN_SOCKET)));
    format!(
        "{listen}\n[[pool]]\nname = \"bench\"\ncommand = [{worker}, \"bus-worker\"]\ninstances = {WORKERS}\nshare = \"all\"\nclient_meta = [\"bench\"]\n\n\
         [admin]\nsocket = {admin}\n"
    )
}

pub(crate) fn own() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("this program cannot find itself: {error}"))
}

/// Returns a port that was free a moment ago.
pub(crate) fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

pub(crate) struct Running {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Time from the start until the router was reachable.
    pub(crate) took: Duration,
}

impl Running {
    /// Starts `narrows bus`. If it does not become reachable, the error contains the last line of its log.
    pub(crate) fn logged(mut command: Command, address: SocketAddr, place: &Path) -> Result<Self, String> {
        let log = place.join(LOG_FILE);
        command.stderr(File::create(&log).map_err(|error| error.to_string())?);
        Self::spawn(command, address).map_err(|problem| {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let said = said.lines().last().map(|line| format!(" ({line})")).unwrap_or_default();
            format!("{problem}{said}")
        })
    }

    /// Waits for all workers of `narrows bus`, so that sessions are spread over them. The status requests
    /// use memory in the bus.
    pub(crate) fn staffed(mut self, place: &Path) -> Result<Self, String> {
        self.wait("does not start all its workers", || ready_workers(&place.join(ADMIN_SOCKET)) == WORKERS)?;
        Ok(self)
    }

    pub(crate) fn start(mut command: Command, address: SocketAddr) -> Result<Self, String> {
        command.stderr(Stdio::null());
        Self::spawn(command, address)
    }

    fn spawn(mut command: Command, address: SocketAddr) -> Result<Self, String> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let before = Instant::now();
        let child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
        let mut running = Self { child, address, took: Duration::ZERO };
        running.wait("cannot be reached", || TcpStream::connect(address).is_ok())?;
        running.took = before.elapsed();
        Ok(running)
    }

    fn wait(&mut self, otherwise: &str, is_there: impl Fn() -> bool) -> Result<(), String> {
        let before = Instant::now();
        while !is_there() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("ended with {status}"));
            }
            if before.elapsed() > START_TIMEOUT {
                return Err(format!("{otherwise} after {} s", START_TIMEOUT.as_secs()));
            }
            // sleep: a foreign router does not announce that it listens
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    /// Asks the router to exit, so that it ends its workers, and kills it if it does not.
    fn drop(&mut self) {
        if let Some(process) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            // The router may have exited, but it was not reaped yet, so the id is still its own.
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let end = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            // sleep: polls the exit of a child process
            thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of ready workers of `narrows bus`, by its admin socket.
fn ready_workers(admin: &Path) -> usize {
    let ask = || -> io::Result<Vec<u8>> {
        let mut socket = UnixStream::connect(admin)?;
        socket.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().unwrap_or_default();
    let body = memchr::memmem::find(&answer, b"\r\n\r\n").map_or(&[][..], |head| &answer[head + 4..]);
    let status: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let workers = status["pools"][0]["workers"].as_array();
    workers.into_iter().flatten().filter(|worker| worker["state"] == "ready").count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_gets_its_configuration_and_its_port() {
        let place = tempfile::tempdir().expect("a directory");
        let config = place.path().join("template.json");
        std::fs::write(&config, r#"{"command":"{worker}","instances":{workers}}"#).expect("a file");
        let peer = Peer {
            name: "other".into(),
            command: "router --config {config} --tcp '127.0.0.1:{port}'".into(),
            config,
        };
        let inner = place.path().join("inner");
        std::fs::create_dir(&inner).expect("a directory");
        let command = peer.command(Path::new("echo"), &inner, 77).expect("a command");
        let file = inner.join("template.json");
        assert_eq!(command.get_program(), "router");
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(
            arguments,
            ["--config".as_ref(), file.as_os_str(), "--tcp".as_ref(), "127.0.0.1:77".as_ref()]
        );
        let written = std::fs::read_to_string(file).expect("a file");
        assert_eq!(written, r#"{"command":"echo","instances":4}"#);
    }

    #[test]
    fn the_configuration_of_narrows_quotes_paths() {
        let toml =
            bus_toml(Path::new("a \"b\""), Path::new("d"), "[[listen]]\nurl = \"tcp://127.0.0.1:9\"\n");
        assert!(toml.contains(r#"command = ["a \"b\"", "bus-worker"]"#), "{toml}");
        assert!(toml.contains("url = \"tcp://127.0.0.1:9\""), "{toml}");
    }

    #[test]
    fn a_router_that_ends_at_once_says_so() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 3"]).stdin(Stdio::null());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().expect("a port")));
        let problem = Running::start(command, address).err();
        assert_eq!(problem.as_deref(), Some("ended with exit status: 3"));
    }
}
