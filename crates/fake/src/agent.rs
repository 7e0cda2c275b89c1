//! The agent's state, shared by all sessions, and the loop that handles what the client sends.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use narrows_acp::agree::Handshake;
use narrows_acp::capability::ClientCan;
use narrows_acp::{Version, method};
use narrows_base::sync::lock;
use narrows_rpc::{Inbox, Item, Options, Peer};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::raw_output::RawOutput;
use crate::request::{self, RequestFuture};
use crate::script::Script;
use crate::script::step::Event;
use crate::scripted_response::{ScriptedResponse, SilenceFlag};
use crate::session::Session;
use crate::step_runner::StepRunner;
use crate::turn;

/// End of the agent. The caller of [`run`] acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    PeerLeft,
    Exit(u8),
    Abort,
}

/// Methods that the agent serves. Version and script are checked when a request arrives.
const SERVED_METHODS: &[&str] = &[
    method::INITIALIZE,
    method::AUTHENTICATE,
    method::LOGOUT,
    method::AUTH_LOGIN,
    method::AUTH_LOGOUT,
    method::SESSION_NEW,
    method::SESSION_LOAD,
    method::SESSION_RESUME,
    method::SESSION_LIST,
    method::SESSION_CLOSE,
    method::SESSION_DELETE,
    method::SESSION_SET_MODE,
    method::SESSION_SET_CONFIG_OPTION,
    method::SESSION_PROMPT,
    method::SESSION_CANCEL,
    method::TOOL_CALL_CANCEL,
    method::TERMINAL_CANCEL,
];

/// Returns the RPC options of the agent's end of a conversation.
#[must_use]
pub fn options() -> Options {
    // A script may leave many requests unanswered, so the limit of open requests is high.
    Options { max_requests: 1 << 16, ..Options::agent(|method| SERVED_METHODS.contains(&method)) }
}

/// Time for running turns to end after the client disconnects.
const TURN_END_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs `script` in a conversation that was started with [`options`], until the client disconnects or the
/// script ends the agent.
///
/// `raw` writes bytes that are not messages to the output of the conversation. It may block or return
/// `WouldBlock`: it is used on a separate thread, which this function does not wait for. The process must not
/// handle SIGTERM itself, or the script could not ignore it.
pub async fn run(peer: Peer, mut inbox: Inbox, raw: Box<dyn Write + Send>, script: Script) -> Ended {
    let (ended, mut ended_rx) = watch::channel(None);
    let agent = Arc::new(Agent::new(peer, raw, script, ended));
    let mut tasks = JoinSet::new();
    let start = Arc::clone(&agent).start();
    tokio::select! {
        () = start => {}
        _ = agent.peer.closed() => {}
    }
    let mut at_eof = false;
    loop {
        tokio::select! {
            biased;
            Ok(ended) = ended_rx.wait_for(Option::is_some) => {
                // Dropping the inbox would answer the requests that it holds.
                std::mem::forget(inbox);
                return ended.unwrap_or(Ended::PeerLeft);
            }
            item = inbox.recv(), if !at_eof => match item {
                Some(item) => {
                    if let Some(work) = agent.handle_item(item) {
                        tasks.spawn(work);
                    }
                }
                None if agent.ignores_eof.load(Ordering::Acquire) => at_eof = true,
                None => break,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
    let turn_ends = async { while tasks.join_next().await.is_some() {} };
    // Turns that take longer are dropped, because the client has disconnected anyway.
    let _ = tokio::time::timeout(TURN_END_TIMEOUT, turn_ends).await;
    Ended::PeerLeft
}

pub(crate) struct Agent {
    pub(crate) peer: Peer,
    pub(crate) script: Script,
    pub(crate) raw: RawOutput,
    pub(crate) silence: SilenceFlag,
    pub(crate) ignores_cancel: AtomicBool,
    pub(crate) ignores_eof: AtomicBool,
    connection: Mutex<Connection>,
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
    messages: AtomicU64,
    ended: watch::Sender<Option<Ended>>,
}

/// State of the connection, set by `initialize` and by authentication.
pub(crate) struct Connection {
    pub(crate) handshake: Handshake,
    pub(crate) client: ClientCan,
    pub(crate) logged_in: bool,
    pub(crate) last_session: u64,
}

impl Agent {
    fn new(
        peer: Peer,
        raw: Box<dyn Write + Send>,
        script: Script,
        ended: watch::Sender<Option<Ended>>,
    ) -> Self {
        let connection = Connection {
            handshake: Handshake::new(script.protocol),
            client: ClientCan::default(),
            logged_in: false,
            last_session: 0,
        };
        Self {
            peer,
            script,
            raw: RawOutput::new(raw),
            silence: SilenceFlag::default(),
            ignores_cancel: AtomicBool::new(false),
            ignores_eof: AtomicBool::new(false),
            connection: Mutex::new(connection),
            sessions: Mutex::default(),
            messages: AtomicU64::new(0),
            ended,
        }
    }

    /// Runs the script's start steps. Nothing is read from the client before.
    async fn start(self: Arc<Self>) {
        let mut runner = StepRunner::new(Arc::clone(&self), None);
        // No request waits for a response to these steps, so their outcome does not matter.
        let _ = runner.run_steps(self.script.on(Event::Start)).await;
    }

    /// Handles a message at once, or returns a future if handling takes time.
    fn handle_item(self: &Arc<Self>, item: Item) -> Option<RequestFuture> {
        match item {
            Item::Request(request) => {
                let response = ScriptedResponse::new(request.responder, &self.silence);
                let method = request.frame.method()?;
                match &*method {
                    _ if self.silence.is_set() => None,
                    method::SESSION_PROMPT => turn::handle_prompt(self, &request.frame, response),
                    _ => request::handle(self, &request.frame, &method, response),
                }
            }
            Item::Notification(frame) => {
                if frame.method().as_deref() == Some(method::SESSION_CANCEL)
                    && let Some(session) = frame.session().and_then(|id| self.session(&id))
                {
                    turn::cancel(self, &session);
                }
                None
            }
            Item::Answer(_) => None,
        }
    }

    pub(crate) fn end(&self, ended: Ended) {
        self.silence.set();
        self.ended.send_replace(Some(ended));
    }

    pub(crate) fn connection(&self) -> MutexGuard<'_, Connection> {
        // No code panics while it holds this lock. Even after a panic, the values would be consistent.
        lock(&self.connection)
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Session>>> {
        lock(&self.sessions)
    }

    pub(crate) fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions().get(id).cloned()
    }

    pub(crate) fn version(&self) -> Version {
        self.connection().handshake.version().unwrap_or(Version::V1)
    }

    pub(crate) fn client(&self) -> ClientCan {
        self.connection().client
    }

    pub(crate) fn message_id(&self) -> String {
        format!("message-{}", self.messages.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
