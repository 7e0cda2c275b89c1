//! Tests of the public API: in memory, on disk, and with several processes.
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

fn new(id: &str) -> NewSession {
    new_in(id, "/a")
}

fn new_in(id: &str, cwd: &str) -> NewSession {
    NewSession { id: id.into(), cwd: cwd.into(), roots: vec!["/r".into()], settings: "{}".into() }
}

fn turn(text: &str) -> Turn {
    Turn::new(vec![format!("m {text}"), format!("n {text}")], vec![format!("r {text}")])
}

fn messages(history: &[Turn]) -> Vec<&str> {
    history.iter().flat_map(|turn| &turn.messages).map(String::as_str).collect()
}

fn replay(history: &[Turn]) -> Vec<&str> {
    history.iter().flat_map(|turn| &turn.replay).map(String::as_str).collect()
}
