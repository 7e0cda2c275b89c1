//! Files that git writes, some of which determine the programs that git runs.

use std::path::Path;

use narrows_policy::Verdict::Allow;
use narrows_policy::{Access, DecisionReason};

use crate::common::{SANDBOX, decide, policy, shell};

/// Git continues its own operations with these files. Agents must not name them, but mounts do not protect
/// them.
#[test]
fn a_sandbox_allows_files_that_git_writes() {
    let medium = policy(Access::Medium, "");
    let root = Path::new("/home/me/project");
    assert!(!medium.protects(root, Path::new(".git/rebase-merge"), true));
    assert!(medium.protects(root, Path::new(".git/hooks"), true));
}

/// Git writes these files if a command tells it to.
#[test]
fn git_commands_cannot_change_git_configuration() {
    let high = policy(Access::High, "");
    for line in [
        "git config core.fsmonitor x",
        "git config core.hooksPath x",
        "git config --local core.hooksPath x",
        "git config --add core.hooksPath x",
        "git config --replace-all core.hooksPath x",
        "git config --unset core.hooksPath",
        "git config --unset-all user.name",
        "git config --rename-section a b",
        "git config --remove-section a",
        "git config --edit",
        "git config -e",
        "git config set core.hooksPath x",
        "git config unset core.hooksPath",
        "git config edit",
        "git config remove-section a",
        "git config --type bool core.fsmonitor true",
        "git config --global core.hooksPath x",
        "git config --worktree core.hooksPath x",
        "git config core.hooksPath $x",
        "git config $x",
        "git -C sub config core.hooksPath x",
        "git -c a.b=c config core.hooksPath x",
        "git --no-pager config core.hooksPath x",
        "git --git-dir=.git config core.hooksPath x",
        "git --git-dir .git config core.hooksPath x",
        "git --git-dir=x.git config core.hooksPath x",
        "GIT_DIR=x git config core.hooksPath x",
        "sudo git config core.hooksPath x",
        "cd sub && git config core.hooksPath x",
        "bash -c 'git config core.hooksPath x'",
        "git init --template=t",
        "git init --template t",
        "git init --templ=t",
        "git init -q --template=t sub",
        "git clone --template=t https://example.com/x.git",
        "git -c init.templateDir=t init",
        "git -c INIT.TEMPLATEDIR=t clone x y",
        "GIT_TEMPLATE_DIR=t git init",
        "git config -f .git/config core.hooksPath x",
        "git config --file=.git/config core.hooksPath x",
    ] {
        let decision = decide(&high, &shell(line), SANDBOX);
        assert!(matches!(decision.because, DecisionReason::Protected { .. }), "{line}: {decision}");
    }
    for line in [
        "git config user.name",
        "git config --get user.name",
        "git config --get-all remote.origin.fetch",
        "git config --get-regexp 'remote.*' x",
        "git config --list",
        "git config -l --show-origin",
        "git config list",
        "git config get user.name",
        "git config --type=bool core.bare",
        "git config --global user.name",
        "git config -f x.conf a.b y",
        "git config --default x user.name",
        "git -C sub config user.name",
        "git init",
        "git init sub",
        "git init --template= sub",
        "git clone https://example.com/x.git",
        "git commit -m 'config core.hooksPath x'",
        "git log -- config x",
        "git add config x",
        "git remote add origin https://example.com/x.git",
        "git worktree add ../x main",
    ] {
        let decision = decide(&high, &shell(line), SANDBOX);
        assert_eq!(decision.verdict, Allow, "{line}: {decision}");
    }
}
