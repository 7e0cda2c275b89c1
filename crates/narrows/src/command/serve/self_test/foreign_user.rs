//! A connection of a foreign user to a socket like that of `--listen unix:`.

use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use narrows_audit::{Log, LogOptions};
use narrows_govern::IdentityMethod;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_uid;
use serde_json::Value;
use tokio::net::UnixListener;
use tokio::time::timeout;

use crate::command::serve::identities::{Identities, UNAUTHENTICATED_OPTIONS, serve_unauthenticated};
use crate::command::serve::manifest::LoadedManifest;
use crate::command::serve::refusal_log::ClientRefusalLog;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// User ids that are rarely in use.
const UID_RANGE: std::ops::Range<u32> = 61_000..65_000;

const REQUESTS: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}"#,
    "\n",
    r#"{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}"#,
    "\n"
);

#[derive(Clone, Debug)]
pub(super) enum ForeignUserResult {
    /// The user only learned how to authenticate.
    Refused(String),
    /// The user was admitted, or the attempt was not logged.
    Admitted(String),
    NotTried(String),
}

pub(super) async fn try_connect(identities: &Identities, manifest: &LoadedManifest) -> ForeignUserResult {
    if !geteuid().is_root() {
        return ForeignUserResult::NotTried("only root can connect as another user".to_owned());
    }
    let Some(user) =
        UID_RANGE.into_iter().find(|user| identities.admit(Some(*user), IdentityMethod::UnixPeer).is_err())
    else {
        return ForeignUserResult::NotTried("every user may connect".to_owned());
    };
    match try_as_user(identities, manifest, user).await {
        Ok(foreign_user) => foreign_user,
        Err(error) => {
            ForeignUserResult::NotTried(format!("another user cannot reach a socket here: {error}"))
        }
    }
}

async fn try_as_user(
    identities: &Identities,
    manifest: &LoadedManifest,
    user: u32,
) -> io::Result<ForeignUserResult> {
    let directory = tempfile::tempdir()?;
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o711))?;
    let socket = directory.path().join("door");
    let listener = UnixListener::bind(&socket)?;
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
    // The system reports the user of the connecting thread.
    let visit = std::thread::spawn(move || connect_as(&socket, user));
    let accepted = timeout(CONNECT_TIMEOUT, listener.accept()).await;
    let Ok(Ok((stream, _))) = accepted else {
        return Err(join_client(visit).err().unwrap_or_else(|| io::ErrorKind::TimedOut.into()));
    };
    let known = stream.peer_cred()?.uid();
    let who = match identities.admit(Some(known), IdentityMethod::UnixPeer) {
        Ok(who) => {
            return Ok(ForeignUserResult::Admitted(format!(
                "a user with id {user} was admitted as {}",
                who.id
            )));
        }
        Err(who) => who,
    };
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default()).map_err(io::Error::other)?;
    let (reader, writer) = stream.into_split();
    let link = narrows_link::stream(reader, writer, &UNAUTHENTICATED_OPTIONS);
    ClientRefusalLog::default().record(manifest, Some(&log), &who).await;
    serve_unauthenticated(&who, link, std::future::pending()).await;
    log.close();
    let answers =
        tokio::task::spawn_blocking(move || join_client(visit)).await.map_err(io::Error::other)??;
    let offered = answers.first().and_then(|answer| answer["result"]["authMethods"].as_array()).map(Vec::len);
    let refused = answers.get(1).map(|answer| answer["error"]["code"].clone()).unwrap_or_default();
    let recorded = std::fs::read_to_string(&path)?.contains("\"client.refused\"");
    let words = format!(
        "{} on a unix socket: {} authentication method, session/new {refused}, {} in a log",
        who.id,
        offered.unwrap_or_default(),
        if recorded { "client.refused" } else { "nothing" }
    );
    let is_held = offered == Some(1) && refused == -32000 && recorded;
    Ok(if is_held { ForeignUserResult::Refused(words) } else { ForeignUserResult::Admitted(words) })
}

fn join_client(visit: std::thread::JoinHandle<io::Result<Vec<Value>>>) -> io::Result<Vec<Value>> {
    visit.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// Connects as another user, sends all requests and reads two responses.
fn connect_as(socket: &Path, user: u32) -> io::Result<Vec<Value>> {
    set_thread_uid(Uid::from_raw(user))?;
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    stream.write_all(REQUESTS.as_bytes())?;
    let lines = BufReader::new(&stream).lines().take(2);
    lines.map(|line| Ok(serde_json::from_str(&line?).unwrap_or_default())).collect()
}
