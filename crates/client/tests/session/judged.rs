//! Decisions cover exactly the effects: variables, diffs, links, and earlier allowances.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, Mutex};

use narrows_acp::Version;
use narrows_client::{PermissionReply, PermissionRequest, RunRequest};
use narrows_policy::{Access, Narrowing, Policy, Rules};
use serde_json::{Value, json};

use crate::common::{Driven, Stage, VERSIONS, all, payloads};

fn agreeable(stage: Stage) -> (Stage, Arc<Mutex<Vec<PermissionRequest>>>) {
    let asked: Arc<Mutex<Vec<PermissionRequest>>> = Arc::default();
    let heard = Arc::clone(&asked);
    let stage = stage.asking(move |permission_request: Arc<PermissionRequest>| {
        heard.lock().expect("no panic").push((*permission_request).clone());
        async { PermissionReply::Allow }
    });
    (stage, asked)
}

/// A turn in which the agent requests permission for this tool call, and reports the answer.
fn asking(tool: &str, more: &str) -> String {
    format!(
        r#"
        [[turn]]
        steps = [
          {{ tool = {{ id = "t", title = "It", {tool} }} }},
          {{ ask = {{ tool = "t", title = "May I?", on_allow = [{{ say = "Allowed." }}, {more}], on_reject = [{{ say = "Refused." }}] }} }},
        ]
        "#
    )
}

async fn played(driven: &Driven) -> (String, Vec<Value>) {
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let events = all(&mut run).await;
    let text = run.result().await.final_text.map(|text| text.to_string()).unwrap_or_default();
    (text, payloads(&events, "permission.resolved"))
}

#[tokio::test]
async fn an_allowed_command_runs_in_the_client_without_a_second_request() {
    let tool = r#"kind = "execute", input = { command = "echo", args = ["hello"] }"#;
    let run = |words: &str| format!(r#"{{ terminal = {{ command = [{words}] }} }}, {{ say = "{{last}}" }}"#);
    let same = run(r#""echo", "hello""#);
    for (more, expected) in [
        (same.clone(), 1),
        // Another command needs another request, and so does a repetition.
        (run(r#""echo", "bye""#), 2),
        (run(r#""echo", "hello", """#), 2),
        (format!("{same}, {same}"), 2),
    ] {
        let (stage, asked) = agreeable(Stage::new(Version::V1, Access::Medium));
        let driven = stage.open(&asking(tool, &more)).await;
        let (text, resolved) = played(&driven).await;
        assert!(text.starts_with("Allowed."), "{text}");
        assert_eq!(asked.lock().expect("no panic").len(), expected, "{more}");
        assert!(resolved.iter().all(|resolved| resolved["decision"]["by"] == "answer"), "{resolved:?}");
        driven.leave().await;
    }
}

/// A user who allows everything, after `meanwhile` has run.
fn hesitating(stage: Stage, meanwhile: impl Fn(&Path) + Send + Sync + 'static) -> (Stage, Arc<Mutex<usize>>) {
    let count: Arc<Mutex<usize>> = Arc::default();
    let counted = Arc::clone(&count);
    let root = stage.config.cwd.clone();
    let stage = stage.asking(move |_: Arc<PermissionRequest>| {
        *counted.lock().expect("no panic") += 1;
        meanwhile(&root);
        async { PermissionReply::Allow }
    });
    (stage, count)
}

fn repoint(root: &Path, to: &str) {
    let link = root.join("link");
    let _ = std::fs::remove_file(&link);
    symlink(to, link).expect("a link");
}

fn asking_about(rule: &str) -> Arc<Policy> {
    let (rules, _) = Rules::parse(&format!("[[rule]]\neffect = 'ask'\n{rule}\n"), "p.toml").expect("rules");
    Arc::new(Policy::new(Access::Medium, Narrowing::default()).with_rules(rules))
}

/// An answer covers the target of a link at the time of the answer, not the link.
#[tokio::test]
async fn an_answer_does_not_cover_a_changed_link_target() {
    let tool = r#"kind = "read", input = { path = "link" }"#;
    let read = r#"{ read = { path = "link" } }, { say = "{last}" }"#;
    let repointed = format!(r#"{{ terminal = {{ command = ["ln", "-sfn", "two", "link"] }} }}, {read}"#);
    for (more, changes_meanwhile, expected) in
        [(read, false, (1, "Allowed.one")), (&repointed, false, (2, "")), (read, true, (1, "Refused."))]
    {
        let mut stage = Stage::new(Version::V1, Access::Medium);
        stage.config.policy = asking_about("kind = 'read'");
        stage.config.sandbox = true;
        let root = stage.config.cwd.clone();
        for name in ["one", "two"] {
            std::fs::write(root.join(name), name).expect("a file");
        }
        repoint(&root, "one");
        let (stage, count) = hesitating(stage, move |root| {
            if changes_meanwhile {
                repoint(root, "two");
            }
        });
        let driven = stage.open(&asking(tool, more)).await;
        let (text, _) = played(&driven).await;
        let count = *count.lock().expect("no panic");
        if expected.0 == 2 {
            // The command that changes the link may also need a permission.
            assert!(count >= 2, "{more}: {text}");
        } else {
            assert_eq!((count, text.as_str()), expected, "{more}");
        }
        driven.leave().await;
    }
}

/// A directory that is swapped while the user is asked is not the one that was judged.
#[tokio::test]
async fn a_command_does_not_run_in_a_directory_that_was_swapped_meanwhile() {
    let outside = tempfile::tempdir().expect("a directory");
    let target = outside.path().canonicalize().expect("it is there");
    for sandbox in [false, true] {
        let mut stage = Stage::new(Version::V1, Access::Medium);
        stage.config.policy = asking_about("command = 'touch **'");
        stage.config.sandbox = sandbox;
        let root = stage.config.cwd.clone();
        std::fs::create_dir(root.join("dir")).expect("a directory");
        let target = target.clone();
        let (stage, count) = hesitating(stage, move |root| {
            std::fs::remove_dir(root.join("dir")).expect("it was a directory");
            symlink(&target, root.join("dir")).expect("a link");
        });
        let script = format!(
            r#"
            [[turn]]
            steps = [{{ terminal = {{ command = ["touch", "made"], cwd = "{}/dir" }} }}, {{ say = "{{last}}" }}]
            "#,
            root.display()
        );
        let driven = stage.open(&script).await;
        played(&driven).await;
        assert_eq!(*count.lock().expect("no panic"), 1);
        assert!(!outside.path().join("made").exists(), "{sandbox}");
        driven.leave().await;
    }
}

/// Protected files are searched for when the command starts, not when it is requested.
#[tokio::test]
async fn a_protected_file_created_while_a_request_waits_is_protected() {
    if !narrows_process::Sandbox::support().await.confined().protected {
        return;
    }
    let mut stage = Stage::new(Version::V1, Access::Medium);
    stage.config.policy = asking_about("command = 'sh **'");
    stage.config.sandbox = true;
    let root = stage.config.cwd.clone();
    std::fs::write(root.join("b.sh"), "echo EVIL >> .vscode/tasks.json; touch ran").expect("a file");
    let (stage, count) = hesitating(stage, |root| {
        std::fs::create_dir(root.join(".vscode")).expect("a directory");
        std::fs::write(root.join(".vscode/tasks.json"), "{}").expect("a file");
    });
    let driven = stage.open("[[turn]]\nsteps = [{ terminal = { command = ['sh', 'b.sh'] } }]\n").await;
    played(&driven).await;
    assert_eq!(*count.lock().expect("no panic"), 1);
    assert!(driven.path("ran").exists());
    assert_eq!(std::fs::read_to_string(driven.path(".vscode/tasks.json")).expect("a file"), "{}");
    driven.leave().await;
}

/// The sandbox of a command is known only for an agent that runs commands nowhere else.
#[tokio::test]
async fn a_command_is_judged_with_the_sandbox_of_the_client_that_will_run_it() {
    if !narrows_process::Sandbox::support().await.confined().files {
        return;
    }
    let tool = r#"kind = "execute", input = { command = "echo", args = ["hello"] }"#;
    let more = r#"{ terminal = { command = ["echo", "hello"] } }, { say = "{last}" }"#;
    for (through_client, sandbox, expected) in
        [(true, true, 0), (true, false, 1), (false, true, 1), (false, false, 1)]
    {
        let (mut stage, asked) = agreeable(Stage::new(Version::V1, Access::Medium));
        stage.agent.acts_through_client = through_client;
        stage.config.sandbox = sandbox;
        let driven = stage.open(&asking(tool, more)).await;
        let (text, _) = played(&driven).await;
        assert!(text.starts_with("Allowed.") && text.contains("hello"), "{text}");
        let asked = asked.lock().expect("no panic").clone();
        assert_eq!(asked.len(), expected, "{through_client} {sandbox}");
        if !through_client {
            let why = asked[0].decision.to_string();
            assert!(why.contains("commands that the agent may run itself without a sandbox"), "{why}");
        }
        driven.leave().await;
    }
}

#[tokio::test]
async fn an_allowance_ends_with_its_turn() {
    let tool = r#"kind = "execute", input = { command = "echo", args = ["hello"] }"#;
    let script =
        asking(tool, "") + "[[turn]]\nsteps = [{ terminal = { command = [\"echo\", \"hello\"] } }]\n";
    let (stage, asked) = agreeable(Stage::new(Version::V1, Access::Medium));
    let driven = stage.open(&script).await;
    played(&driven).await;
    played(&driven).await;
    assert_eq!(asked.lock().expect("no panic").len(), 2);
    driven.leave().await;
}

#[tokio::test]
async fn a_denial_of_the_policy_overrides_the_user() {
    let (rules, _) =
        Rules::parse("[[rule]]\neffect = 'deny'\ncommand = 'echo hello'\n", "p.toml").expect("rules");
    let (mut stage, asked) = agreeable(Stage::new(Version::V1, Access::Medium));
    stage.config.policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()).with_rules(rules));
    let tool = r#"kind = "execute", input = { command = "echo", args = ["hi"] }"#;
    let driven = stage.open(&asking(tool, r#"{ terminal = { command = ["echo", "hello"] } }"#)).await;
    let (_, resolved) = played(&driven).await;
    assert_eq!(resolved[1]["outcome"], "refused");
    assert_eq!(asked.lock().expect("no panic").len(), 1);
    driven.leave().await;
}

#[tokio::test]
async fn an_allowed_change_is_written_by_the_client_without_a_second_request() {
    let (rules, _) = Rules::parse("[[rule]]\neffect = 'ask'\nkind = 'edit'\n", "p.toml").expect("rules");
    let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()).with_rules(rules));
    let tool = r#"kind = "edit", diff = { path = "a.txt", new = "new" }"#;
    for (text, expected) in [("new", 1), ("other", 2)] {
        let (mut stage, asked) = agreeable(Stage::new(Version::V1, Access::Medium));
        stage.config.policy = Arc::clone(&policy);
        let more = format!(r#"{{ write = {{ path = "a.txt", content = "{text}" }} }}"#);
        let driven = stage.open(&asking(tool, &more)).await;
        played(&driven).await;
        assert_eq!(asked.lock().expect("no panic").len(), expected, "{text}");
        assert_eq!(std::fs::read_to_string(driven.path("a.txt")).expect("a file"), text);
        driven.leave().await;
    }
}

/// The claimed old text of a file is not trusted: a request could hide a part of the change, or all of it.
#[tokio::test]
async fn a_change_is_shown_and_allowed_as_it_changes_the_file_on_disk() {
    let (rules, _) = Rules::parse("[[rule]]\neffect = 'ask'\nkind = 'edit'\n", "p.toml").expect("rules");
    let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()).with_rules(rules));
    let write = r#"{ write = { path = "a.txt", content = "new" } }"#;
    // Each row has the claimed old text, the shown old text, and the number of requests.
    for (claimed, shown, expected) in
        [("one two", Some("one two"), 1), ("new", None, 1), ("other", None, 1), ("two", Some("two"), 2)]
    {
        let (mut stage, asked) = agreeable(Stage::new(Version::V1, Access::Medium));
        stage.config.policy = Arc::clone(&policy);
        std::fs::write(stage.config.cwd.join("a.txt"), "one two").expect("a file");
        let tool = format!(r#"kind = "edit", diff = {{ path = "a.txt", old = "{claimed}", new = "new" }}"#);
        let driven = stage.open(&asking(&tool, write)).await;
        played(&driven).await;
        let asked = asked.lock().expect("no panic").clone();
        assert_eq!(asked[0].changes[0].old_text.as_deref(), shown, "{claimed}");
        assert_eq!(asked.len(), expected, "{claimed}");
        driven.leave().await;
    }
}

#[tokio::test]
async fn an_allowed_file_is_served_by_the_client_without_a_second_request() {
    let rules = "[[rule]]\neffect = 'ask'\nkind = ['edit', 'read']\n";
    let (rules, _) = Rules::parse(rules, "p.toml").expect("rules");
    let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()).with_rules(rules));
    let whole = r#"kind = "edit", input = { path = "a.txt", content = "new" }"#;
    let part = r#"kind = "edit", input = { path = "a.txt", content = "new", line = 3 }"#;
    let stretch = r#"kind = "edit", input = { path = "a.txt", old_string = "x", new_string = "new" }"#;
    let (write, other) = (
        r#"{ write = { path = "a.txt", content = "new" } }"#,
        r#"{ write = { path = "a.txt", content = "x" } }"#,
    );
    let (one, two) =
        (r#"kind = "read", path = "a.txt""#, r#"kind = "read", path = "a.txt", input = { path = "b.txt" }"#);
    let read = r#"{ read = { path = "a.txt" } }"#;
    for (tool, more, expected) in [
        (whole, write, 1),
        (whole, other, 2),
        (part, write, 2),
        (stretch, write, 2),
        (one, read, 1),
        (one, write, 2),
        (two, read, 2),
    ] {
        let (mut stage, asked) = agreeable(Stage::new(Version::V1, Access::Medium));
        stage.config.policy = Arc::clone(&policy);
        std::fs::write(stage.config.cwd.join("a.txt"), "x").expect("a file");
        let driven = stage.open(&asking(tool, more)).await;
        played(&driven).await;
        assert_eq!(asked.lock().expect("no panic").len(), expected, "{tool} {more}");
        driven.leave().await;
    }
}

/// An agent of version 1 cannot have the built-in tools, so their names have no meaning.
#[tokio::test]
async fn the_built_in_tool_name_gives_other_agents_nothing() {
    let tool =
        r#"name = "narrows__run_command", kind = "execute", input = { command = "echo", args = ["hello"] }"#;
    let mut stage = Stage::new(Version::V1, Access::Medium);
    stage.config.sandbox = true;
    // Run a command first, so that the sandbox is known.
    let script = asking(tool, "").replace("steps = [", "steps = [\n{ terminal = { command = [\"true\"] } },");
    let driven = stage.open(&script).await;
    assert_eq!(played(&driven).await.0, "Refused.");
    driven.leave().await;
}

#[tokio::test]
async fn variables_of_a_command_are_shown_and_judged() {
    let (rules, _) =
        Rules::parse("[[rule]]\neffect = 'allow'\ncommand = 'git --version'\n", "p.toml").expect("rules");
    let policy = Arc::new(Policy::new(Access::Medium, Narrowing::default()).with_rules(rules));
    for (env, expected) in [
        (json!([]), None),
        (json!([{"name": "LANG", "value": "C"}]), None),
        (json!([{"name": "XDG_CONFIG_HOME", "value": "x"}]), Some("Run XDG_CONFIG_HOME=x git --version")),
        (json!([{"name": "LD_PRELOAD", "value": "./x.so"}]), Some("Run LD_PRELOAD=./x.so git --version")),
    ] {
        let asked: Arc<Mutex<Vec<PermissionRequest>>> = Arc::default();
        let heard = Arc::clone(&asked);
        let mut stage = Stage::new(Version::V1, Access::Medium).asking(
            move |permission_request: Arc<PermissionRequest>| {
                heard.lock().expect("no panic").push((*permission_request).clone());
                async { PermissionReply::Reject }
            },
        );
        stage.config.policy = Arc::clone(&policy);
        let params = json!({"command": "git", "args": ["--version"], "env": env});
        let script = format!(
            "[[turn]]\nsteps = [{{ request = {{ method = \"terminal/create\", params = {} }} }}]\n",
            toml(&params)
        );
        let driven = stage.open(&script).await;
        let (_, resolved) = played(&driven).await;
        let asked = asked.lock().expect("no panic").clone();
        assert_eq!(
            asked.first().map(|permission_request| permission_request.title.as_str()),
            expected,
            "{env}"
        );
        assert_eq!(resolved[0]["outcome"], if expected.is_some() { "refused" } else { "allowed" }, "{env}");
        if expected.is_some() {
            assert_eq!(asked[0].input["env"], env);
        }
        driven.leave().await;
    }
}

#[tokio::test]
async fn variables_of_a_request_for_permission_are_judged() {
    for (env, said) in [
        (r#"{ PATH = "/evil" }"#, "Refused."),
        (r#"["HOME=/evil"]"#, "Refused."),
        (r#"[{ name = "PAGER", value = "sh" }]"#, "Refused."),
        (r#"{ LANG = "C" }"#, "Allowed."),
    ] {
        let tool =
            format!(r#"kind = "execute", input = {{ command = "git", args = ["status"], env = {env} }}"#);
        let driven = Stage::new(Version::V1, Access::Low).open(&asking(&tool, "")).await;
        assert_eq!(played(&driven).await.0, said, "{env}");
        driven.leave().await;
    }
}

/// The program must be the one that runs without the variable `PATH` in the request.
#[tokio::test]
async fn a_program_is_not_looked_up_in_the_requested_path_variable() {
    let stage = Stage::new(Version::V1, Access::High);
    let evil = stage.config.cwd.join("bin");
    std::fs::create_dir(&evil).expect("a directory");
    std::fs::write(evil.join("echo"), "#!/bin/sh\nprintf evil > \"$0.ran\"\n").expect("a file");
    std::fs::set_permissions(evil.join("echo"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("a mode");
    let params = json!({"command": "echo", "args": [], "env": [{"name": "PATH", "value": evil}]});
    let script = format!(
        "[[turn]]\nsteps = [{{ request = {{ method = \"terminal/create\", params = {} }} }},\n\
         {{ terminal = {{ command = [\"true\"] }} }}]\n",
        toml(&params)
    );
    let driven = stage.open(&script).await;
    let (_, resolved) = played(&driven).await;
    assert_eq!(resolved[0]["outcome"], "allowed");
    driven.leave().await;
    assert!(!evil.join("echo.ran").exists());
}

#[tokio::test]
async fn a_diff_is_judged_for_every_kind_of_call() {
    for version in VERSIONS {
        for (tool, said) in [
            (r#"kind = "edit", path = "a.txt", diff = { path = "b.txt", new = "x" }"#, "Allowed."),
            (r#"kind = "edit", path = "a.txt", diff = { path = "/etc/cron.d/x", new = "x" }"#, "Refused."),
            (r#"kind = "read", diff = { path = ".git/hooks/pre-commit", new = "x" }"#, "Refused."),
        ] {
            let driven = Stage::new(version, Access::Medium).open(&asking(tool, "")).await;
            assert_eq!(played(&driven).await.0, said, "{version} {tool}");
            driven.leave().await;
        }
        let driven = Stage::new(version, Access::Low)
            .open(&asking(r#"kind = "read", diff = { path = "a", new = "x" }"#, ""))
            .await;
        assert_eq!(played(&driven).await.0, "Refused.", "{version}");
        driven.leave().await;
    }
}

#[tokio::test]
async fn a_path_is_judged_by_its_link_target() {
    for version in VERSIONS {
        for (tool, said) in [
            (r#"kind = "edit", path = "plain/x""#, "Allowed."),
            (r#"kind = "edit", path = "inner/x""#, "Allowed."),
            (r#"kind = "edit", path = "out/x""#, "Refused."),
            (r#"kind = "edit", input = { file_path = "out/new/x" }"#, "Refused."),
            (r#"kind = "edit", path = "kk/pre-commit""#, "Refused."),
            (r#"kind = "edit", path = "a", diff = { path = "kk/pre-commit", new = "" }"#, "Refused."),
            (r#"kind = "edit", path = "dangling""#, "Refused."),
            (r#"kind = "edit", path = "loop/x""#, "Refused."),
            (r#"kind = "read", path = "notes""#, "Refused."),
            (r#"kind = "edit", path = "out/../x""#, "Refused."),
        ] {
            let stage = Stage::new(version, Access::Medium);
            let outside = tempfile::tempdir().expect("a directory");
            let root = stage.config.cwd.clone();
            std::fs::create_dir_all(root.join(".git/hooks")).expect("a directory");
            std::fs::create_dir(root.join("plain")).expect("a directory");
            std::fs::write(root.join(".env"), "").expect("a file");
            symlink(outside.path(), root.join("out")).expect("a link");
            symlink(outside.path().join("missing"), root.join("dangling")).expect("a link");
            for (to, at) in [("plain", "inner"), (".git/hooks", "kk"), ("loop", "loop"), (".env", "notes")] {
                symlink(to, root.join(at)).expect("a link");
            }
            let driven = stage.open(&asking(tool, "")).await;
            assert_eq!(played(&driven).await.0, said, "{version} {tool}");
            driven.leave().await;
        }
    }
}

/// A sandbox confines a command to the roots only if the command starts there.
#[tokio::test]
async fn a_command_is_not_run_in_a_directory_outside_that_a_link_leads_to() {
    for (cwd, outcome) in [("plain", "allowed"), ("inner", "allowed"), ("out", "refused")] {
        let mut stage = Stage::new(Version::V1, Access::Medium);
        stage.config.sandbox = true;
        if !narrows_process::Sandbox::support().await.confined().files {
            return;
        }
        let outside = tempfile::tempdir().expect("a directory");
        let root = stage.config.cwd.clone();
        std::fs::create_dir(root.join("plain")).expect("a directory");
        symlink("plain", root.join("inner")).expect("a link");
        symlink(outside.path(), root.join("out")).expect("a link");
        let script = format!(
            "[[turn]]\nsteps = [{{ terminal = {{ command = [\"pwd\", \"-P\"], cwd = \"{cwd}\" }} }}, {{ say = \"{{last}}\" }}]\n"
        );
        let driven = stage.open(&script).await;
        let (text, resolved) = played(&driven).await;
        assert_eq!(resolved[0]["outcome"], outcome, "{cwd}: {text}");
        driven.leave().await;
    }
}

/// Applies to permission requests and to commands that the client runs.
#[tokio::test]
async fn a_command_is_judged_by_the_link_targets_of_its_words() {
    let (rules, _) =
        Rules::parse("[[rule]]\neffect = 'deny'\ncommand = 'canary'\n", "p.toml").expect("rules");
    let policy = Arc::new(Policy::new(Access::High, Narrowing::default()).with_rules(rules));
    for (words, said, outcome) in [
        (r#"["./ls"]"#, "Refused.", "refused"),
        (r#"["./other"]"#, "Allowed.", "allowed"),
        (r#"["cat", "notes"]"#, "Refused.", "refused"),
    ] {
        let stage = || {
            let mut stage = Stage::new(Version::V1, Access::High);
            stage.config.policy = Arc::clone(&policy);
            let root = stage.config.cwd.clone();
            std::fs::write(root.join(".env"), "").expect("a file");
            symlink("canary", root.join("ls")).expect("a link");
            symlink("/bin/true", root.join("other")).expect("a link");
            symlink(".env", root.join("notes")).expect("a link");
            stage
        };
        let tool = format!(r#"kind = "execute", input = {{ command = {words} }}"#);
        let driven = stage().open(&asking(&tool, "")).await;
        assert_eq!(played(&driven).await.0, said, "{words}");
        driven.leave().await;
        let script = format!("[[turn]]\nsteps = [{{ terminal = {{ command = {words} }} }}]\n");
        let driven = stage().open(&script).await;
        assert_eq!(played(&driven).await.1[0]["outcome"], outcome, "{words}");
        driven.leave().await;
    }
}

/// git runs programs that the configuration of a bare repository names.
#[tokio::test]
async fn git_is_not_read_only_inside_a_bare_repository() {
    for (files, said) in [
        (&[".git/HEAD", ".git/objects/x", ".git/refs/x"][..], "Allowed."),
        (&["HEAD", "objects/x", "refs/x", "config"][..], "Refused."),
    ] {
        let stage = || {
            let stage = Stage::new(Version::V1, Access::Low);
            for file in files {
                let path = stage.config.cwd.join(file);
                std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
                std::fs::write(path, "").expect("a file");
            }
            stage
        };
        let tool = r#"kind = "execute", input = { command = "git status" }"#;
        let driven = stage().open(&asking(tool, "")).await;
        assert_eq!(played(&driven).await.0, said, "{files:?}");
        driven.leave().await;
        let script = "[[turn]]\nsteps = [{ terminal = { command = [\"git\", \"status\"] } }]\n";
        let driven = stage().open(script).await;
        let outcome = if said == "Allowed." { "allowed" } else { "refused" };
        assert_eq!(played(&driven).await.1[0]["outcome"], outcome, "{files:?}");
        driven.leave().await;
    }
}

fn toml(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut all: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            if fields.contains_key("command") {
                all.push("sessionId = \"{session}\"".to_owned());
            }
            format!("{{ {} }}", all.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}
