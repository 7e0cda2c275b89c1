//! Permission requests with several subjects: the agent may mean any of them, so each is judged.

use narrows_acp::Version;
use narrows_client::RunRequest;
use narrows_policy::Access;

use crate::common::{Stage, all, payloads};

/// An agent of `version` reports the call `t` and sends a request with these members. Checks the kind of the
/// selected option.
async fn check(version: Version, access: Access, call: &str, members: &str, expected: &str) {
    let update = if version == Version::V1 { "tool_call" } else { "tool_call_update" };
    let script = format!(
        r#"
        [[turn]]
        steps = [
          {{ update = {{ sessionUpdate = "{update}", toolCallId = "t", title = "It", {call} }} }},
          {{ request = {{ method = "session/request_permission", params = {{
            sessionId = "{{session}}", title = "May I?", {members},
            options = [{{ optionId = "y", name = "Yes", kind = "allow_once" }}, {{ optionId = "n", name = "No", kind = "reject_once" }}] }} }} }},
        ]
        "#
    );
    let driven = Stage::new(version, access).open(&script).await;
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let resolved = payloads(&all(&mut run).await, "permission.resolved");
    assert_eq!(resolved[0]["optionKind"], expected, "{version} {call} {members}: {resolved:?}");
    driven.leave().await;
}

const READ: &str = r#"kind = "read", rawInput = { path = "a" }"#;
const RUN: &str = r#"kind = "execute", rawInput = { command = "rm -rf a" }"#;

#[tokio::test]
async fn a_command_does_not_hide_the_call_that_it_names() {
    let command = |line: &str| {
        format!(r#"subject = {{ type = "command", command = "{line}", cwd = "/", toolCallId = "t" }}"#)
    };
    for (call, line, expected) in [
        (READ, "ls", "allow_once"),
        (READ, "rm a", "reject_once"),
        (RUN, "ls", "reject_once"),
        (r#"kind = "read", rawInput = { path = ".env" }"#, "ls", "reject_once"),
        (r#"kind = "read", locations = [{ path = ".env" }]"#, "ls", "reject_once"),
        // The call shows nothing that could be judged separately.
        (r#"kind = "execute""#, "ls", "allow_once"),
    ] {
        check(Version::V2, Access::Low, call, &command(line), expected).await;
    }
}

#[tokio::test]
async fn a_call_of_one_version_does_not_hide_the_subject_of_the_other() {
    let (ls, rm) = (r#"{ command = "ls" }"#, r#"{ command = "rm a" }"#);
    let call = |id: &str, input: &str| {
        format!(r#"{{ toolCallId = "{id}", title = "It", kind = "execute", rawInput = {input} }}"#)
    };
    for version in [Version::V1, Version::V2] {
        for (first, second, expected) in
            [(ls, ls, "allow_once"), (ls, rm, "reject_once"), (rm, ls, "reject_once")]
        {
            let subject = format!(r#"{{ type = "tool_call", toolCall = {} }}"#, call("v", second));
            let members = format!("toolCall = {}, subject = {subject}", call("u", first));
            check(version, Access::Low, READ, &members, expected).await;
        }
        let subject =
            |kind: &str| format!(r#"{{ type = "{kind}", toolCall = {}, command = "rm a" }}"#, call("v", ls));
        for kind in ["tool_call", "command"] {
            check(version, Access::Low, READ, &format!("subject = {}", subject(kind)), "reject_once").await;
        }
        // The call was reported before the request.
        let members = format!(r#"toolCall = {}, toolCallId = "t""#, call("u", ls));
        check(version, Access::Low, RUN, &members, "reject_once").await;
        check(version, Access::Low, READ, &members, "allow_once").await;
    }
}

#[tokio::test]
async fn all_content_of_a_call_is_judged() {
    for (call, expected) in [
        (r#"kind = "read", rawInput = { path = "a", command = "rm a" }"#, "reject_once"),
        (r#"kind = "read", rawInput = { path = "a", more = { argv = ["rm", "a"] } }"#, "reject_once"),
        (r#"kind = "execute", rawInput = { command = "ls", path = ".env" }"#, "reject_once"),
        (r#"kind = "read", rawInput = { path = "a", new_text = "x" }"#, "reject_once"),
        // The location has no path, and no user can be asked about it.
        (
            r#"kind = "read", rawInput = { path = "a" }, locations = [{ path = "a" }, { file = ".env" }]"#,
            "reject_once",
        ),
        (r#"kind = "read", rawInput = { path = "a" }, locations = [{ path = "a" }]"#, "allow_once"),
    ] {
        let members = format!(r#"toolCall = {{ toolCallId = "u", title = "It", {call} }}"#);
        check(Version::V1, Access::Low, READ, &members, expected).await;
    }
}

#[tokio::test]
async fn members_beside_a_command_or_call_are_judged() {
    let command = |more: &str| {
        format!(r#"subject = {{ type = "command", command = "ls", cwd = "/", toolCallId = "t", {more} }}"#)
    };
    let call = |more: &str| {
        format!(r#"{{ toolCallId = "u", title = "It", kind = "read", rawInput = {{ path = "a" }}, {more} }}"#)
    };
    for (more, expected) in [
        (r#"terminalId = "x""#, "allow_once"),
        (r#"_meta = { command = "rm a" }"#, "allow_once"),
        (r#"args = ["-l"]"#, "allow_once"),
        (r#"args = ["; rm a"], options = "x""#, "reject_once"),
        (r#"args = ["-l"], argv = ["rm", "a"]"#, "reject_once"),
        (r#"Command = "rm a""#, "reject_once"),
        (r#"more = { script = "rm a" }"#, "reject_once"),
        (r#"env = { LD_PRELOAD = "/w/a.so" }"#, "reject_once"),
        (r#"path = ".env""#, "reject_once"),
        (r#"stdin = "rm a""#, "reject_once"),
    ] {
        check(Version::V2, Access::Low, READ, &command(more), expected).await;
    }
    for (more, expected) in [
        ("timestamp = 5", "allow_once"),
        (r#"argv = ["rm", "a"]"#, "reject_once"),
        (r#"RawInput = { command = "rm a" }"#, "reject_once"),
        (r#"raw_input = { command = "rm a" }"#, "reject_once"),
        (r#"file = ".env""#, "reject_once"),
    ] {
        let beside = format!(r#"subject = {{ type = "tool_call", toolCall = {}, {more} }}"#, call(""));
        check(Version::V2, Access::Low, READ, &beside.replace(", }", " }"), expected).await;
        let inside = format!(r#"subject = {{ type = "tool_call", toolCall = {} }}"#, call(more));
        check(Version::V2, Access::Low, READ, &inside, expected).await;
        let outside = format!("toolCall = {}, {more}", call(more));
        check(Version::V1, Access::Low, READ, &outside, expected).await;
    }
    let other =
        format!(r#"toolCall = {}, ToolCall = {{ rawInput = {{ command = "rm a" }} }}"#, call("x = 1"));
    check(Version::V1, Access::Low, READ, &other, "reject_once").await;
}
