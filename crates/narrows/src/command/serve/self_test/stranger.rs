//! Somebody who may not come in, and really tries to: another user, at a socket like that of `--listen unix:`.

use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use narrows_audit::{Log, Options};
use narrows_govern::Method;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_uid;
use serde_json::Value;
use tokio::net::UnixListener;
use tokio::time::timeout;

use crate::command::serve::charge::Charge;
use crate::command::serve::guests::{Guests, NOT_ADMITTED_OPTIONS, turn_away};
use crate::command::serve::refusals::Refusals;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Users that hardly anybody is.
const USERS: std::ops::Range<u32> = 61_000..65_000;

/// What the stranger says.
const WORDS: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}"#,
    "\n",
    r#"{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}"#,
    "\n"
);

/// What came of it.
#[derive(Clone, Debug)]
pub(super) enum Knock {
    /// They were told how to come in, and nothing else; in words.
    TurnedAway(String),
    /// They came in, or nobody wrote down that they tried.
    LetIn(String),
    /// Nobody could try, and why.
    NotTried(String),
}

/// Has a stranger try to come in.
pub(super) async fn knock(guests: &Guests, charge: &Charge) -> Knock {
    if !geteuid().is_root() {
        return Knock::NotTried("only root can try as another user".to_owned());
    }
    let Some(user) = USERS.into_iter().find(|user| guests.admit(Some(*user), Method::UnixPeer).is_err())
    else {
        return Knock::NotTried("everybody may come in".to_owned());
    };
    match tried(guests, charge, user).await {
        Ok(knock) => knock,
        Err(error) => Knock::NotTried(format!("another user cannot reach a socket here: {error}")),
    }
}

async fn tried(guests: &Guests, charge: &Charge, user: u32) -> io::Result<Knock> {
    let place = tempfile::tempdir()?;
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o711))?;
    let door = place.path().join("door");
    let listener = UnixListener::bind(&door)?;
    std::fs::set_permissions(&door, Permissions::from_mode(0o666))?;
    // Who somebody is goes by the thread that connects.
    let visit = std::thread::spawn(move || visit(&door, user));
    let accepted = timeout(PATIENCE, listener.accept()).await;
    let Ok(Ok((stream, _))) = accepted else {
        return Err(joined(visit).err().unwrap_or_else(|| io::ErrorKind::TimedOut.into()));
    };
    let known = stream.peer_cred()?.uid();
    let stranger = match guests.admit(Some(known), Method::UnixPeer) {
        Ok(who) => {
            return Ok(Knock::LetIn(format!("somebody with the number {user} was let in as {}", who.id)));
        }
        Err(stranger) => stranger,
    };
    let path = place.path().join("audit-log.jsonl");
    let log = Log::open(&path, Options::default()).map_err(io::Error::other)?;
    let (reader, writer) = stream.into_split();
    let link = narrows_link::stream(reader, writer, &NOT_ADMITTED_OPTIONS);
    Refusals::default().record(charge, Some(&log), &stranger).await;
    turn_away(&stranger, link, std::future::pending()).await;
    log.close();
    let answers = tokio::task::spawn_blocking(move || joined(visit)).await.map_err(io::Error::other)??;
    let offered = answers.first().and_then(|answer| answer["result"]["authMethods"].as_array()).map(Vec::len);
    let refused = answers.get(1).map(|answer| answer["error"]["code"].clone()).unwrap_or_default();
    let recorded = std::fs::read_to_string(&path)?.contains("\"client.refused\"");
    let words = format!(
        "{} at a unix socket: {} way to authenticate, session/new {refused}, {} in a log",
        stranger.id,
        offered.unwrap_or_default(),
        if recorded { "client.refused" } else { "nothing" }
    );
    let is_held = offered == Some(1) && refused == -32000 && recorded;
    Ok(if is_held { Knock::TurnedAway(words) } else { Knock::LetIn(words) })
}

fn joined(visit: std::thread::JoinHandle<io::Result<Vec<Value>>>) -> io::Result<Vec<Value>> {
    visit.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// Comes in as another user, says everything, and hears two answers.
fn visit(door: &Path, user: u32) -> io::Result<Vec<Value>> {
    set_thread_uid(Uid::from_raw(user))?;
    let mut stream = UnixStream::connect(door)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(WORDS.as_bytes())?;
    let lines = BufReader::new(&stream).lines().take(2);
    lines.map(|line| Ok(serde_json::from_str(&line?).unwrap_or_default())).collect()
}
