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

/// Returns a store in a new directory, which is removed with the second value.
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

/// Returns a turn with recognizable text.
fn turn(text: &str) -> Turn {
    Turn::new(vec![format!("m {text}"), format!("n {text}")], vec![format!("r {text}")])
}

/// Returns the messages of `history` for the model.
fn messages(history: &[Turn]) -> Vec<&str> {
    history.iter().flat_map(|turn| &turn.messages).map(String::as_str).collect()
}

/// Returns the messages of `history` for the client.
fn replay(history: &[Turn]) -> Vec<&str> {
    history.iter().flat_map(|turn| &turn.replay).map(String::as_str).collect()
}
