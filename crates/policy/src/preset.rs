//! The access presets: their decision about each kind of action that no rule matches.

use std::path::Path;

use crate::access::Access;
use crate::action::WordLink;
use crate::command::{Part, listed};
use crate::decision::Verdict::{self, Allow, Ask, Deny};
use crate::kind::Kind;
use crate::path::{Steps, is_within};
use crate::protect::is_device;
use crate::request_context::{Protection, RequestContext};
use crate::target::Target;

/// Facts about a command on which the presets depend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    /// `true` if the command certainly only reads, and is not listed as using the network.
    pub(crate) looks: bool,
    /// `true` if a sandbox confines the command to the roots. If the network is disabled, the sandbox must
    /// also block the network.
    pub(crate) confined: bool,
    /// How protected files are protected from the command.
    pub(crate) protection: Protection,
}

const UNSUPPORTED: &str = "asks before commands that may change protected files in the session's directories, such as .git/hooks: the \
     sandbox of this machine cannot protect them without user namespaces";
const NOT_SEARCHED: &str = "asks before commands that may change protected files in the session's directories, such as .git/hooks: not \
     all of them are known, because git settings cannot be read, those directories have too many files, or a protected name is a link \
     to a file that does not exist";
const HARD_LINKED: &str = "asks before commands that may change protected files in the session's directories: one of them has a second \
     hard link, over which it can be written";

/// Returns the strictest verdict about the kinds of the target, with the kind that decided and the reason.
pub(crate) fn judge(
    access: Access,
    target: &Target<'_>,
    running: Running,
    context: &RequestContext<'_>,
) -> (Verdict, Kind, &'static str) {
    let mut strictest: Option<(Verdict, Kind, &'static str)> = None;
    for kind in &target.kinds {
        let (verdict, why) = cell(access, *kind, target, running, context);
        if strictest.is_none_or(|(so_far, ..)| verdict > so_far) {
            strictest = Some((verdict, *kind, why));
        }
    }
    strictest.unwrap_or((Deny, Kind::Other, "denies unknown actions"))
}

/// Programs that show the properties of a device, and not the data on it.
const LISTERS: &str = "\
    basename df dirname du echo file find ls printf readlink realpath stat test [ tree which";

fn reads_device(target: &Target<'_>) -> bool {
    let is_listed = |part: &Part| part.programs().all(|name| listed(LISTERS, &name));
    let leads_to_device = |link: &WordLink| is_device(&Steps::from_path(Path::new(&link.real)));
    !target.part.is_some_and(is_listed)
        && (target.touches.iter().any(|touch| is_device(&touch.steps))
            || target.action.word_links.iter().any(leads_to_device))
}

fn cell(
    access: Access,
    kind: Kind,
    target: &Target<'_>,
    running: Running,
    context: &RequestContext<'_>,
) -> (Verdict, &'static str) {
    match (access, kind) {
        (Access::Low, Kind::Read | Kind::Search | Kind::Fetch | Kind::Execute) if reads_device(target) => {
            (Deny, "denies reading devices")
        }
        (_, Kind::Think | Kind::Read | Kind::Search | Kind::Fetch) => (Allow, "allows reading"),
        (Access::High, _) => (Allow, "allows it"),
        (Access::Low, Kind::Edit | Kind::Move | Kind::Delete) => (Deny, "denies file changes"),
        (Access::Medium, Kind::Edit | Kind::Move | Kind::Delete) => {
            let mut claimed = target
                .touches
                .iter()
                .filter(|touch| touch.claimed.is_some() || target.part.is_none())
                .peekable();
            if claimed.peek().is_none() {
                return (Ask, "asks if the changed files are unknown");
            }
            let inside = |path: &std::path::PathBuf| is_within(path, context.roots);
            if claimed.clone().any(|touch| touch.claimed.is_none()) {
                return (Ask, "asks if the changed files are unknown");
            }
            if claimed.all(|touch| touch.claimed.as_ref().is_some_and(inside)) {
                (Allow, "allows file changes in the session's directories")
            } else {
                (Deny, "denies file changes outside the session's directories")
            }
        }
        (Access::Low, Kind::Execute) if running.looks => (Allow, "allows read-only commands"),
        (Access::Low, Kind::Execute) => (Deny, "allows only commands that are certainly read-only"),
        (Access::Medium, Kind::Execute) if running.confined && running.protection == Protection::Kept => {
            (Allow, "allows commands that a sandbox confines to the session's directories")
        }
        (Access::Medium, Kind::Execute) if running.confined => match running.protection {
            Protection::NotSearched => (Ask, NOT_SEARCHED),
            Protection::HardLinked => (Ask, HARD_LINKED),
            Protection::Kept | Protection::Unsupported => (Ask, UNSUPPORTED),
        },
        (Access::Medium, Kind::Execute) => {
            (Ask, "asks before commands that no sandbox confines to the session's directories")
        }
        (Access::Low, Kind::SwitchMode) => (Deny, "denies mode changes"),
        (Access::Medium, Kind::SwitchMode) => (Ask, "asks before mode changes"),
        (Access::Low, Kind::Other) => (Deny, "denies unknown actions"),
        (Access::Medium, Kind::Other) => (Ask, "asks before unknown actions"),
    }
}
