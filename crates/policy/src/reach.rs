//! Secrets within reach of commands that only look but read below directories.
//!
//! No disk is looked at here. Where secrets lie is known all the same: hidden, at the top of a root, and outside of the
//! roots. A search there does more than look.

use std::path::{Path, PathBuf};

use crate::action::Action;
use crate::command::{Depth, Script, Search, search};
use crate::path::{Step, Steps, is_within, resolve};
use crate::protect::guard;
use crate::scene::Scene;
use crate::shape::Shape;
use crate::target::working_directory;

/// Returns `true` if a command that only looks may read secrets that it does not name.
pub(crate) fn may_read_secrets(
    script: &Script,
    action: &Action,
    scene: &Scene<'_>,
    home: Option<&Path>,
) -> bool {
    let Some(Search { mut operands, depth, names }) = search(script) else { return false };
    if operands.is_empty() && depth != Depth::Directory {
        operands.push(".".to_owned());
    }
    let linked = |operand: &String| {
        let links = action.word_links.iter().filter(|link| link.written == *operand);
        links.map(|link| link.real.clone()).collect::<Vec<String>>()
    };
    let more: Vec<String> = operands.iter().flat_map(linked).collect();
    let cwd = working_directory(action, scene, home);
    let directories = [cwd.as_deref(), action.real_cwd.as_deref()];
    let is_tame = names.iter().all(|name| is_tame(name));
    operands.iter().chain(&more).any(|operand| {
        directories.iter().enumerate().filter(|(at, from)| *at == 0 || from.is_some()).any(|(_, from)| {
            let path = resolve(operand.as_ref(), *from, home);
            match depth {
                Depth::Directory => holds_a_root(&path, scene, home),
                Depth::Visible | Depth::All => {
                    let is_limited = depth == Depth::Visible || !names.is_empty();
                    !is_tame
                        || !is_within(&path, scene.roots)
                        || is_hidden(&path, scene.roots)
                        || !is_limited && holds_a_root(&path, scene, home)
                }
            }
        })
    })
}

/// Returns `true` if the path is a root or the home directory, or one of them lies in it.
fn holds_a_root(path: &Path, scene: &Scene<'_>, home: Option<&Path>) -> bool {
    let holds = |root: &Path| resolve(root, None, home).starts_with(path);
    scene.roots.iter().any(|root| holds(root)) || home.is_some_and(holds)
}

/// Returns `true` if a name of the path below its root begins with a dot.
fn is_hidden(path: &Path, roots: &[PathBuf]) -> bool {
    roots
        .iter()
        .filter_map(|root| path.strip_prefix(resolve(root, None, None)).ok())
        .all(|inside| inside.components().any(|name| name.as_os_str().as_encoded_bytes().starts_with(b".")))
}

/// Returns `true` if a pattern for names of files is for no secret: it has an ending, or is a whole name.
fn is_tame(glob: &str) -> bool {
    let name = glob.rsplit('/').next().unwrap_or_default();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-+.*?".contains(letter);
    let is_open = |text: &str| text.contains(['*', '?']);
    let ends = name.rsplit_once('.').is_some_and(|(_, ending)| !ending.is_empty() && !is_open(ending));
    let path = Steps(vec![Step::Name(Shape::glob(name, true))]);
    !name.is_empty()
        && name.chars().all(plain)
        && !glob.starts_with('.')
        && !glob.contains("/.")
        && (ends || !is_open(name))
        && guard(&path, false, false).is_none()
}
