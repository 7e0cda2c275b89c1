//! Files that a sandboxed command creates and that git would use.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use narrows_acp::Version;
use narrows_client::RunRequest;
use narrows_policy::Access;
use serde_json::Value;

use crate::common::{Driven, Stage, all, payloads};

fn git(directory: &Path, words: &[&str]) {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(words).current_dir(directory);
    let output = git.output().expect("git");
    assert!(output.status.success(), "{output:?}");
}

/// Opens a session with a sandbox, in a repository without hooks, whose agent runs `script`. Returns `None`
/// if this machine has no such sandbox.
async fn repository(script: &str) -> Option<Driven> {
    let mut stage = Stage::new(Version::V1, Access::Medium);
    let support = narrows_process::Sandbox::support().await;
    if !support.confined().protected {
        return None;
    }
    stage.config.sandbox = true;
    git(&stage.config.cwd, &["init", "-q", "--template=", "."]);
    git(&stage.config.cwd, &["commit", "-q", "--allow-empty", "-m", "x"]);
    // The policy does not see the content of a file.
    std::fs::write(stage.config.cwd.join("job"), script).expect("a file");
    let script = "[[turn]]\nsteps = [{ terminal = { command = ['sh', 'job'] } }, { say = '{last}' }]\n";
    Some(stage.open(script).await)
}

/// Returns the paths of denied changes, the reported problems, and the output.
async fn played(driven: &Driven) -> (Vec<String>, Vec<String>, String) {
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let events = all(&mut run).await;
    let text = run.result().await.final_text.map(|text| text.to_string()).unwrap_or_default();
    let is_denied = |resolved: &&Value| resolved["outcome"] == "refused";
    let denied: Vec<Value> = payloads(&events, "permission.resolved")
        .iter()
        .filter(is_denied)
        .map(|it| it["requestId"].clone())
        .collect();
    let wanted = payloads(&events, "permission.requested");
    let wanted = wanted.iter().filter(|it| denied.contains(&it["requestId"]));
    let denied = wanted.map(|it| it["locations"][0].as_str().unwrap_or_default().to_owned()).collect();
    let others = payloads(&events, "other");
    let problems =
        others.iter().map(|it| it["data"]["problem"].as_str().unwrap_or_default().to_owned()).collect();
    (denied, problems, text)
}

#[tokio::test]
async fn created_git_files_are_moved_aside_and_the_command_ends() {
    for (name, create) in [
        (".git/commondir", "cp -r .git d; echo ../d > .git/commondir"),
        (".git/commondir", "cp -r .git d; ln -s ../d .git/commondir"),
        (".git/hooks", "mkdir .git/hooks; touch .git/hooks/pre-commit"),
        (".git/config.worktree", "echo > .git/config.worktree"),
        (".git/info/attributes", "mkdir .git/info; echo > .git/info/attributes"),
        (".git/info/attributes", "mkdir i; echo > i/attributes; ln -s $PWD/i .git/info"),
    ] {
        for after in ["", "; sleep 300", "; sleep 300 >/dev/null 2>&1 & exit 0"] {
            let Some(driven) = repository(&format!("{create}{after}")).await else { return };
            let begun = Instant::now();
            let (denied, _, text) = played(&driven).await;
            assert!(begun.elapsed().as_secs() < 60, "{text}");
            assert_eq!(denied, [driven.path(name).to_string_lossy()], "{create}{after}: {text}");
            assert!(driven.path(name).symlink_metadata().is_err(), "{create}{after}");
            let moved = if create.contains("/i ") { ".git/info" } else { name };
            assert!(driven.path(&format!("{moved}.denied-1")).symlink_metadata().is_ok());
            driven.leave().await;
        }
    }
}

#[tokio::test]
async fn git_works_and_its_own_files_stay() {
    let script = "touch a; git add a; git -c user.name=a -c user.email=a@b commit -qm y && git gc -q && git worktree add -q w \
                  && git log --oneline | wc -l";
    let Some(driven) = repository(script).await else { return };
    let (denied, problems, text) = played(&driven).await;
    assert_eq!(denied, [""; 0], "{text}");
    assert!(text.contains("2\n"), "{text}");
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("/.git/worktrees") && problems[0].contains("/w/.git"), "{problems:?}");
    driven.leave().await;
}

#[tokio::test]
async fn a_new_repository_is_reported() {
    let Some(driven) = repository("git init -q sub; echo done").await else { return };
    let (denied, problems, text) = played(&driven).await;
    assert_eq!(denied, [""; 0], "{text}");
    let sub = driven.path("sub/.git");
    assert!(problems.len() == 1 && problems[0].ends_with(&format!(": {}", sub.display())), "{problems:?}");
    driven.leave().await;
}
