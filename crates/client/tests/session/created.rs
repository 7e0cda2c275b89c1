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
    prepared(|_| {}, &[script]).await
}

/// Like [`repository`], for several commands after `prepare`.
async fn prepared(prepare: impl FnOnce(&Path), scripts: &[&str]) -> Option<Driven> {
    let mut stage = Stage::new(Version::V1, Access::Medium);
    let support = narrows_process::Sandbox::support().await;
    if !support.confined().protected {
        return None;
    }
    stage.config.sandbox = true;
    git(&stage.config.cwd, &["init", "-q", "--template=", "."]);
    git(&stage.config.cwd, &["commit", "-q", "--allow-empty", "-m", "x"]);
    // The policy does not see the content of a file.
    prepare(&stage.config.cwd);
    let mut steps = String::new();
    for (number, script) in scripts.iter().enumerate() {
        std::fs::write(stage.config.cwd.join(format!("job{number}")), script).expect("a file");
        steps += &format!("{{ terminal = {{ command = ['sh', 'job{number}'] }} }}, {{ say = '{{last}}' }}, ");
    }
    Some(stage.open(&format!("[[turn]]\nsteps = [{steps}]\n")).await)
}

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

#[tokio::test]
async fn what_git_settings_name_is_watched_under_each_name() {
    let hooks = "mkdir -p scripts/hooks; echo x > scripts/hooks/pre-commit; sleep 300";
    for (settings, file, link, scripts, moved) in [
        (
            &["core.hooksPath", "scripts/hooks"],
            "scripts/build",
            None,
            &["mv scripts s2; ln -s s2 scripts", "rm scripts; mv s2 scripts; mkdir scripts/hooks; sleep 300"]
                [..],
            "scripts/hooks",
        ),
        (&["core.hooksPath", "scripts/hooks"], "scripts/build", None, &[hooks], "scripts/hooks"),
        (
            &["include.path", "../conf/local.inc"],
            "conf/build",
            None,
            &["mv conf s2; ln -s s2 conf", "rm conf; mv s2 conf; echo > conf/local.inc; sleep 300"],
            "conf/local.inc",
        ),
        (
            &["include.path", "../conf/x/../none"],
            "conf/build",
            None,
            &["mkdir -p o/deep; echo > o/none; ln -s ../o/deep conf/x; sleep 300"],
            "conf/x",
        ),
        (
            &["core.hooksPath", "hk"],
            "a",
            Some(("real-hk", "hk")),
            &["mkdir real-hk; touch real-hk/pre-commit; sleep 300"],
            "real-hk",
        ),
    ] {
        let prepare = |root: &Path| {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            std::fs::write(path, "").expect("a file");
            git(root, &["config", settings[0], settings[1]]);
            if let Some((target, name)) = link {
                std::os::unix::fs::symlink(target, root.join(name)).expect("a link");
            }
        };
        let Some(driven) = prepared(prepare, scripts).await else { return };
        let (denied, _, text) = played(&driven).await;
        assert_eq!(denied.len(), 1, "{scripts:?}: {denied:?} {text}");
        assert!(driven.path(moved).symlink_metadata().is_err(), "{scripts:?}");
        assert!(driven.path(&format!("{moved}.denied-1")).symlink_metadata().is_ok(), "{scripts:?}");
        driven.leave().await;
    }
}

#[tokio::test]
async fn a_repository_is_guarded_from_every_later_command_whoever_created_it() {
    let create = "echo > lib/.git/commondir; sleep 300";
    let init = "git init -q --template= lib; echo done";
    let fill = "cd vendor; i=0; while [ $i -lt 6000 ]; do mkdir f$i; i=$((i+1)); done";
    let hidden = "echo > vendor/lib/.git/commondir; sleep 300";
    for (scripts, path) in [
        (&[init, create][..], "lib/.git/commondir"),
        (&[fill, hidden], "vendor/lib/.git/commondir"),
        (&[fill, "rmdir vendor/f*", hidden], "vendor/lib/.git/commondir"),
    ] {
        let prepare = |root: &Path| {
            std::fs::create_dir_all(root.join("vendor/lib")).expect("a directory");
            git(&root.join("vendor/lib"), &["init", "-q", "--template=", "."]);
        };
        let Some(driven) = prepared(prepare, scripts).await else { return };
        let (denied, problems, text) = played(&driven).await;
        assert_eq!(denied, [driven.path(path).to_string_lossy()], "{scripts:?}: {text}");
        assert!(!problems.iter().any(|problem| problem.contains("vendor/lib")), "{problems:?}");
        driven.leave().await;
    }
}

#[tokio::test]
async fn every_place_that_may_hide_a_new_repository_is_reported() {
    let many =
        "mkdir node_modules; cd node_modules; i=0; while [ $i -lt 6000 ]; do mkdir f$i; i=$((i+1)); done";
    for (script, named) in [
        ("git init -q .husky; echo done", "/.husky/.git"),
        ("for i in 1 2 3 4 5 6 zz; do git init -q $i; done; echo done", "/zz/.git"),
        (many, "/node_modules"),
    ] {
        let Some(driven) = repository(script).await else { return };
        let (_, problems, text) = played(&driven).await;
        let path = driven.path(named.trim_start_matches('/')).display().to_string();
        assert!(problems.iter().any(|problem| problem.contains(&path)), "{script}: {problems:?} {text}");
        driven.leave().await;
    }
}
