//! Test fixture: a scripted agent, MCP servers, and the services between them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narrows_acp::method::MCP_MESSAGE;
use narrows_base::sync::lock;
use narrows_link::memory;
use narrows_mcp::Options;
use narrows_process::Environment;
use narrows_rpc::{CallError, Inbox, Item, Peer, start};
use narrows_testkit::example::example;
use narrows_testkit::wait::{alive_with_marker, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    CommandService, FileService, Gate, HostServer, Hosted, HostedServer, HostedServerKind, Hosting, Limits,
    Offer, Pending, Ran, Refusal, Run, ServerConfig, ServerRequest, ServiceError, Transport,
};

pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the path of `examples/mcp_server.rs` of the crate `mcp`, which cargo builds with the tests.
fn program() -> String {
    example("narrows-mcp", "mcp_server")
}

/// A host with one server process `s` and the built-in server.
pub(super) struct Fixture {
    pub(super) agent: Peer,
    pub(super) inbox: Inbox,
    pub(super) hosted: Hosted,
    pub(super) gate: Arc<Porter>,
    pub(super) host: Arc<Host>,
    place: TempDir,
    requests: Mutex<u32>,
}

pub(super) struct Porter {
    asked: Mutex<Vec<ServerRequest>>,
    verdict: Mutex<Verdict>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    Yes,
    No,
    Never,
}

impl Porter {
    pub(super) fn asked(&self) -> Vec<ServerRequest> {
        lock(&self.asked).clone()
    }

    pub(super) fn says(&self, verdict: Verdict) {
        *lock(&self.verdict) = verdict;
    }
}

impl Gate for Porter {
    fn authorize(&self, asked: ServerRequest) -> Pending<'_, Result<(), Refusal>> {
        Box::pin(async {
            lock(&self.asked).push(asked);
            let verdict = *lock(&self.verdict);
            match verdict {
                Verdict::Yes => Ok(()),
                Verdict::No => Err(Refusal("the rule book forbids it".into())),
                Verdict::Never => std::future::pending().await,
            }
        })
    }
}

#[derive(Default)]
pub(super) struct Host {
    asked: Mutex<Vec<String>>,
}

impl Host {
    pub(super) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.asked))
    }

    fn note(&self, text: String) {
        lock(&self.asked).push(text);
    }
}

impl FileService for Host {
    fn read(
        &self,
        path: PathBuf,
        line: Option<u32>,
        limit: Option<u32>,
    ) -> Pending<'_, Result<String, ServiceError>> {
        Box::pin(async move {
            self.note(format!("read {} {line:?} {limit:?}", path.display()));
            if path.starts_with("/outside") {
                return Err(ServiceError("it is outside".into()));
            }
            Ok("text\n".into())
        })
    }

    fn write(&self, path: PathBuf, text: String) -> Pending<'_, Result<(), ServiceError>> {
        Box::pin(async move {
            self.note(format!("write {} {text:?}", path.display()));
            Ok(())
        })
    }
}

impl CommandService for Host {
    fn run(&self, run: Run) -> Pending<'_, Result<Ran, ServiceError>> {
        Box::pin(async move {
            self.note(format!("run {run:?}"));
            match run.program.as_str() {
                "forbidden" => Err(ServiceError("the rule book forbids it".into())),
                "slow" => Ok(Ran { output: "half".into(), timed_out: true, ..Ran::default() }),
                "killed" => Ok(Ran { truncated: true, signal: Some("SIGKILL".into()), ..Ran::default() }),
                "stuck" => std::future::pending().await,
                _ => Ok(Ran { output: "out".into(), code: Some(1), ..Ran::default() }),
            }
        })
    }
}

pub(super) fn host_server() -> HostServer {
    let host = Arc::new(Host::default());
    HostServer::new(Offer { read: true, write: true, run: true }, host.clone(), host)
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with(Limits::default())
    }

    pub(super) fn with(limits: Limits) -> Self {
        let (near, far) = memory::pair(&narrows_link::Options::default());
        let (client, mut requests) = start(near, narrows_rpc::Options::client(Hosted::takes));
        let (agent, inbox) = start(far, narrows_rpc::Options::agent(|method| method == MCP_MESSAGE));
        let hosted = Hosted::new(limits);
        let serving = hosted.clone();
        tokio::spawn(async move {
            while let Some(item) = requests.recv().await {
                if let Item::Request(request) = item {
                    serving.serve(request, &client, None);
                }
            }
        });
        let gate = Arc::new(Porter { asked: Mutex::default(), verdict: Mutex::new(Verdict::Yes) });
        let place = tempfile::tempdir().expect("a directory");
        Self { agent, inbox, hosted, gate, host: Arc::default(), place, requests: Mutex::default() }
    }

    pub(super) fn options(&self) -> Options {
        Options::new(self.place.path(), Environment::empty())
    }

    /// Starts the server `s` with a fault, and the built-in server as `host`.
    pub(super) fn host(&self, fault: &str) -> Hosting {
        self.host_with(fault, self.options())
    }

    pub(super) fn host_with(&self, fault: &str, options: Options) -> Hosting {
        let args = vec![fault.to_owned(), self.notes()];
        let transport = Transport::Stdio { command: program(), args, env: Vec::new() };
        let server = HostedServerKind::Server(ServerConfig { name: "files".into(), transport });
        let offer = Offer { read: true, write: true, run: true };
        let own = HostedServerKind::Host(HostServer::new(offer, self.host.clone(), self.host.clone()));
        let hosted = vec![
            HostedServer { id: "s".into(), kind: server },
            HostedServer { id: "host".into(), kind: own },
        ];
        let gate: Arc<dyn Gate> = self.gate.clone();
        self.hosted.host(hosted, options, &gate)
    }

    fn notes(&self) -> String {
        self.place.path().join("notes").into_os_string().into_string().expect("a path of ASCII")
    }

    pub(super) fn noted(&self) -> String {
        std::fs::read_to_string(self.notes()).unwrap_or_default()
    }

    pub(super) async fn notes_hold(&self, text: &str) -> bool {
        wait_until(TEST_TIMEOUT, || self.noted().contains(text)).await
    }

    pub(super) fn alive(&self) -> Vec<u32> {
        alive_with_marker(self.place.path().to_str().expect("a path of ASCII"))
    }

    pub(super) fn fresh(&self) -> String {
        let mut requests = lock(&self.requests);
        *requests += 1;
        format!("r{requests}")
    }

    pub(super) async fn ask(&self, method: &str, params: Value) -> Result<Value, i64> {
        match self.agent.request(method, &params, TEST_TIMEOUT).await {
            Ok(result) => Ok(result),
            Err(CallError::Refused(error)) => Err(error.code),
            Err(error) => panic!("{method} {params}: {error}"),
        }
    }

    pub(super) async fn message(&self, server: &str, method: &str, params: Value) -> Result<Value, i64> {
        let request = self.fresh();
        let message = json!({"serverId": server, "requestId": request, "method": method, "params": params});
        self.ask(MCP_MESSAGE, message).await
    }

    pub(super) async fn call(&self, server: &str, tool: &str, arguments: Value) -> Result<Value, i64> {
        self.message(server, "tools/call", json!({"name": tool, "arguments": arguments})).await
    }
}
