//! Read-only commands that may read secrets below directories.
//!
//! This module does not use the disk. Secrets are usually in hidden files, at the top of a root, or outside
//! of the roots. A search that includes such places does not count as read-only.

use std::path::{Component, Path, PathBuf};

use crate::action::Action;
use crate::command::{Depth, Script, Search, listed, search};
use crate::path::{Step, Steps, is_within, resolve};
use crate::protect::{guard, is_name_of_secret};
use crate::request_context::RequestContext;
use crate::target::working_directory;
use crate::text_pattern::TextPattern;

/// Returns `true` if a read-only command may read secrets whose paths it does not name.
pub(crate) fn may_read_secrets(
    script: &Script,
    action: &Action,
    context: &RequestContext<'_>,
    home: Option<&Path>,
) -> bool {
    let Some(Search { mut operands, depth, names }) = search(script) else { return false };
    if depth == Depth::Linked {
        return true;
    }
    if operands.is_empty() && matches!(depth, Depth::Visible | Depth::All) {
        operands.push(".".to_owned());
    }
    let linked = |operand: &String| {
        let links = action.word_links.iter().filter(|link| link.written == *operand);
        links.map(|link| link.real.clone()).collect::<Vec<String>>()
    };
    let more: Vec<String> = operands.iter().flat_map(linked).collect();
    let cwd = working_directory(action, context, home);
    let directories = [cwd.as_deref(), action.real_cwd.as_deref()];
    let is_tame = names.iter().all(|name| is_tame(name));
    operands.iter().chain(&more).filter(|operand| *operand != "/dev/null").any(|operand| {
        if is_other_home(operand) {
            return true;
        }
        directories.iter().enumerate().filter(|(at, from)| *at == 0 || from.is_some()).any(|(_, from)| {
            let path = resolve(operand.as_ref(), *from, home);
            match depth {
                Depth::Named => !is_within(&path, context.roots),
                Depth::Directory => !is_within(&path, context.roots) || holds_a_root(&path, context, home),
                Depth::Linked => true,
                Depth::Visible | Depth::All => {
                    let is_limited = depth == Depth::Visible || !names.is_empty();
                    !is_tame
                        || !is_within(&path, context.roots)
                        || is_hidden(&path, context.roots)
                        || !is_limited && holds_a_root(&path, context, home)
                }
            }
        })
    })
}

/// Returns `true` if a shell replaces the beginning of the word by another directory: `~root`, `~-`.
fn is_other_home(operand: &str) -> bool {
    operand.strip_prefix('~').is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
}

/// Returns `true` if the path is a root or the home directory, or contains one of them.
fn holds_a_root(path: &Path, context: &RequestContext<'_>, home: Option<&Path>) -> bool {
    let holds = |root: &Path| resolve(root, None, home).starts_with(path);
    context.roots.iter().any(|root| holds(root)) || home.is_some_and(holds)
}

/// Hidden names that contain no secrets.
const PLAIN_HIDDEN: &str = "\
    .dockerignore .editorconfig .eslintrc .gitattributes .github .gitignore .gitlab .gitlab-ci.yml .gitmodules .mailmap \
    .prettierrc";

fn is_hidden(path: &Path, roots: &[PathBuf]) -> bool {
    let hides = |name: Component<'_>| {
        let name = name.as_os_str().to_string_lossy();
        name.starts_with('.') && !listed(PLAIN_HIDDEN, &name)
    };
    roots
        .iter()
        .filter_map(|root| path.strip_prefix(resolve(root, None, None)).ok())
        .all(|inside| inside.components().any(hides))
}

/// Extensions of files that are hardly ever secrets. `*.local` is not listed, because it also matches
/// `.env.local`.
const PLAIN_ENDINGS: &str = "\
    adoc asm astro awk bash bat bib bzl c cc cfg clj cljs cmake coffee cpp cs css csv cts cu cxx d dart diff ejs el elm erb \
    erl ex exs f90 fish fs fsx gd glsl go gql gradle graphql groovy h haml hbs hh hpp hrl hs htm html hxx idl ini inl ipynb \
    j2 java jl js json json5 jsonc jsx kt kts less liquid lisp lock log lua m make mako md mdx mjs mk ml mli mm mod mts \
    nim nix org patch php pl plist pm po pot properties proto ps1 pug py pyi pyx r rake rb rego rs rst s sass sbt scala \
    scm scss sh snap sol sql sum sv svelte svg swift tcl tex tf toml tpl ts tsv tsx txt v vb vert vhd vim vue wat wgsl \
    xhtml xml xsd xsl yaml yml zig zsh";

/// Names without an extension that are not secrets.
const PLAIN_NAMES: &str = "\
    BUILD CHANGELOG COPYING Cargofile Containerfile Dockerfile GNUmakefile Gemfile Jenkinsfile Justfile LICENSE Makefile \
    NOTICE Procfile README Rakefile Vagrantfile WORKSPACE justfile makefile";

/// Returns `true` if a file name pattern matches no secrets. Only its extension counts.
fn is_tame(glob: &str) -> bool {
    let name = glob.rsplit('/').next().unwrap_or_default();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-+.*?".contains(letter);
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    let is_plain = match ending {
        Some(ending) => listed(PLAIN_ENDINGS, &ending),
        None => listed(PLAIN_NAMES, name),
    };
    let text_pattern = TextPattern::glob(name, true);
    let is_secret = text_pattern.text().is_some() && is_name_of_secret(&text_pattern);
    let path = Steps(vec![Step::Name(text_pattern)]);
    name.chars().all(plain)
        && !glob.starts_with('.')
        && !glob.contains("/.")
        && is_plain
        && !is_secret
        && guard(&path, false, false).is_none()
}
