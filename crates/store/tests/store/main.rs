//! The store as others use it: in memory, on disk, and shared between processes.
#![expect(clippy::unwrap_used, reason = "what goes wrong in a role or a helper fails the test")]

mod claims;
mod files;
mod histories;
mod lists;
mod processes;
mod properties;

use narrows_store::{NewSession, Store, Turn};
use tempfile::TempDir;

/// A store in a directory of its own, which goes with the second value.
fn on_disk() -> (Store, TempDir) {
    let place = tempfile::tempdir().unwrap();
    (Store::new(place.path().to_owned()), place)
}

/// A session in `/a`.
fn new(id: &str) -> NewSession {
    new_in(id, "/a")
}

fn new_in(id: &str, cwd: &str) -> NewSession {
    NewSession { id: id.into(), cwd: cwd.into(), roots: vec!["/r".into()], settings: "{}".into() }
}

/// A turn that can be told from others.
fn turn(text: &str) -> Turn {
    Turn::new(vec![format!("m {text}"), format!("n {text}")], vec![format!("r {text}")])
}

/// What the model gets of `history`.
fn messages(history: &[Turn]) -> Vec<&str> {
    history.iter().flat_map(|turn| &turn.messages).map(String::as_str).collect()
}

/// What the client is shown of `history`.
fn replay(history: &[Turn]) -> Vec<&str> {
    history.iter().flat_map(|turn| &turn.replay).map(String::as_str).collect()
}
