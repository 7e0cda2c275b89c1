//! The agent as a whole: what it remembers of its connection, and the loop that takes what comes.

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

use crate::answer::{Owed, Silence};
use crate::player::Player;
use crate::raw::Raw;
use crate::request::{self, Work};
use crate::script::Script;
use crate::script::step::Event;
use crate::session::Session;
use crate::turn;

/// How the agent ended. Whoever ran it makes it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The client has gone.
    PeerLeft,
    /// The script wants the process to exit with this code.
    Exit(u8),
    /// The script wants the process to abort.
    Abort,
}

/// The methods the agent serves. Which of them in which version and with which script is decided when one comes.
const SERVED: &[&str] = &[
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

/// How the agent's end of a conversation behaves.
#[must_use]
pub fn options() -> Options {
    // An agent that hangs must be able to leave many requests unanswered.
    Options { max_requests: 1 << 16, ..Options::agent(|method| SERVED.contains(&method)) }
}

/// How long turns may take to end when the client has gone.
const FAREWELL: Duration = Duration::from_millis(500);

/// Plays `script` on a conversation that was started with [`options`], until the client leaves or the script says
/// otherwise.
///
/// `raw` writes to where the conversation writes, for faults that are no messages. It may block, and it may also refuse
/// to: it is used on a thread of its own, which nobody waits for at the end. A process that runs a script must not handle
/// SIGTERM itself, or the script could not ignore it.
pub async fn run(peer: Peer, mut inbox: Inbox, raw: Box<dyn Write + Send>, script: Script) -> Ended {
    let (fate, mut fated) = watch::channel(None);
    let agent = Arc::new(Agent::new(peer, raw, script, fate));
    let mut tasks = JoinSet::new();
    let start = Arc::clone(&agent).start();
    tokio::select! {
        () = start => {}
        _ = agent.peer.closed() => {}
    }
    let mut gone = false;
    loop {
        tokio::select! {
            biased;
            Ok(ended) = fated.wait_for(Option::is_some) => {
                // What has not been taken yet would be answered when it is dropped.
                std::mem::forget(inbox);
                return ended.unwrap_or(Ended::PeerLeft);
            }
            item = inbox.recv(), if !gone => match item {
                Some(item) => {
                    if let Some(work) = agent.accept(item) {
                        tasks.spawn(work);
                    }
                }
                None if agent.ignores_eof.load(Ordering::Acquire) => gone = true,
                None => break,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
    let farewell = async { while tasks.join_next().await.is_some() {} };
    // Whoever does not end by then is cut off, and whoever asked has gone.
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
    Ended::PeerLeft
}

/// What all sessions share.
pub(crate) struct Agent {
    pub(crate) peer: Peer,
    pub(crate) script: Script,
    pub(crate) raw: Raw,
    pub(crate) silence: Silence,
    pub(crate) ignores_cancel: AtomicBool,
    pub(crate) ignores_eof: AtomicBool,
    connection: Mutex<Connection>,
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
    messages: AtomicU64,
    fate: watch::Sender<Option<Ended>>,
}

/// What is known of the client.
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
        fate: watch::Sender<Option<Ended>>,
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
            raw: Raw::new(raw),
            silence: Silence::default(),
            ignores_cancel: AtomicBool::new(false),
            ignores_eof: AtomicBool::new(false),
            connection: Mutex::new(connection),
            sessions: Mutex::default(),
            messages: AtomicU64::new(0),
            fate,
        }
    }

    /// What the script does before anything is read.
    async fn start(self: Arc<Self>) {
        let mut player = Player::new(Arc::clone(&self), None);
        // Nothing waits for an answer, so it does not matter how it ended.
        let _ = player.play(self.script.on(Event::Start)).await;
    }

    /// Takes what has come; what needs time is returned, to be done beside the rest.
    fn accept(self: &Arc<Self>, item: Item) -> Option<Work> {
        match item {
            Item::Request(request) => {
                let owed = Owed::new(request.responder, &self.silence);
                let method = request.frame.method()?;
                match &*method {
                    _ if self.silence.has_fallen() => None,
                    method::SESSION_PROMPT => turn::accept(self, &request.frame, owed),
                    _ => request::accept(self, &request.frame, &method, owed),
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

    /// Ends the agent.
    pub(crate) fn end(&self, ended: Ended) {
        self.silence.fall();
        self.fate.send_replace(Some(ended));
    }

    pub(crate) fn connection(&self) -> MutexGuard<'_, Connection> {
        // No code panics while it holds the lock; were it so, the values would still be consistent.
        lock(&self.connection)
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Session>>> {
        // As above.
        lock(&self.sessions)
    }

    /// The session of this id.
    pub(crate) fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions().get(id).cloned()
    }

    /// The version the connection speaks; before that is settled nothing is said in either.
    pub(crate) fn version(&self) -> Version {
        self.connection().handshake.version().unwrap_or(Version::V1)
    }

    /// What the client can do.
    pub(crate) fn client(&self) -> ClientCan {
        self.connection().client
    }

    /// A new id for a message.
    pub(crate) fn message_id(&self) -> String {
        format!("message-{}", self.messages.fetch_add(1, Ordering::Relaxed) + 1)
    }
}
