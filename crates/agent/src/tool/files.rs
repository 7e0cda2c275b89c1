//! Files of the user, through the client: never the disk itself.

use std::path::Path;
use std::time::Duration;

use narrows_acp::method::{FS_READ_TEXT_FILE, FS_WRITE_TEXT_FILE};
use narrows_model::Part;
use narrows_rpc::CallError;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::call::{Done, Job, Seen, Task, number, text};
use super::permission::Grant;
use crate::compact::middle_cut;
use crate::content::Block;
use crate::read::normal;
use crate::session::Place;
use crate::shown::{Status, ToolCall, ToolContent, ToolKind};
use crate::turn::Turn;
use crate::voice::new_id;

/// How long a client may take for a file.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much of a file that a prompt links to is put into it.
const MAX_LINKED: usize = 256 << 10;

/// How much of a file is shown beside the call that read it.
const MAX_SHOWN: usize = 32 << 10;

#[derive(Deserialize)]
struct ReadFile {
    content: String,
}

impl Place {
    /// The file that `path`, a path or a `file:` URI, means, if it lies in the directories of the session.
    pub(crate) fn resolve(&self, path: &str) -> Result<String, String> {
        let named = match path.strip_prefix("file:") {
            Some(_) => url::Url::parse(path)
                .ok()
                .and_then(|url| url.to_file_path().ok())
                .ok_or_else(|| format!("{path} is no file of this machine."))?,
            None => Path::new(path).to_owned(),
        };
        let absolute = normal(&Path::new(&self.cwd).join(named));
        let roots = std::iter::once(&self.cwd).chain(&self.roots);
        let inside = roots.into_iter().any(|root| absolute.starts_with(normal(Path::new(root))));
        match absolute.to_str() {
            Some(text) if inside && !text.contains('\0') => Ok(text.to_owned()),
            _ => Err(format!("{path} is outside the directories of this session.")),
        }
    }
}

impl Turn {
    async fn read_file(
        &self,
        path: &str,
        line: Option<u64>,
        limit: Option<u64>,
    ) -> Result<String, CallError> {
        let mut params = json!({"sessionId": &*self.session.id, "path": path});
        if let Some(line) = line {
            params["line"] = line.into();
        }
        if let Some(limit) = limit {
            params["limit"] = limit.into();
        }
        let file: ReadFile = self.peer.request(FS_READ_TEXT_FILE, &params, PATIENCE).await?;
        Ok(file.content)
    }

    /// The blocks of a prompt with the files it links to in the places of their links, as far as the client has them.
    pub(crate) async fn fetch(&self, blocks: Vec<Block>) -> Vec<Block> {
        if !self.agent.client().can.read_text_file {
            return blocks;
        }
        let place = self.session.state().place.clone();
        let mut fetched = Vec::with_capacity(blocks.len());
        for block in blocks {
            fetched.push(match block {
                Block::Link { uri, name } => match place.resolve(&uri) {
                    Ok(path) if is_file(&uri) => match self.read_file(&path, None, None).await {
                        Ok(text) => Block::Resource { uri, text: middle_cut(&text, MAX_LINKED) },
                        Err(error) => {
                            tracing::debug!(%error, "a linked file is left a link");
                            Block::Link { uri, name }
                        }
                    },
                    _ => Block::Link { uri, name },
                },
                block => block,
            });
        }
        fetched
    }
}

/// Whether a link means a file: some clients give a path in the place of a URI.
fn is_file(uri: &str) -> bool {
    uri.starts_with("file:") || url::Url::parse(uri).is_err()
}

fn shown(name: &str, kind: ToolKind, title: String, path: &str, input: &Map<String, Value>) -> ToolCall {
    ToolCall {
        id: new_id(),
        title,
        name: name.to_owned(),
        kind,
        status: Status::Pending,
        content: Vec::new(),
        locations: vec![path.to_owned()],
        input: Value::Object(input.clone()),
        output: None,
    }
}

/// `path` as a user of the session would write it.
fn short<'a>(place: &Place, path: &'a str) -> &'a str {
    path.strip_prefix(&place.cwd)
        .map(|rest| rest.trim_start_matches('/'))
        .filter(|rest| !rest.is_empty())
        .unwrap_or(path)
}

/// `read_file`: nothing changes, so nobody is asked.
pub(super) fn read(place: &Place, arguments: &Map<String, Value>) -> Result<Job, String> {
    let path = place.resolve(text(arguments, "path")?)?;
    let (line, limit) = (number(arguments, "line")?, number(arguments, "limit")?);
    let title = format!("Read {}", short(place, &path));
    let shown = shown("read_file", ToolKind::Read, title, &path, arguments);
    Ok(Job { shown, grant: None, task: Task::Read { path, line, limit } })
}

pub(super) async fn perform_read(turn: &Turn, path: &str, line: Option<u64>, limit: Option<u64>) -> Done {
    match turn.read_file(path, line, limit).await {
        Ok(text) => Done {
            content: Some(vec![ToolContent::text(middle_cut(&text, MAX_SHOWN))]),
            output: json!({"bytes": text.len()}),
            parts: vec![Part::text(text)],
            failed: false,
        },
        Err(error) => Done::failed(format!("The file could not be read: {}", reason(&error))),
    }
}

/// `write_file`: the user is shown the difference.
pub(super) async fn write(turn: &Turn, place: &Place, arguments: &Map<String, Value>) -> Result<Job, String> {
    let path = place.resolve(text(arguments, "path")?)?;
    let content = text(arguments, "content")?.to_owned();
    let seen = match turn.agent.client().can.read_text_file {
        // That there is none yet is the usual case.
        true => Seen::Read(turn.read_file(&path, None, None).await.ok()),
        false => Seen::Unread,
    };
    let title = format!("Write {}", short(place, &path));
    Ok(change("write_file", title, path, seen, content, arguments))
}

/// `edit_file`: one stretch of a file for another.
pub(super) async fn edit(turn: &Turn, place: &Place, arguments: &Map<String, Value>) -> Result<Job, String> {
    let path = place.resolve(text(arguments, "path")?)?;
    let (from, to) = (text(arguments, "old")?, text(arguments, "new")?);
    let read = turn.read_file(&path, None, None).await;
    let old = read.map_err(|error| format!("The file could not be read: {}", reason(&error)))?;
    let new = replace(&old, from, to)?;
    let title = format!("Edit {}", short(place, &path));
    Ok(change("edit_file", title, path, Seen::Read(Some(old)), new, arguments))
}

/// `text` with the one occurrence of `from` replaced.
fn replace(text: &str, from: &str, to: &str) -> Result<String, String> {
    if from.is_empty() {
        return Err("`old` must not be empty.".to_owned());
    }
    let mut places = text.match_indices(from);
    match (places.next(), places.next()) {
        (None, _) => Err("`old` does not occur in the file.".to_owned()),
        (Some(_), Some(_)) => Err("`old` occurs more than once in the file; give more of it.".to_owned()),
        (Some((at, _)), None) => Ok([&text[..at], to, &text[at + from.len()..]].concat()),
    }
}

fn change(
    name: &str,
    title: String,
    path: String,
    seen: Seen,
    new: String,
    input: &Map<String, Value>,
) -> Job {
    let old = match &seen {
        Seen::Read(old) => old.clone(),
        Seen::Unread => None,
    };
    let mut shown = shown(name, ToolKind::Edit, title, &path, input);
    shown.content = vec![ToolContent::Diff { path: path.clone(), old, new: new.clone() }];
    let grant = Grant { key: "files".to_owned(), scope: Some("all changes of files".to_owned()) };
    Job { shown, grant: Some(grant), task: Task::Write { path, content: new, seen } }
}

pub(super) async fn perform_write(turn: &Turn, path: &str, content: &str, seen: &Seen) -> Done {
    // The user may have thought for long, and typed meanwhile.
    if let Seen::Read(before) = seen
        && turn.read_file(path, None, None).await.ok() != *before
    {
        return Done::failed("The file has changed since the user was shown this change. Read it again.");
    }
    let params = json!({"sessionId": &*turn.session.id, "path": path, "content": content});
    match turn.peer.request::<_, Value>(FS_WRITE_TEXT_FILE, &params, PATIENCE).await {
        Ok(_) => Done {
            // The difference stays to be seen.
            content: None,
            parts: vec![Part::text(format!("{path} is written."))],
            output: json!({"bytes": content.len()}),
            failed: false,
        },
        Err(error) => Done::failed(format!("The file could not be written: {}", reason(&error))),
    }
}

/// An error of the client, as the model is told.
pub(super) fn reason(error: &CallError) -> String {
    match error {
        CallError::Refused(error) => error.message.chars().take(500).collect(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_in_the_directories_of_the_session() {
        let place = Place { cwd: "/w/p".to_owned(), roots: vec!["/x".to_owned()] };
        for (path, expected) in [
            ("a.txt", Some("/w/p/a.txt")),
            ("./b/../a.txt", Some("/w/p/a.txt")),
            ("/w/p/a.txt", Some("/w/p/a.txt")),
            ("file:///w/p/a%20b.txt", Some("/w/p/a b.txt")),
            ("/x/y", Some("/x/y")),
            ("../q", None),
            ("/etc/passwd", None),
            ("/w/project", None),
            ("/w/p/../../etc/passwd", None),
            ("file:///etc/passwd", None),
            ("file://host/w/p/a", None),
            ("a\0b", None),
        ] {
            assert_eq!(place.resolve(path).ok().as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn an_edit_is_unambiguous() {
        assert_eq!(replace("a b c", "b", "x").as_deref(), Ok("a x c"));
        assert_eq!(replace("a b", "b", "").as_deref(), Ok("a "));
        for (text, from) in [("a b b", "b"), ("a", "b"), ("a", "")] {
            assert!(replace(text, from, "x").is_err(), "{text:?} {from:?}");
        }
    }
}
