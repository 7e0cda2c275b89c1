//! Sessions with the scripted agent.

use std::path::PathBuf;
use std::sync::Arc;

use narrows_acp::Version;
use narrows_client::{
    Agent, Offer, PermissionHandler, RunHandle, Runtime, RuntimeEvent, Session, SessionConfig,
};
use narrows_link::Link;
use narrows_policy::{Access, Narrowing, Policy};
use narrows_process::Spec;
use narrows_testkit::fake::{Script, options, run};
use narrows_testkit::peer::pair;
use serde_json::Value;
use tokio::task::JoinHandle;

pub(crate) const VERSIONS: [Version; 2] = [Version::V1, Version::V2];

pub(crate) struct Stage {
    pub(crate) agent: Agent,
    pub(crate) offer: Offer,
    pub(crate) config: SessionConfig,
    pub(crate) begin: Begin,
    /// Holds the session's directory until the end of the test.
    place: tempfile::TempDir,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum Begin {
    #[default]
    New,
    Resume(String),
    Fork(String),
}

pub(crate) struct Driven {
    pub(crate) runtime: Runtime,
    pub(crate) session: Session,
    place: tempfile::TempDir,
    agent: JoinHandle<()>,
}

impl Stage {
    /// Creates an agent with this version and access. All capabilities are offered, without a sandbox and a
    /// user.
    pub(crate) fn new(version: Version, access: Access) -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().canonicalize().expect("it is there");
        let mut agent = Agent::new("fake", Spec::new("fake"));
        agent.protocol = version;
        let mut config = SessionConfig::new(root, Arc::new(Policy::new(access, Narrowing::default())));
        config.sandbox = false;
        let offer = Offer { read_files: true, write_files: true, run_commands: true };
        Self { agent, offer, config, begin: Begin::New, place }
    }

    pub(crate) fn asking(mut self, decide: impl PermissionHandler + 'static) -> Self {
        self.config.on_permission = Some(Arc::new(decide));
        self
    }

    /// Opens a session with `script`: the name of a built-in script, or TOML.
    pub(crate) async fn open(self, script: &str) -> Driven {
        let script = Script::builtin(script).unwrap_or_else(|| Script::parse(script).expect("a script"));
        let (link, far, raw) = pair();
        let (peer, inbox) = narrows_rpc::start(far, options());
        let agent = tokio::spawn(async {
            run(peer, inbox, raw, script).await;
        });
        self.open_on(link, agent).await
    }

    /// Opens a session with the `agent` at the other end of `link`.
    pub(crate) async fn open_on(self, link: Link, agent: JoinHandle<()>) -> Driven {
        let runtime = Runtime::connect(self.agent, link, self.offer).await.expect("an agent");
        let session = match &self.begin {
            Begin::New => runtime.open_session(self.config).await,
            Begin::Resume(id) => runtime.resume_session(id, self.config).await,
            Begin::Fork(id) => runtime.fork_session(id, self.config).await,
        };
        let session = session.expect("a session");
        Driven { runtime, session, place: self.place, agent }
    }
}

impl Driven {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().canonicalize().expect("it is there").join(name)
    }

    pub(crate) async fn leave(self) {
        self.session.close().await;
        self.runtime.close().await;
        self.agent.await.expect("the agent ends");
    }
}

/// Returns the types of the events, with the payload's type for `provider.event`, and without repetitions.
pub(crate) fn kinds(events: &[RuntimeEvent]) -> Vec<String> {
    let kind = |event: &RuntimeEvent| {
        let event = serde_json::to_value(event).expect("an event");
        match event["payload"]["type"].as_str() {
            Some("session.update") => {
                event["payload"]["update"]["sessionUpdate"].as_str().unwrap_or_default().to_owned()
            }
            Some(payload) => payload.to_owned(),
            None => event["type"].as_str().unwrap_or_default().to_owned(),
        }
    };
    let mut kinds: Vec<String> = events.iter().map(kind).collect();
    kinds.dedup();
    kinds
}

pub(crate) fn payloads(events: &[RuntimeEvent], name: &str) -> Vec<Value> {
    let payload = |event: &RuntimeEvent| serde_json::to_value(event).expect("an event")["payload"].clone();
    events.iter().map(payload).filter(|payload| payload["type"] == name).collect()
}

pub(crate) async fn all(handle: &mut RunHandle) -> Vec<RuntimeEvent> {
    let mut events = Vec::new();
    while let Some(event) = handle.next().await {
        events.push(event);
    }
    events
}
