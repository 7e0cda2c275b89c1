//! Protected paths: secrets, and files that later run or control programs. Only a rule that names the path
//! lifts the protection.

use std::collections::HashMap;
use std::path::{Component, Path};
use std::sync::LazyLock;

use crate::path::{Step, Steps};
use crate::text_pattern::{Case, PatternUnit, TextPattern};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Description of what the path contains.
    pub(crate) what: &'static str,
    /// `true` if reading the path is also denied.
    pub(crate) secret: bool,
}

const HOOKS: &str = "a git hook or git configuration";
const EDITOR: &str = "an editor configuration";
const AGENT: &str = "an agent configuration";
const CI: &str = "a build server configuration";
const TOOL: &str = "a startup file of a tool";
const SHELL: &str = "a startup file of a shell or session";
const KEYS: &str = "a key";
const ACCOUNTS: &str = "a file with account credentials";
const VARIABLES: &str = "a file of secret variables";
const MEMORY: &str = "the memory of a process or the system";

/// Names of paths that must not be changed, wherever they are. Everything below them is protected, too. A row
/// is one name, or several consecutive names of a path.
const CHANGES: &[(&str, &str)] = &[
    (
        HOOKS,
        ".cargo-husky/hooks .config/git .config/hg .git/branches .git/commondir .git/config .git/config.worktree \
         .git/hooks .git/info .git/modules .git/remotes .git/worktrees .gitconfig .githooks .gitmodules \
         .hg/hgrc .hgrc .husky .huskyrc* .jj/repo/config.toml .lefthook .lefthook-local .lefthook-local.yml \
         .lefthook.json .lefthook.toml .lefthook.yaml .lefthook.yml .lintstagedrc* .overcommit.yml \
         .pre-commit-config.yaml .pre-commit-config.yml .prek.toml .simple-git-hooks.json .sl/config \
         _darcs/prefs/defaults lefthook-local.yml lefthook.json lefthook.toml lefthook.yaml lefthook.yml \
         prek.toml",
    ),
    (
        CI,
        ".appveyor.yml .build.yml .buildkite .builds .circleci .cirrus.star .cirrus.yml .codesandbox \
         .devfile.yaml .drone.jsonnet .drone.star .drone.yaml .drone.yml .forgejo/actions \
         .forgejo/workflows .gitea/actions .gitea/workflows .github/actions .github/workflows \
         .gitlab-ci.yaml .gitlab-ci.yml .gitlab/ci .gitpod.yml .idx .replit .semaphore .stackblitzrc \
         .teamcity .tekton .travis.yml .woodpecker* Jenkinsfile appveyor.yml azure-pipelines.yaml \
         azure-pipelines.yml bitbucket-pipelines.yml bitrise.yml buildspec.yml cloudbuild.yaml \
         cloudbuild.yml devfile.yaml wercker.yml",
    ),
    (
        TOOL,
        ".Renviron .Rprofile .ackrc .ansible.cfg .ansible/plugins .antrc .bazeliskrc .bazelrc .bazelversion \
         .buckconfig* .bundle/config .byebugrc .cargo/config .cargo/config.toml .clisprc* .condarc \
         .config/containers .config/mise .config/mise.toml .config/pip .curlrc .docker/cli-plugins \
         .duckdbrc .erlang .gdbearlyinit .gdbinit .gemrc .ghci .gradle/gradle.properties .gradle/init.d \
         .gradle/init.gradle .guile .iex.exs .ipython .irbrc .julia/config .juliarc.jl .jupyter .jvmopts \
         .latexmkrc .lein .lessfilter .lldbinit* .local/bin .local/share/gh/extensions \
         .local/share/helm/plugins .mailcap .mavenrc .mise .mise.*.toml .mise.local.toml .mise.toml \
         .mongorc.js .mongoshrc.js .mvn .ocamlinit .octaverc .pdbrc .pdbrc.py .perldb .phpdbginit .pip \
         .pnp.cjs .pnp.js .pnp.loader.mjs .pnpmfile.* .proverc .pryrc .psqlrc .pydistutils.cfg .pythonrc \
         .pythonstartup .racketrc .rdbgrc .ripgreprc .rspec .rspec-local .rtx.toml .rvmrc .sbclrc .sbt \
         .sbtopts .sqliterc .tclshrc .tool-versions .user.ini .vagrant.d .vagrantplugins .wgetrc .wishrc \
         .yarn/plugins .yarn/releases .yarnrc ansible.cfg bunfig.toml gradle/wrapper latexmkrc mise.*.toml \
         mise.local.toml mise.toml mise/config.toml pip.conf rust-toolchain rust-toolchain.toml \
         site-packages/*.pth sitecustomize.py usercustomize.py",
    ),
    (
        EDITOR,
        "*.code-workspace *.sublime-project .atom .config/Code .config/Cursor .config/JetBrains .config/VSCodium \
         .config/Windsurf .config/doom .config/emacs .config/helix .config/kak .config/micro .config/nvim \
         .config/sublime-text .config/vim .config/zed .cursor-server .devcontainer .devcontainer.json \
         .dir-locals-2.el .dir-locals.el .doom.d .emacs .emacs.d .exrc .externalToolBuilders .fleet .gvimrc \
         .helix .idea .ideavimrc .local.vimrc .lvimrc .nova .nvim.lua .nvimrc .pulsar .run .spacemacs \
         .spacemacs.d .sublime-project .theia .vim .vimrc .vimspector.json .vs .vscode .vscode-insiders \
         .vscode-oss .vscode-server .vscode-server-insiders .windsurf-server .ycm_extra_conf.py .zed _vimrc",
    ),
    (
        AGENT,
        ".agent .agents .aider.conf.yml .amazonq .augment .claude .claude.json .cline .clinerules .codex \
         .config/crush .config/github-copilot .config/goose .config/narrows .config/opencode .continue \
         .copilot .crush .crush.json .cursor .cursorignore .cursorrules .factory .gemini .github/agents \
         .github/hooks .github/instructions .github/prompts .goose .goosehints .jetbrains/acp.json .junie \
         .kilocode .kiro .local/share/narrows .mcp.json .narrows .opencode .openhands .qwen .roo .roomodes \
         .rules .trae .vibe .windsurf .windsurfrules AGENT.md AGENTS.md AGENTS.override.md CLAUDE.local.md \
         CLAUDE.md GEMINI.md QWEN.md copilot-instructions.md crush.json fastagent.config.yaml mcp.json \
         narrows.toml opencode.json opencode.jsonc",
    ),
    (
        SHELL,
        ".antigen .autoenv .autoenv.zsh .bash_aliases .bash_completion .bash_login .bash_logout \
         .bash_profile .bashrc .bashrc.d .byobu .config/alacritty .config/autostart .config/awesome \
         .config/bspwm .config/direnv .config/elvish .config/environment.d .config/fish .config/hypr \
         .config/i3 .config/kitty .config/nushell .config/openbox .config/plasma-workspace \
         .config/powershell .config/qtile .config/starship.toml .config/sway .config/sxhkd .config/systemd \
         .config/tmux .config/wezterm .config/xonsh .config/zsh .cshrc .direnvrc .elvish .envrc \
         .hammerspoon .inputrc .kshrc .local/share/applications .local/share/dbus-1 .local/share/systemd \
         .login .mkshrc .oh-my-bash .oh-my-zsh .pam_environment .profile .screenrc .shadowenv.d .tcshrc \
         .tmux.conf .wezterm.lua .xinitrc .xmonad .xonshrc .xprofile .xsession .xsessionrc .yashrc .zinit \
         .zlogin .zlogout .zplug .zprofile .zsh .zshenv .zshrc .zshrc.d LaunchAgents Library/LaunchAgents \
         Library/LaunchDaemons",
    ),
];

/// Names of paths that must be neither read nor changed, in the form of [`CHANGES`].
const SECRETS: &[(&str, &str)] = &[
    (VARIABLES, ".env .env.* proc/*/environ proc/*/task/*/environ"),
    (MEMORY, "dev/kmem dev/mem proc/*/mem proc/*/task/*/mem proc/kcore"),
    (
        KEYS,
        "*.jks *.kdbx *.key *.keystore *.p12 *.pem *.pfx *.ppk .config/sops .gnupg .local/share/keyrings \
         .password-store .ssh Library/Keychains etc/ssh/ssh_host_*_key id_dsa* id_ecdsa* id_ed25519* \
         id_rsa* id_xmss*",
    ),
    (
        ACCOUNTS,
        ".aws .azure .boto .cargo/credentials .cargo/credentials.toml .claude/.credentials.json \
         .codex/auth.json .composer/auth.json .config/BraveSoftware .config/chromium \
         .config/composer/auth.json .config/containers/auth.json .config/doctl .config/gcloud .config/gh \
         .config/glab-cli .config/google-chrome .config/google-chrome-beta .config/goose/secrets.yaml \
         .config/hub .config/microsoft-edge .config/mozilla .config/narrows/keys \
         .config/narrows/narrows.toml .config/op .config/opera .config/rclone .config/vivaldi \
         .docker/config.json .fly .gem/credentials .gemini/oauth_creds.json .git-credentials .heroku \
         .htpasswd .kube .local/share/opencode/auth.json .m2/settings-security.xml .m2/settings.xml \
         .mozilla .my.cnf .netrc .npmrc .oci .pgpass .pypirc .qwen/oauth_creds.json .s3cfg .terraform.d \
         .terraformrc .thunderbird .vault-token .yarnrc.yml Library/Cookies _netrc etc/gshadow etc/gshadow- \
         etc/shadow etc/shadow- etc/sudoers etc/sudoers.d",
    ),
];

/// Names of paths that git must write, even in a sandbox. A command that names such a path is denied, but a
/// sandbox does not protect the path.
const WRITTEN_BY_GIT: &[(&str, &str)] = &[(HOOKS, ".git/rebase-merge .git/rebase-apply .git/sequencer")];

/// Directories in which shells and other programs look for programs.
const PROGRAMS: &[(&str, &str)] = &[(
    TOOL,
    ".cargo/bin .rustup .pyenv .asdf .volta .deno/bin .bun/bin .npm-global/bin .nvm .sdkman .rbenv .nodenv .jenv \
     .goenv .ghcup .cabal/bin .opam .juliaup .dotnet/tools .krew/bin .local/share/mise .local/share/pnpm \
     .local/share/fnm .nix-profile",
)];

const MAX_ROW_NAMES: usize = 5;

/// Endings of names that look like secrets, but are none.
const HARMLESS: &[&str] =
    &[".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults", ".env.schema", ".pub"];

struct Entry {
    names: Vec<TextPattern>,
    guard: Guard,
    extent: ProtectionExtent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProtectionExtent {
    /// A sandbox protects the path, and a command that may change files must not name the path.
    Full,
    /// Only certain changes of the path are denied. Commands may name the path, because they run programs
    /// there.
    Changes,
    /// A command must not name the path. Git may write the path, even in a sandbox.
    Names,
}

struct Table {
    entries: Vec<Entry>,
    named: HashMap<String, Vec<usize>>,
    /// Indexes of rows whose first name is a pattern.
    open: Vec<usize>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let rows = |list: &'static [(&'static str, &'static str)], secret: bool, extent: ProtectionExtent| {
        list.iter().flat_map(move |(what, paths)| {
            paths.split(' ').map(move |path| Entry {
                names: path.split('/').map(|name| TextPattern::glob(name, false)).collect(),
                guard: Guard { what, secret },
                extent,
            })
        })
    };
    // Secrets come first, so that a path which is in both lists counts as a secret.
    let rows = rows(SECRETS, true, ProtectionExtent::Full)
        .chain(rows(CHANGES, false, ProtectionExtent::Full))
        .chain(rows(PROGRAMS, false, ProtectionExtent::Changes))
        .chain(rows(WRITTEN_BY_GIT, false, ProtectionExtent::Names));
    let entries: Vec<Entry> = rows.collect();
    let mut table = Table { entries, named: HashMap::new(), open: Vec::new() };
    for (at, entry) in table.entries.iter().enumerate() {
        match entry.names.first().and_then(TextPattern::text) {
            Some(name) => table.named.entry(name.to_lowercase()).or_default().push(at),
            None => table.open.push(at),
        }
    }
    table
});

enum Name {
    Free,
    Known(String),
    Open(TextPattern),
}

/// Returns the protection of `path` against changes if `writes` is set, otherwise against reading.
pub(crate) fn guard(path: &Steps, writes: bool, itself: bool) -> Option<Guard> {
    let names: Vec<Name> = path.0.iter().map(Name::from_step).collect();
    if itself && names.last().is_some_and(|name| name.may_equal(&TextPattern::exact(".git"))) {
        return Some(Guard { what: HOOKS, secret: false });
    }
    let found = (0..names.len()).filter_map(|at| guarded(&names[at..], writes, itself)).min()?;
    Some(TABLE.entries[found].guard)
}

/// Devices that reveal no data of a disk or terminal.
const PLAIN_DEVICES: &str = "null zero full random urandom stdin stdout stderr fd shm";

/// Returns `true` if an absolute path may be a device that reveals data of a disk or terminal.
pub(crate) fn is_device(path: &Steps) -> bool {
    let [Step::Name(top), device, ..] = &path.0[..] else { return false };
    let is_plain = |text_pattern: &TextPattern| {
        PLAIN_DEVICES.split(' ').any(|name| text_pattern.text().as_deref() == Some(name))
    };
    top.meets(&TextPattern::exact("dev"), Case::Same) && !matches!(device, Step::Name(name) if is_plain(name))
}

/// Returns `true` if a file of this name is a secret in some directory: `config.json` is one in `.docker`.
pub(crate) fn is_name_of_secret(name: &TextPattern) -> bool {
    let secrets = TABLE.entries.iter().filter(|entry| entry.guard.secret);
    secrets.filter_map(|entry| entry.names.last()).any(|last| last.meets(name, Case::Same))
}

/// Returns the protection of a path that contains expansions, if the path may be a secret: `${x}v` may be
/// `.env`. A name whose end is unknown does not count.
pub(crate) fn guard_expanded(path: &Steps) -> Option<Guard> {
    let is_many = |unit: &PatternUnit| *unit == PatternUnit::Many;
    let may_be = |step: &Step, wanted: &TextPattern| {
        let Step::Name(text_pattern) = step else { return false };
        let core: Vec<PatternUnit> = wanted.0.iter().copied().filter(|unit| !is_many(unit)).collect();
        let is_begun =
            text_pattern.0.first().is_some_and(is_many) && !text_pattern.0.last().is_some_and(is_many);
        is_begun && TextPattern(core).meets(text_pattern, Case::Same)
    };
    let secrets = TABLE.entries.iter().filter(|entry| entry.guard.secret);
    let mut found = secrets.filter(|entry| {
        path.0.windows(entry.names.len()).any(|steps| {
            let names = steps.iter().zip(&entry.names);
            names.clone().any(|(step, wanted)| may_be(step, wanted))
                && names
                    .clone()
                    .all(|(step, wanted)| may_be(step, wanted) || Name::from_step(step).may_equal(wanted))
        })
    });
    found.next().map(|entry| entry.guard)
}

/// Returns `true` if the last name of `path` may be the first of several names of a protected path, so that
/// the directory may contain that path.
pub(crate) fn may_hold_protected(path: &Steps) -> bool {
    let Some(Name::Known(name)) = path.0.last().map(Name::from_step) else { return false };
    TABLE.named.get(&name).is_some_and(|rows| rows.iter().any(|at| TABLE.entries[*at].names.len() > 1))
}

/// Returns `true` if the last name of `path` is protected, alone or with the names before it. The caller has
/// checked that the path is complete and the directories above are unprotected, which makes this faster than
/// [`guard`].
pub(crate) fn guards_last(path: &Path, directory: bool) -> bool {
    let names = last_names(path);
    if !directory && names.last().is_some_and(|name| name.may_equal(&TextPattern::exact(".git"))) {
        return true;
    }
    (0..names.len()).any(|at| {
        let rest = &names[at..];
        let fits = |at: &usize| {
            let Entry { names: wanted, extent, .. } = &TABLE.entries[*at];
            *extent != ProtectionExtent::Names
                && wanted.len() == rest.len()
                && rest.iter().zip(wanted).all(|(name, wanted)| name.may_equal(wanted))
        };
        let Name::Known(first) = &rest[0] else { return false };
        let named = TABLE.named.get(first).into_iter().flatten();
        named.chain(&TABLE.open).any(fits)
    })
}

/// Returns `true` if the last names of `path` may be the beginning of a protected path, so that the directory
/// may contain that path: `.github` is the beginning of `.github/workflows`.
pub fn may_begin_protected(path: &Path) -> bool {
    let names = last_names(path);
    (0..names.len()).any(|at| {
        let rest = &names[at..];
        let begins = |at: &usize| {
            let wanted = &TABLE.entries[*at].names;
            wanted.len() > rest.len() && rest.iter().zip(wanted).all(|(name, wanted)| name.may_equal(wanted))
        };
        let Name::Known(first) = &rest[0] else { return false };
        TABLE.named.get(first).into_iter().flatten().any(begins)
    })
}

/// Returns the last names of a path, as many as the longest row of protected names has.
fn last_names(path: &Path) -> Vec<Name> {
    let name = |component: Component<'_>| TextPattern::exact(&component.as_os_str().to_string_lossy());
    let mut names: Vec<Name> = path
        .components()
        .rev()
        .take(MAX_ROW_NAMES)
        .map(|part| Name::from_step(&Step::Name(name(part))))
        .collect();
    names.reverse();
    names
}

/// Returns the index of the first protected row that begins with the first of `names`.
fn guarded(names: &[Name], writes: bool, itself: bool) -> Option<usize> {
    let fits = |at: &usize| {
        let entry = &TABLE.entries[*at];
        (writes || entry.guard.secret)
            && (itself || entry.extent != ProtectionExtent::Changes)
            && names.len() >= entry.names.len()
            && names.iter().zip(&entry.names).all(|(name, wanted)| name.may_equal(wanted))
    };
    match names.first()? {
        Name::Free => None,
        Name::Known(name) => {
            let named = TABLE.named.get(name).map_or(&[][..], Vec::as_slice);
            named.iter().chain(&TABLE.open).copied().filter(fits).min()
        }
        Name::Open(_) => (0..TABLE.entries.len()).find(fits),
    }
}

impl Name {
    /// Returns the name of a step, in a normalized form: some disks ignore some characters.
    fn from_step(step: &Step) -> Self {
        let Step::Name(text_pattern) = step else { return Self::Free };
        let Some(mut text) = text_pattern.text() else {
            // A name that consists of `*` and dots only reveals nothing.
            let telling = |unit: &PatternUnit| matches!(unit, PatternUnit::Char(letter) if *letter != '.');
            let dotted = text_pattern.0.first() == Some(&PatternUnit::Char('.'));
            return if dotted || text_pattern.0.iter().any(telling) {
                Self::Open(text_pattern.clone())
            } else {
                Self::Free
            };
        };
        text.retain(|letter| !is_ignored(letter));
        text.truncate(text.trim_end_matches(['.', ' ']).len());
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()) {
            text = text.to_lowercase();
        }
        if text.len() > 255 || HARMLESS.iter().any(|end| text.ends_with(end)) {
            return Self::Free;
        }
        Self::Known(text)
    }

    fn may_equal(&self, wanted: &TextPattern) -> bool {
        match self {
            // The unknown name in the middle does not matter: `/proc/$PPID/environ`.
            Self::Free => wanted.is_unknown(),
            Self::Known(name) => wanted.describes(name, Case::Same),
            Self::Open(text_pattern) => may_be(text_pattern, wanted),
        }
    }
}

/// Returns `true` if a word with expansions is probably meant to become `wanted`. That it could is not
/// enough: `src*` could become `src.pem`, but hardly ever does.
fn may_be(text_pattern: &TextPattern, wanted: &TextPattern) -> bool {
    let many = |unit: &&PatternUnit| **unit == PatternUnit::Many;
    let open_start = text_pattern.0.iter().take_while(many).count();
    // A file name pattern does not match the dot of a hidden file, but an empty variable before the dot is
    // possible.
    let text_pattern = if wanted.0.first() == Some(&PatternUnit::Char('.')) {
        &text_pattern.0[open_start..]
    } else {
        &text_pattern.0[..]
    };
    if wanted.0.first() == Some(&PatternUnit::Char('.'))
        && text_pattern.first() != Some(&PatternUnit::Char('.'))
    {
        return false;
    }
    let open_end = text_pattern.iter().rev().take_while(many).count();
    let mut known = &wanted.0[..];
    if open_end > 0 && known.first() == Some(&PatternUnit::Many) {
        known = &known[1..];
        let written = &text_pattern[..text_pattern.len() - open_end];
        // The known part may be the beginning of an extension: `server.p*`.
        if (2..=known.len()).any(|length| written.ends_with(&known[..length])) {
            return true;
        }
    }
    if text_pattern.first() == Some(&PatternUnit::Many) && known.last() == Some(&PatternUnit::Many) {
        known = &known[..known.len() - 1];
    }
    TextPattern(known.to_vec()).meets(&TextPattern(text_pattern.to_vec()), Case::Same)
}

/// Returns `true` for characters that some disks ignore in file names.
fn is_ignored(letter: char) -> bool {
    matches!(letter, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{ad}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_row_has_more_names_than_the_limit() {
        assert_eq!(TABLE.entries.iter().map(|entry| entry.names.len()).max(), Some(MAX_ROW_NAMES));
        let open = TABLE.open.iter().map(|at| TABLE.entries[*at].names.len());
        assert_eq!(open.max(), Some(1), "a row that begins with a pattern has one name");
    }

    #[test]
    fn the_last_names_of_a_directory_can_begin_a_row() {
        for (path, expected) in [
            (".github", true),
            ("a/.GITHUB", true),
            (".github/workflows", false),
            (".local/share", true),
            ("share", false),
            (".local/share/gh", true),
            ("gradle", true),
            ("src", false),
            (".vscode", false),
        ] {
            assert_eq!(may_begin_protected(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn every_list_is_sorted_without_duplicates() {
        for (what, paths) in CHANGES.iter().chain(SECRETS) {
            let paths: Vec<&str> = paths.split(' ').collect();
            assert_eq!(paths.windows(2).find(|pair| pair[0] >= pair[1]), None, "{what}");
        }
    }

    proptest! {
        /// A path is protected if one of its names is protected. The names are examined from the top of the
        /// path.
        #[test]
        fn both_lookups_agree(
            names in prop::collection::vec(
                prop::sample::select(vec![
                    "a", ".git", "hooks", "config", ".config", "nvim", ".local", "share", "keyrings", ".env", ".env.x",
                    ".env.example", "x.pem", "x.pub", "proc", "1", "environ", "Library", ".ENV", "id_rsa.pub", ".ssh.",
                ]),
                1..6,
            ),
        ) {
            let whole: std::path::PathBuf = names.iter().collect();
            let tops = (1..=names.len()).map(|length| names[..length].iter().collect::<std::path::PathBuf>());
            let step_by_step = tops.into_iter().any(|top| guards_last(&top, true));
            prop_assert_eq!(step_by_step, guard(&Steps::from_path(&whole), true, false).is_some());
        }
    }
}
