//! Tests of sessions of other identities: they are indistinguishable from missing ones.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use serde_json::json;

use super::Fixture;
use crate::identity::SessionOwners;

/// Owners of sessions in memory. Storing an owner can be made to fail.
#[derive(Debug, Default)]
pub(super) struct TestOwners {
    entries: Mutex<BTreeSet<(String, String)>>,
    full: bool,
}

impl TestOwners {
    pub(super) fn of(owner: &str, session: &str) -> Self {
        Self { entries: Mutex::new([(owner.to_owned(), session.to_owned())].into()), full: false }
    }
}

impl SessionOwners for TestOwners {
    /// A session name with two owners belongs to neither, as in a server.
    fn is_owner(&self, owner: &str, session: &str) -> bool {
        let entries = lock(&self.entries);
        let mut owners = entries.iter().filter(|(_, other)| other == session);
        owners.next().is_some_and(|(one, _)| one == owner) && owners.next().is_none()
    }

    fn has_owner(&self, session: &str) -> bool {
        let entries = lock(&self.entries);
        entries.iter().any(|(_, other)| other == session)
    }

    fn set_owner(&self, owner: &str, session: &str) -> io::Result<()> {
        if self.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut entries = lock(&self.entries);
        entries.insert((owner.to_owned(), session.to_owned()));
        Ok(())
    }
}

/// Returns a gate for `user:ada`, where another identity owns a session.
fn new_fixture(owners: &Arc<TestOwners>) -> Fixture {
    lock(&owners.entries).insert(("user:eve".into(), "hers".into()));
    let mut fixture = Fixture::new();
    fixture.gate = fixture.gate.with_owners(Arc::clone(owners) as Arc<dyn SessionOwners>);
    fixture
}

#[test]
fn a_foreign_session_is_indistinguishable_from_a_missing_one() {
    let owners = Arc::new(TestOwners::default());
    let mut fixture = new_fixture(&owners);
    let answers = |fixture: &mut Fixture, name: &str| {
        for method in [
            "session/load",
            "session/resume",
            "session/fork",
            "session/prompt",
            "session/close",
            "session/delete",
            "session/set_mode",
            "_x/anything",
        ] {
            fixture.client_requests(
                7,
                method,
                &json!({"sessionId": name, "cwd": "/w", "mcpServers": [], "prompt": []}),
            );
        }
        let cancel = json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": name}});
        fixture.send_client(&cancel);
        fixture.take_seen().replace(name, "NAME")
    };
    let hers = answers(&mut fixture, "hers");
    assert_eq!(hers, answers(&mut fixture, "nowhere"));
    assert!(!hers.contains("a < "), "{hers}");
    assert_eq!(
        (hers.matches("log session.refused").count(), hers.matches("-32002").count()),
        (8, 8),
        "{hers}"
    );
}

#[test]
fn a_session_belongs_to_its_creator_on_every_connection() {
    let owners = Arc::new(TestOwners::default());
    let mut first = new_fixture(&owners);
    first.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    first.agent_answers(1, &json!({"sessionId": "s"}));
    first.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    let seen = first.take_seen();
    assert!(
        seen.lines().last().is_some_and(|line| line.starts_with("a < ") && line.contains("prompt")),
        "{seen}"
    );
    let mut second = new_fixture(&owners);
    second.client_requests(1, "session/load", &json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}));
    second.client_requests(
        2,
        "session/load",
        &json!({"sessionId": "s\u{200b}", "cwd": "/w", "mcpServers": []}),
    );
    let seen = second.take_seen();
    assert!(seen.starts_with("a < ") && seen.contains("log session.refused"), "{seen}");
    assert_eq!(seen.matches("a < ").count(), 1, "{seen}");
    second.client_requests(3, "session/list", &json!({}));
    let listed =
        json!([{"sessionId": "hers"}, {"sessionId": "s", "title": "t"}, {"sessionId": "old"}, {}, 7]);
    second.agent_answers(3, &json!({"sessions": listed, "nextCursor": "c"}));
    let seen = second.take_seen();
    let told = seen.lines().last().and_then(|line| line.strip_prefix("c < ")).expect("an answer");
    let told: serde_json::Value = serde_json::from_str(told).expect("JSON");
    let expected = json!({"sessions": [{"sessionId": "s", "title": "t"}], "nextCursor": "page-1"});
    assert_eq!(told["result"], expected);
    second.client_requests(4, "session/list", &json!({}));
    second.agent_answers(4, &json!({"sessions": {"hers": {}}}));
    assert!(!second.take_seen().contains("hers"), "a result that is not a list shows no session");
}

#[test]
fn only_issued_cursors_continue_a_list() {
    let mut fixture = new_fixture(&Arc::new(TestOwners::default()));
    let cursor = "0000019a00000000hers";
    fixture.client_requests(1, "session/list", &json!({}));
    fixture.agent_answers(1, &json!({"sessions": [], "nextCursor": cursor}));
    let seen = fixture.take_seen();
    assert!(!seen.contains("hers") && seen.contains(r#""nextCursor":"page-1""#), "{seen}");
    for unknown in [json!(cursor), json!("page-2"), json!("")] {
        fixture.client_requests(2, "session/list", &json!({"cursor": unknown}));
        let seen = fixture.take_seen();
        assert!(seen.contains("unknown_cursor") && !seen.contains("a < "), "{unknown} {seen}");
    }
    fixture.client_requests(3, "session/list", &json!({"cursor": "page-1", "cwd": "/w"}));
    let expected = json!({"jsonrpc": "2.0", "id": 3, "method": "session/list", "params": {"cursor": cursor, "cwd": "/w"}});
    assert_eq!(fixture.take_seen(), format!("a < {expected}"));
    fixture.agent_answers(3, &json!({"sessions": [], "nextCursor": null}));
    assert!(fixture.take_seen().contains(r#""result":{"sessions":[]}"#));
    // The number of issued cursors is bounded.
    for id in 10..200 {
        fixture.client_requests(id, "session/list", &json!({"cursor": null}));
        fixture.agent_answers(id, &json!({"sessions": [], "nextCursor": cursor}));
    }
    fixture.take_seen();
    fixture.client_requests(4, "session/list", &json!({"cursor": "page-1"}));
    assert!(fixture.take_seen().contains("unknown_cursor"));
}

#[test]
fn messages_of_the_agent_do_not_assign_sessions() {
    let mut fixture = new_fixture(&Arc::new(TestOwners::default()));
    let params = json!({"sessionId": "hers", "update": {"sessionUpdate": "plan", "entries": []}});
    fixture.send_agent(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    fixture.take_seen();
    fixture.client_requests(1, "session/prompt", &json!({"sessionId": "hers", "prompt": []}));
    assert!(!fixture.take_seen().contains("a < "));
}

/// An agent with one process per client may number its sessions, so that sessions of two users have the same
/// name.
#[test]
fn sessions_of_two_users_with_equal_names_are_separate() {
    let owners = Arc::new(TestOwners::default());
    let users = ["user:ada", "user:bob"];
    let mut scenes = users.map(|user| {
        let mut fixture = new_fixture(&owners);
        user.clone_into(&mut fixture.gate.principal.id);
        fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        fixture.agent_answers(1, &json!({"sessionId": "1"}));
        fixture.take_seen();
        fixture
    });
    // Each user continues with a separate agent, and every log line names its user.
    for (user, fixture) in users.iter().zip(&mut scenes) {
        fixture.client_requests(2, "session/prompt", &json!({"sessionId": "1", "prompt": []}));
        let seen = fixture.take_seen();
        assert!(seen.contains("a < ") && seen.contains("session/prompt"), "{user}: {seen}");
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": "Rm", "kind": "delete",
            "status": "pending", "rawInput": {}});
        let update = json!({"sessionId": "1", "update": call});
        fixture.send_agent(&json!({"jsonrpc": "2.0", "method": "session/update", "params": update}));
        fixture.client_requests(
            3,
            "session/load",
            &json!({"sessionId": "hers", "cwd": "/w", "mcpServers": []}),
        );
        fixture.client_requests(4, "session/close", &json!({"sessionId": "1"}));
        fixture.agent_answers(4, &json!({}));
        let events: Vec<_> = fixture.output.accepted.iter().chain(&fixture.output.events).collect();
        assert!(events.len() >= 6, "{user}: {events:?}");
        for event in events {
            let identity = event.facts.get("identity").map(|fact| fact.clone().into_value());
            assert_eq!(identity, Some(json!(user)), "{}", event.action);
        }
    }
    // On another connection the owner of the name is unclear, so neither user gets the session or sees it in
    // a list.
    for user in users {
        let mut fixture = new_fixture(&owners);
        user.clone_into(&mut fixture.gate.principal.id);
        for (id, method) in
            [(1, "session/load"), (2, "session/resume"), (3, "session/prompt"), (4, "session/delete")]
        {
            fixture.client_requests(
                id,
                method,
                &json!({"sessionId": "1", "cwd": "/w", "mcpServers": [], "prompt": []}),
            );
            let seen = fixture.take_seen();
            assert!(seen.contains("-32002") && !seen.contains("a < "), "{user}: {seen}");
        }
        fixture.client_requests(5, "session/list", &json!({}));
        fixture.agent_answers(5, &json!({"sessions": [{"sessionId": "1", "title": "t"}]}));
        assert!(fixture.take_seen().contains(r#""sessions":[]"#), "{user}");
    }
}

#[test]
fn a_session_whose_owner_cannot_be_stored_is_closed() {
    let mut fixture = new_fixture(&Arc::new(TestOwners::default()));
    fixture.gate = fixture.gate.with_owners(Arc::new(TestOwners { full: true, ..TestOwners::default() }));
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    fixture.agent_answers(1, &json!({"sessionId": "s"}));
    assert!(fixture.take_seen().contains("-32017"));
    fixture.client_requests(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert!(!fixture.take_seen().contains("a < "));
}

#[test]
fn a_notification_about_a_foreign_session_is_dropped_and_recorded() {
    for method in ["session/cancel", "_x/y", "_narrows/x", "mcp/message"] {
        let mut fixture = new_fixture(&Arc::new(TestOwners::default()));
        fixture.send_client(&json!({"jsonrpc": "2.0", "method": method, "params": {"sessionId": "hers"}}));
        assert_eq!(fixture.take_seen(), "log method.refused deny code=\"unknown_session\"", "{method}");
    }
}

#[test]
fn a_session_with_a_long_name_is_closed() {
    let owners = Arc::new(TestOwners::default());
    let mut fixture = new_fixture(&owners);
    fixture.client_requests(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
    fixture.take_seen();
    fixture.agent_answers(1, &json!({"sessionId": "x".repeat(1_025)}));
    let seen = fixture.take_seen();
    assert!(seen.contains("-32603") && seen.contains("too long"), "{}", &seen[..seen.len().min(2_000)]);
    let entries = lock(&owners.entries);
    assert_eq!(entries.len(), 1, "only hers");
}
