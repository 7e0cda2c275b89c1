//! Files and commands of the agent that the client serves.

use narrows_acp::Version;
use narrows_client::RunRequest;
use narrows_link::memory;
use narrows_policy::Access;
use serde_json::json;

use crate::bounded::asking;
use crate::common::{Stage, all, payloads};

#[tokio::test]
async fn files_and_commands_belong_to_their_session() {
    let driven = Stage::new(Version::V1, Access::High).open("files").await;
    let mut run = driven.session.run(RunRequest::text("three words here")).await.expect("a run");
    let events = all(&mut run).await;
    let text = run.result().await.final_text.expect("a text");
    assert!(text.contains("The file says: You said: three words here"), "{text}");
    assert!(text.contains("The command ended with 0 and said: 5 note.txt"), "{text}");
    let note = std::fs::read_to_string(driven.path("note.txt")).expect("the file");
    assert_eq!(note, "You said: three words here\n");
    let methods: Vec<_> =
        payloads(&events, "permission.requested").iter().map(|asked| asked["method"].clone()).collect();
    assert_eq!(methods, ["fs/write_text_file", "fs/read_text_file", "terminal/create"]);
    driven.leave().await;
}

#[tokio::test]
async fn denied_requests_have_no_effect() {
    const ESCAPE: &str = r#"
        [[turn]]
        steps = [
          { write = { path = "../outside.txt", content = "x" } },
          { say = "{last}" },
        ]
    "#;
    let driven = Stage::new(Version::V1, Access::Medium).open(ESCAPE).await;
    let outside = driven.path("../outside.txt");
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let resolved = payloads(&all(&mut run).await, "permission.resolved");
    assert_eq!(
        (&resolved[0]["outcome"], &resolved[0]["decision"]["by"]),
        (&json!("refused"), &json!("policy"))
    );
    assert!(!outside.exists());
    driven.leave().await;

    let driven = Stage::new(Version::V1, Access::Low).open("files").await;
    driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
    assert!(!driven.path("note.txt").exists());
    driven.leave().await;
}

/// A gate marks a path that it has judged without links. If the path has a link now, the link was created
/// afterwards.
#[tokio::test]
async fn no_link_is_followed_for_a_request_that_was_decided_without_any() {
    let stage = Stage::new(Version::V1, Access::High);
    let cwd = stage.config.cwd.clone();
    std::fs::create_dir(cwd.join("there")).expect("a directory");
    std::fs::write(cwd.join("there/file"), "old").expect("a file");
    std::os::unix::fs::symlink("there", cwd.join("link")).expect("a link");
    std::os::unix::fs::symlink("there/file", cwd.join("file")).expect("a link");
    let (file, link) = (cwd.join("file"), cwd.join("link"));
    let wanted = [
        ("fs/write_text_file", json!({"path": file, "content": "new"})),
        ("fs/write_text_file", json!({"path": link.join("made/file"), "content": "new"})),
        ("fs/read_text_file", json!({"path": link.join("file")})),
        ("terminal/create", json!({"command": "touch", "args": ["touched"], "cwd": link})),
        ("fs/read_text_file", json!({"path": cwd.join("there/file")})),
        ("terminal/create", json!({"command": "true", "cwd": cwd.join("there")})),
        ("terminal/create", json!({"command": "true"})),
    ];
    let request = |(id, (method, mut params)): (usize, (&str, serde_json::Value))| {
        (params["sessionId"], params["_meta"]) = (json!("s"), json!({"narrows": {"noLinks": true}}));
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    };
    let requests = wanted.into_iter().enumerate().map(request).collect();
    let (link, far) = memory::pair(&narrows_link::Options::default());
    let agent = tokio::spawn(asking(far, requests, 7));
    let driven = stage.open_on(link, tokio::spawn(async {})).await;
    driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
    let (text, is_made) = (
        std::fs::read_to_string(driven.path("there/file")).expect("a file"),
        driven.path("there/made").exists() || driven.path("there/touched").exists(),
    );
    assert_eq!((text.as_str(), is_made), ("old", false));
    driven.leave().await;
    let mut codes = agent.await.expect("no panic");
    codes.sort_unstable();
    assert_eq!(codes, [None, None, None, Some(-32602), Some(-32602), Some(-32602), Some(-32602)]);
}

#[tokio::test]
async fn no_access_reaches_files_outside_the_session_directories() {
    const ESCAPE: &str = r#"
        [[turn]]
        steps = [
          { write = { path = "out/new.txt", content = "x" } },
          { write = { path = "../outside.txt", content = "x" } },
          { read = { path = "out/secret.txt" } },
          { say = "{last}" },
        ]
    "#;
    for access in [Access::Low, Access::Medium, Access::High] {
        let elsewhere = tempfile::tempdir().expect("a directory");
        std::fs::write(elsewhere.path().join("secret.txt"), "known only outside").expect("a file");
        let driven = Stage::new(Version::V1, access).open(ESCAPE).await;
        std::os::unix::fs::symlink(elsewhere.path(), driven.path("out")).expect("a link");
        let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
        all(&mut run).await;
        let text = run.result().await.final_text.unwrap_or_default();
        assert!(!text.contains("known only outside"), "{access}: {text}");
        assert!(!driven.path("../outside.txt").exists() && !driven.path("out/new.txt").exists(), "{access}");
        driven.leave().await;
    }
}

#[tokio::test]
async fn a_file_that_a_protected_name_leads_to_is_not_written_by_another_name() {
    let named = [
        "docs/guide.md",
        "tools/x.yaml",
        "dirv/tasks.json",
        "dirv/new.json",
        "ordinary.json",
        "scripts/husky",
        "ci/workflows/build.yml",
        "global/pre-push",
        "nested/hooks/x",
    ];
    let steps = named.iter().map(|path| format!(r#"{{ write = {{ path = "{path}", content = "x" }} }}"#));
    let steps: Vec<String> = steps.collect();
    let script = format!(
        r#"[[turn]]
        steps = [{}, {{ write = {{ path = "docs/other.md", content = "x" }} }}]"#,
        steps.join(", ")
    );
    for access in [Access::Medium, Access::High] {
        let mut stage = Stage::new(Version::V1, access);
        let system = stage.config.cwd.join("settings");
        stage.config.git_settings = vec![system.clone()];
        let driven = stage.open(&script).await;
        for file in named.iter().filter(|file| !file.contains("new")) {
            let file = driven.path(file);
            std::fs::create_dir_all(file.parent().expect("a directory")).expect("a directory");
            std::fs::write(file, "").expect("a file");
        }
        for directory in [".husky", "nested/repo/.git"] {
            std::fs::create_dir_all(driven.path(directory)).expect("a directory");
        }
        let hooks = driven.path("global");
        std::fs::write(&system, format!("[core]\nhooksPath = {}\n", hooks.display())).expect("a file");
        let nested = "[core]\nhooksPath = ../hooks\n";
        std::fs::write(driven.path("nested/repo/.git/config"), nested).expect("a file");
        for (target, link) in [
            ("docs/guide.md", "AGENTS.md"),
            ("tools/x.yaml", ".pre-commit-config.yaml"),
            ("dirv", ".zed"),
            ("../ordinary.json", "dirv/settings.json"),
            ("../scripts/husky", ".husky/pre-commit"),
            ("ci", ".github"),
        ] {
            std::os::unix::fs::symlink(target, driven.path(link)).expect("a link");
        }
        let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
        let resolved = payloads(&all(&mut run).await, "permission.resolved");
        let outcomes: Vec<_> = resolved.iter().map(|resolved| resolved["outcome"].clone()).collect();
        let mut expected = vec![json!("refused"); named.len()];
        expected.push(json!("allowed"));
        assert_eq!(outcomes, expected, "{access}");
        driven.leave().await;
    }
}

/// The client opens protected files itself, so only its own decision protects them.
#[tokio::test]
async fn hooks_and_settings_that_git_uses_under_other_names_are_not_written() {
    let named = [
        "scripts/hooks/pre-commit",
        "scripts/hooks/new",
        "link/pre-commit",
        "team.conf",
        "missing.conf",
        "bare.git/config",
        "bare.git/hooks/pre-push",
        ".git/config",
    ];
    let steps = named.iter().map(|path| format!(r#"{{ write = {{ path = "{path}", content = "x" }} }}"#));
    let steps: Vec<String> = steps.collect();
    let script = format!(
        r#"[[turn]]
        steps = [{}, {{ write = {{ path = "scripts/build", content = "x" }} }}]"#,
        steps.join(", ")
    );
    for access in [Access::Medium, Access::High] {
        let driven = Stage::new(Version::V1, access).open(&script).await;
        for directory in ["scripts/hooks", ".git", "bare.git/hooks", "bare.git/objects", "bare.git/refs"] {
            std::fs::create_dir_all(driven.path(directory)).expect("a directory");
        }
        std::os::unix::fs::symlink("scripts/hooks", driven.path("link")).expect("a link");
        let config =
            "[core]\nhooksPath = scripts/hooks\n[include]\npath = ../team.conf\npath = ../missing.conf\n";
        for (file, text) in [(".git/config", config), ("team.conf", ""), ("bare.git/HEAD", "")] {
            std::fs::write(driven.path(file), text).expect("a file");
        }
        let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
        let resolved = payloads(&all(&mut run).await, "permission.resolved");
        let outcomes: Vec<_> = resolved.iter().map(|resolved| resolved["outcome"].clone()).collect();
        let mut expected = vec![json!("refused"); named.len()];
        expected.push(json!("allowed"));
        assert_eq!(outcomes, expected, "{access}");
        assert_eq!(std::fs::read_to_string(driven.path(".git/config")).expect("a file"), config);
        assert_eq!(std::fs::read_to_string(driven.path("team.conf")).expect("a file"), "");
        for missing in ["scripts/hooks/pre-commit", "missing.conf", "bare.git/config"] {
            assert!(!driven.path(missing).exists(), "{access} {missing}");
        }
        assert!(driven.path("scripts/build").exists());
        driven.leave().await;
    }
}

/// Each file alone is harmless, and the last one makes the directory a repository with their settings.
#[tokio::test]
async fn concurrent_writes_do_not_make_a_directory_a_repository() {
    let stage = Stage::new(Version::V1, Access::Medium);
    let cwd = stage.config.cwd.clone();
    std::fs::write(cwd.join("big"), "x".repeat(4 << 20)).expect("a file");
    let big = |_| ("fs/read_text_file", json!({"path": cwd.join("big")}));
    let mut wanted: Vec<_> = (0..4).map(big).collect();
    let directories: Vec<_> = (0..20).map(|number| cwd.join(format!("d{number}"))).collect();
    for directory in &directories {
        std::fs::create_dir_all(directory.join("objects")).expect("a directory");
        std::fs::write(directory.join("config"), "").expect("a file");
        for name in ["HEAD", "refs/x"] {
            let params = json!({"path": directory.join(name), "content": "ref: refs/heads/x\n"});
            wanted.push(("fs/write_text_file", params));
        }
    }
    let answers = wanted.len();
    let request = |(id, (method, mut params)): (usize, (&str, serde_json::Value))| {
        params["sessionId"] = json!("s");
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    };
    let requests = wanted.into_iter().enumerate().map(request).collect();
    let (link, far) = memory::pair(&narrows_link::Options::default());
    let agent = tokio::spawn(asking(far, requests, answers));
    let driven = stage.open_on(link, tokio::spawn(async {})).await;
    driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
    for directory in &directories {
        let is_repository = directory.join("HEAD").exists() && directory.join("refs").exists();
        assert!(!is_repository, "{}", directory.display());
    }
    driven.leave().await;
    let denied = agent.await.expect("no panic").into_iter().flatten().count();
    assert_eq!(denied, directories.len());
}
