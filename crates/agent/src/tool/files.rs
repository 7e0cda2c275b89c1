//! The user's files, always through the client. The agent never opens them itself.

use std::path::Path;
use std::time::Duration;

use narrows_acp::method::{FS_READ_TEXT_FILE, FS_WRITE_TEXT_FILE};
use narrows_model::Part;
use narrows_rpc::CallError;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::call::{PriorContent, ToolJob, ToolOutcome, ToolTask, number_argument, text_argument};
use super::permission::PermissionScope;
use crate::compaction::cut_middle;
use crate::content::Block;
use crate::params::normalize;
use crate::session::SessionDirs;
use crate::transcript::{ToolCall, ToolContent, ToolKind, ToolStatus};
use crate::turn::Turn;
use crate::update_writer::new_id;

const FILE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of bytes of a linked file in a prompt.
const MAX_LINKED_BYTES: usize = 256 << 10;

/// Maximum number of bytes of a file shown in the call that reads it.
const MAX_SHOWN_BYTES: usize = 32 << 10;

#[derive(Deserialize)]
struct ReadFileResult {
    content: String,
}

impl SessionDirs {
    /// Returns the absolute path for `path`, which is a path or a `file:` URI. Fails if the path is outside
    /// of the session's directories.
    pub(crate) fn resolve(&self, path: &str) -> Result<String, String> {
        let named = match path.strip_prefix("file:") {
            Some(_) => url::Url::parse(path)
                .ok()
                .and_then(|url| url.to_file_path().ok())
                .ok_or_else(|| format!("{path} is not a file on this machine."))?,
            None => Path::new(path).to_owned(),
        };
        let absolute = normalize(&Path::new(&self.cwd).join(named));
        let roots = std::iter::once(&self.cwd).chain(&self.roots);
        let inside = roots.into_iter().any(|root| absolute.starts_with(normalize(Path::new(root))));
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
        let file: ReadFileResult = self.peer.request(FS_READ_TEXT_FILE, &params, FILE_TIMEOUT).await?;
        Ok(file.content)
    }

    /// Replaces links in a prompt by the linked files, if the client can read them.
    pub(crate) async fn fetch_linked_files(&self, blocks: Vec<Block>) -> Vec<Block> {
        if !self.agent.client().can.read_text_file {
            return blocks;
        }
        let dirs = self.session.state().dirs.clone();
        let mut fetched = Vec::with_capacity(blocks.len());
        for block in blocks {
            fetched.push(match block {
                Block::Link { uri, name } => match dirs.resolve(&uri) {
                    Ok(path) if is_file(&uri) => match self.read_file(&path, None, None).await {
                        Ok(text) => Block::Resource { uri, text: cut_middle(&text, MAX_LINKED_BYTES) },
                        Err(error) => {
                            tracing::debug!(%error, "link not replaced by content");
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

/// Returns `true` if a link leads to a file. Some clients send a path instead of a URI.
fn is_file(uri: &str) -> bool {
    uri.starts_with("file:") || url::Url::parse(uri).is_err()
}

fn new_tool_call(
    name: &str,
    kind: ToolKind,
    title: String,
    path: &str,
    input: &Map<String, Value>,
) -> ToolCall {
    ToolCall {
        id: new_id(),
        title,
        name: name.to_owned(),
        kind,
        status: ToolStatus::Pending,
        content: Vec::new(),
        locations: vec![path.to_owned()],
        input: Value::Object(input.clone()),
        output: None,
    }
}

fn relative_path<'a>(dirs: &SessionDirs, path: &'a str) -> &'a str {
    path.strip_prefix(&dirs.cwd)
        .map(|rest| rest.trim_start_matches('/'))
        .filter(|rest| !rest.is_empty())
        .unwrap_or(path)
}

/// Prepares `read_file`. The user is not asked, because reading changes nothing.
pub(super) fn prepare_read(dirs: &SessionDirs, arguments: &Map<String, Value>) -> Result<ToolJob, String> {
    let path = dirs.resolve(text_argument(arguments, "path")?)?;
    let (line, limit) = (number_argument(arguments, "line")?, number_argument(arguments, "limit")?);
    let title = format!("Read {}", relative_path(dirs, &path));
    let shown = new_tool_call("read_file", ToolKind::Read, title, &path, arguments);
    Ok(ToolJob { shown, grant: None, task: ToolTask::Read { path, line, limit } })
}

pub(super) async fn perform_read(
    turn: &Turn,
    path: &str,
    line: Option<u64>,
    limit: Option<u64>,
) -> ToolOutcome {
    match turn.read_file(path, line, limit).await {
        Ok(text) => ToolOutcome {
            content: Some(vec![ToolContent::text(cut_middle(&text, MAX_SHOWN_BYTES))]),
            output: json!({"bytes": text.len()}),
            parts: vec![Part::text(text)],
            failed: false,
        },
        Err(error) => ToolOutcome::failed(format!("The file could not be read: {}", error_reason(&error))),
    }
}

/// Prepares `write_file`, with the difference to show to the user.
pub(super) async fn prepare_write(
    turn: &Turn,
    dirs: &SessionDirs,
    arguments: &Map<String, Value>,
) -> Result<ToolJob, String> {
    let path = dirs.resolve(text_argument(arguments, "path")?)?;
    let content = text_argument(arguments, "content")?.to_owned();
    let seen = match turn.agent.client().can.read_text_file {
        // An error usually means that the file does not exist yet.
        true => PriorContent::Read(turn.read_file(&path, None, None).await.ok()),
        false => PriorContent::Unread,
    };
    let title = format!("Write {}", relative_path(dirs, &path));
    Ok(write_job("write_file", title, path, seen, content, arguments))
}

/// Prepares `edit_file`, which replaces one part of a file.
pub(super) async fn prepare_edit(
    turn: &Turn,
    dirs: &SessionDirs,
    arguments: &Map<String, Value>,
) -> Result<ToolJob, String> {
    let path = dirs.resolve(text_argument(arguments, "path")?)?;
    let (from, to) = (text_argument(arguments, "old")?, text_argument(arguments, "new")?);
    let read = turn.read_file(&path, None, None).await;
    let old = read.map_err(|error| format!("The file could not be read: {}", error_reason(&error)))?;
    let new = replace_once(&old, from, to)?;
    let title = format!("Edit {}", relative_path(dirs, &path));
    Ok(write_job("edit_file", title, path, PriorContent::Read(Some(old)), new, arguments))
}

/// Replaces `from` by `to`. Fails unless `from` occurs exactly once.
fn replace_once(text: &str, from: &str, to: &str) -> Result<String, String> {
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

fn write_job(
    name: &str,
    title: String,
    path: String,
    seen: PriorContent,
    new: String,
    input: &Map<String, Value>,
) -> ToolJob {
    let old = match &seen {
        PriorContent::Read(old) => old.clone(),
        PriorContent::Unread => None,
    };
    let mut shown = new_tool_call(name, ToolKind::Edit, title, &path, input);
    shown.content = vec![ToolContent::Diff { path: path.clone(), old, new: new.clone() }];
    let grant = PermissionScope { key: "files".to_owned(), scope: Some("all changes of files".to_owned()) };
    ToolJob { shown, grant: Some(grant), task: ToolTask::Write { path, content: new, seen } }
}

pub(super) async fn perform_write(
    turn: &Turn,
    path: &str,
    content: &str,
    seen: &PriorContent,
) -> ToolOutcome {
    // The user may have changed the file while the permission request was open.
    if let PriorContent::Read(before) = seen
        && turn.read_file(path, None, None).await.ok() != *before
    {
        return ToolOutcome::failed(
            "The file has changed since the user was shown this change. Read it again.",
        );
    }
    let params = json!({"sessionId": &*turn.session.id, "path": path, "content": content});
    match turn.peer.request::<_, Value>(FS_WRITE_TEXT_FILE, &params, FILE_TIMEOUT).await {
        Ok(_) => ToolOutcome {
            // `None` keeps the displayed difference visible.
            content: None,
            parts: vec![Part::text(format!("{path} is written."))],
            output: json!({"bytes": content.len()}),
            failed: false,
        },
        Err(error) => ToolOutcome::failed(format!("The file could not be written: {}", error_reason(&error))),
    }
}

pub(super) fn error_reason(error: &CallError) -> String {
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
        let dirs = SessionDirs { cwd: "/w/p".to_owned(), roots: vec!["/x".to_owned()] };
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
            assert_eq!(dirs.resolve(path).ok().as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn an_edit_requires_a_unique_old_text() {
        assert_eq!(replace_once("a b c", "b", "x").as_deref(), Ok("a x c"));
        assert_eq!(replace_once("a b", "b", "").as_deref(), Ok("a "));
        for (text, from) in [("a b b", "b"), ("a", "b"), ("a", "")] {
            assert!(replace_once(text, from, "x").is_err(), "{text:?} {from:?}");
        }
    }
}
