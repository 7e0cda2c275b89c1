//! Recognizes commands that use the network, by the names of their programs.

use std::sync::LazyLock;

use super::pattern::CommandPattern;
use super::{Script, split};

/// Programs that use the network, each with the subcommands that do. Without subcommands in this list, every
/// use counts.
const LIST: &[(&str, &[&str])] = &[
    ("curl", &[]),
    ("wget", &[]),
    ("wget2", &[]),
    ("aria2c", &[]),
    ("axel", &[]),
    ("http", &[]),
    ("https", &[]),
    ("xh", &[]),
    ("lynx", &[]),
    ("w3m", &[]),
    ("links", &[]),
    ("nc", &[]),
    ("ncat", &[]),
    ("netcat", &[]),
    ("socat", &[]),
    ("telnet", &[]),
    ("ftp", &[]),
    ("lftp", &[]),
    ("tftp", &[]),
    ("ssh", &[]),
    ("mosh", &[]),
    ("scp", &[]),
    ("sftp", &[]),
    ("rsync", &[]),
    ("rclone", &[]),
    ("ping", &[]),
    ("ping6", &[]),
    ("traceroute", &[]),
    ("nmap", &[]),
    ("dig", &[]),
    ("nslookup", &[]),
    ("host", &[]),
    ("sendmail", &[]),
    ("mail", &[]),
    ("gh", &[]),
    ("glab", &[]),
    ("aws", &[]),
    ("gcloud", &[]),
    ("gsutil", &[]),
    ("az", &[]),
    ("kubectl", &[]),
    ("helm", &[]),
    ("openssl", &["s_client", "s_server", "ocsp"]),
    (
        "git",
        &[
            "clone",
            "fetch",
            "pull",
            "push",
            "ls-remote",
            "submodule",
            "remote update",
            "remote show",
            "remote prune",
            "archive --remote",
            "send-email",
            "svn",
            "lfs",
            "fetch-pack",
            "send-pack",
            "http-fetch",
            "http-push",
            "credential",
            "daemon",
            "request-pull",
            "bundle fetch",
            "maintenance",
        ],
    ),
    ("svn", &[]),
    ("hg", &["clone", "pull", "push", "incoming", "outgoing"]),
    ("docker", &["pull", "push", "login", "run", "build", "buildx", "compose", "search"]),
    ("podman", &["pull", "push", "login", "run", "build", "search"]),
    ("npm", NODE),
    ("pnpm", NODE),
    ("yarn", &[]),
    ("bun", NODE),
    ("npx", &[]),
    ("pnpx", &[]),
    ("bunx", &[]),
    ("corepack", &[]),
    ("deno", &["install", "add", "cache", "upgrade", "publish"]),
    ("pip", PYTHON),
    ("pip3", PYTHON),
    ("pipx", &[]),
    ("uv", &["add", "sync", "pip", "tool", "lock", "run", "publish", "python"]),
    ("uvx", &[]),
    ("python", &["-m pip", "-m http.server", "-m ensurepip"]),
    ("python3", &["-m pip", "-m http.server", "-m ensurepip"]),
    ("poetry", &["install", "add", "update", "lock", "publish"]),
    ("pipenv", &["install", "update", "sync"]),
    ("conda", &["install", "create", "update", "env", "search"]),
    ("mamba", &["install", "create", "update", "env", "search"]),
    ("easy_install", &[]),
    (
        "cargo",
        &["install", "add", "update", "publish", "fetch", "search", "login", "yank", "owner", "binstall"],
    ),
    ("rustup", &[]),
    ("go", &["get", "install", "mod download", "mod tidy"]),
    ("gem", &["install", "update", "push", "fetch"]),
    ("bundle", &["install", "update", "add"]),
    ("composer", &["install", "require", "update", "global"]),
    ("apt", SYSTEM),
    ("apt-get", SYSTEM),
    ("aptitude", SYSTEM),
    ("yum", SYSTEM),
    ("dnf", SYSTEM),
    ("zypper", SYSTEM),
    ("apk", SYSTEM),
    ("pacman", &[]),
    ("brew", &[]),
    ("port", SYSTEM),
    ("snap", SYSTEM),
    ("flatpak", SYSTEM),
    ("nix", &[]),
    ("nix-env", &[]),
    ("nix-shell", &[]),
    ("choco", &[]),
    ("winget", &[]),
    ("scoop", &[]),
];

const NODE: &[&str] = &[
    "install",
    "i",
    "in",
    "ci",
    "add",
    "update",
    "up",
    "upgrade",
    "publish",
    "exec",
    "x",
    "dlx",
    "create",
    "init",
    "login",
    "view",
    "search",
    "audit",
    "outdated",
    "install-test",
    "it",
    "clean-install",
    "link",
];
const PYTHON: &[&str] = &["install", "download", "wheel", "search", "index"];
const SYSTEM: &[&str] = &[
    "install",
    "update",
    "upgrade",
    "dist-upgrade",
    "full-upgrade",
    "add",
    "download",
    "refresh",
    "source",
    "dup",
    "in",
];

static PATTERNS: LazyLock<Vec<(&str, Vec<CommandPattern>)>> = LazyLock::new(|| {
    let read = |line: String| split(&line).and_then(CommandPattern::new).ok();
    LIST.iter()
        .map(|(program, subcommands)| {
            let lines: Vec<String> = if subcommands.is_empty() {
                vec![(*program).to_owned()]
            } else {
                subcommands.iter().map(|subcommand| format!("{program} {subcommand}")).collect()
            };
            (*program, lines.into_iter().filter_map(read).collect())
        })
        .collect()
});

/// Returns `true` if a part of the command is, or may be, one of the listed programs.
pub(crate) fn uses_network(script: &Script) -> bool {
    script.lost
        || script.parts.iter().any(|part| {
            let names: Vec<String> = part.programs().collect();
            let open = part.wild
                || part
                    .starts
                    .iter()
                    .any(|start| part.words.get(*start).is_some_and(|word| word.open.is_some()));
            let sockets = part
                .words
                .iter()
                .chain(&part.writes)
                .chain(&part.reads)
                .any(|word| word.text.contains("/dev/tcp/") || word.text.contains("/dev/udp/"));
            sockets
                || PATTERNS
                    .iter()
                    .filter(|(program, _)| open || names.iter().any(|name| is_or_begins(name, program)))
                    .any(|(_, patterns)| patterns.iter().any(|pattern| pattern.touches(part)))
        })
}

fn is_or_begins(name: &str, program: &str) -> bool {
    name.strip_prefix(program).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_list_is_read() {
        for ((program, subcommands), (_, patterns)) in LIST.iter().zip(PATTERNS.iter()) {
            assert_eq!(patterns.len(), subcommands.len().max(1), "{program}");
        }
    }
}
