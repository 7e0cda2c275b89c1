//! Reports what a command has created and git would use.

use std::path::PathBuf;

use narrows_acp::method::TERMINAL_CREATE;
use serde_json::json;

use crate::event::{Json, Payload};
use crate::host::created::Created;
use crate::permissions::{PermissionNotice, PermissionService, RequestSubject, TurnId};

/// Maximum number of new repositories named in a report.
const MAX_NAMED_REPOSITORIES: usize = 5;

/// Reports created paths that git uses, each as a denied change, and new repositories.
pub(crate) async fn report_created(
    permissions: &PermissionService,
    turn: TurnId,
    created: Vec<Created>,
    repositories: Vec<PathBuf>,
) {
    for Created { path, moved } in created {
        let became = match moved {
            Ok(Some(moved)) => format!("it was moved to {}", moved.display()),
            Ok(None) => "it was removed".to_owned(),
            Err(error) => format!("it cannot be moved aside, remove it before you use git: {error}"),
        };
        let words = format!("a command created it in a repository, and git would use it; {became}");
        let about = RequestSubject {
            turn,
            method: TERMINAL_CREATE,
            title: format!("Create {}", path.display()),
            kind: "edit",
            paths: vec![path],
            ..RequestSubject::default()
        };
        permissions.refuse_unreachable(&about, &words).await;
    }
    if !repositories.is_empty() {
        let shown = repositories.iter().take(MAX_NAMED_REPOSITORIES).map(|path| path.display().to_string());
        let shown: Vec<String> = shown.collect();
        let more = repositories.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let problem = format!(
            "a command created a git repository, and git runs what its settings name: {}{more}",
            shown.join(", ")
        );
        let data = Json::write(&json!({"problem": problem, "paths": shown, "count": repositories.len()}));
        let name = "repository.created".to_owned();
        permissions.send_notice(PermissionNotice::Other(Payload::Other { name, data })).await;
    }
}
