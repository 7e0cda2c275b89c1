//! Reports what a command has created and git would use.

use narrows_acp::method::TERMINAL_CREATE;
use serde_json::json;

use crate::event::{Json, Payload};
use crate::host::created::Created;
use crate::host::protected::NewRepositories;
use crate::permissions::{PermissionNotice, PermissionService, RequestSubject, TurnId};

/// Maximum number of bytes of the new repositories that one notice names.
const MAX_NOTICE_BYTES: usize = 8 << 10;

/// Reports created paths that git uses, each as a denied change, and new repositories.
pub(crate) async fn report_created(
    permissions: &PermissionService,
    turn: TurnId,
    created: Vec<Created>,
    new: NewRepositories,
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
    let NewRepositories { mut paths, unnamed } = new;
    while !paths.is_empty() {
        let (mut bytes, mut shown) = (0, Vec::new());
        while let Some(path) = paths.first().map(|path| path.display().to_string()) {
            bytes += path.len();
            if bytes > MAX_NOTICE_BYTES && !shown.is_empty() {
                break;
            }
            shown.push(path);
            paths.remove(0);
        }
        let count = shown.len() + paths.len() + unnamed;
        let more = if paths.is_empty() && unnamed > 0 {
            format!(", and {unnamed} more, which are named after the next command")
        } else {
            String::new()
        };
        let problem = format!(
            "a command created a git repository, or a directory with too many entries to search for one, and git \
             runs what the settings of a repository name: {}{more}",
            shown.join(", ")
        );
        let data = Json::write(&json!({"problem": problem, "paths": shown, "count": count}));
        let name = "repository.created".to_owned();
        permissions.send_notice(PermissionNotice::Other(Payload::Other { name, data })).await;
    }
}
