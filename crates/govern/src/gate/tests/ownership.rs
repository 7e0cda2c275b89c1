//! Sessions of others: as invisible as those that there are not.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use narrows_base::sync::lock;
use serde_json::json;

use super::Scene;
use crate::identity::SessionOwners;

/// Who has made what, and whether there is room for more.
#[derive(Debug, Default)]
pub(super) struct Book {
    entries: Mutex<BTreeSet<(String, String)>>,
    full: bool,
}

impl Book {
    /// One in which this identity has made this session.
    pub(super) fn of(owner: &str, session: &str) -> Self {
        Self { entries: Mutex::new([(owner.to_owned(), session.to_owned())].into()), full: false }
    }
}

impl SessionOwners for Book {
    /// As where a gate is served: a name that two identities have is nobody's.
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

/// A gate for `user:ada` beside a session of somebody else's.
fn scene(book: &Arc<Book>) -> Scene {
    lock(&book.entries).insert(("user:eve".into(), "hers".into()));
    let mut scene = Scene::new();
    scene.gate = scene.gate.with_owners(Arc::clone(book) as Arc<dyn SessionOwners>);
    scene
}

#[test]
fn a_session_of_somebody_else_is_as_unknown_as_one_that_there_is_not() {
    let book = Arc::new(Book::default());
    let mut scene = scene(&book);
    let answers = |scene: &mut Scene, name: &str| {
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
            scene.ask(7, method, &json!({"sessionId": name, "cwd": "/w", "mcpServers": [], "prompt": []}));
        }
        let cancel = json!({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": name}});
        scene.client(&cancel);
        scene.seen().replace(name, "NAME")
    };
    let hers = answers(&mut scene, "hers");
    assert_eq!(hers, answers(&mut scene, "nowhere"));
    assert!(!hers.contains("a < "), "{hers}");
    assert_eq!(
        (hers.matches("log session.refused").count(), hers.matches("-32002").count()),
        (8, 8),
        "{hers}"
    );
}

#[test]
fn a_session_is_its_makers_also_on_another_connection() {
    let book = Arc::new(Book::default());
    let mut first = scene(&book);
    first.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    first.answer(1, &json!({"sessionId": "s"}));
    first.ask(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    let seen = first.seen();
    assert!(
        seen.lines().last().is_some_and(|line| line.starts_with("a < ") && line.contains("prompt")),
        "{seen}"
    );
    let mut second = scene(&book);
    second.ask(1, "session/load", &json!({"sessionId": "s", "cwd": "/w", "mcpServers": []}));
    second.ask(2, "session/load", &json!({"sessionId": "s\u{200b}", "cwd": "/w", "mcpServers": []}));
    let seen = second.seen();
    assert!(seen.starts_with("a < ") && seen.contains("log session.refused"), "{seen}");
    assert_eq!(seen.matches("a < ").count(), 1, "{seen}");
    second.ask(3, "session/list", &json!({}));
    let listed =
        json!([{"sessionId": "hers"}, {"sessionId": "s", "title": "t"}, {"sessionId": "old"}, {}, 7]);
    second.answer(3, &json!({"sessions": listed, "nextCursor": "c"}));
    let seen = second.seen();
    let told = seen.lines().last().and_then(|line| line.strip_prefix("c < ")).expect("an answer");
    let told: serde_json::Value = serde_json::from_str(told).expect("JSON");
    let expected = json!({"sessions": [{"sessionId": "s", "title": "t"}], "nextCursor": "page-1"});
    assert_eq!(told["result"], expected);
    second.ask(4, "session/list", &json!({}));
    second.answer(4, &json!({"sessions": {"hers": {}}}));
    assert!(!second.seen().contains("hers"), "what is no list is no list of theirs");
}

#[test]
fn a_list_goes_on_only_where_the_client_was_told_that_it_does() {
    let mut scene = scene(&Arc::new(Book::default()));
    let cursor = "0000019a00000000hers";
    scene.ask(1, "session/list", &json!({}));
    scene.answer(1, &json!({"sessions": [], "nextCursor": cursor}));
    let seen = scene.seen();
    assert!(!seen.contains("hers") && seen.contains(r#""nextCursor":"page-1""#), "{seen}");
    for unknown in [json!(cursor), json!("page-2"), json!("")] {
        scene.ask(2, "session/list", &json!({"cursor": unknown}));
        let seen = scene.seen();
        assert!(seen.contains("unknown_cursor") && !seen.contains("a < "), "{unknown} {seen}");
    }
    scene.ask(3, "session/list", &json!({"cursor": "page-1", "cwd": "/w"}));
    let expected = json!({"jsonrpc": "2.0", "id": 3, "method": "session/list", "params": {"cursor": cursor, "cwd": "/w"}});
    assert_eq!(scene.seen(), format!("a < {expected}"));
    scene.answer(3, &json!({"sessions": [], "nextCursor": null}));
    assert!(scene.seen().contains(r#""result":{"sessions":[]}"#));
    // Those that are handed out have a bound.
    for id in 10..200 {
        scene.ask(id, "session/list", &json!({"cursor": null}));
        scene.answer(id, &json!({"sessions": [], "nextCursor": cursor}));
    }
    scene.seen();
    scene.ask(4, "session/list", &json!({"cursor": "page-1"}));
    assert!(scene.seen().contains("unknown_cursor"));
}

#[test]
fn what_the_agent_says_about_a_session_makes_it_nobodys() {
    let mut scene = scene(&Arc::new(Book::default()));
    let params = json!({"sessionId": "hers", "update": {"sessionUpdate": "plan", "entries": []}});
    scene.agent(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    scene.seen();
    scene.ask(1, "session/prompt", &json!({"sessionId": "hers", "prompt": []}));
    assert!(!scene.seen().contains("a < "));
}

/// Agents that count their sessions, one process for each client, give the sessions of two users the same name.
#[test]
fn two_users_with_sessions_of_one_name_never_meet() {
    let book = Arc::new(Book::default());
    let users = ["user:ada", "user:bob"];
    let mut scenes = users.map(|user| {
        let mut scene = scene(&book);
        user.clone_into(&mut scene.gate.principal.id);
        scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
        scene.answer(1, &json!({"sessionId": "1"}));
        scene.seen();
        scene
    });
    // Each goes on with its own agent, and every line says for whom it was done.
    for (user, scene) in users.iter().zip(&mut scenes) {
        scene.ask(2, "session/prompt", &json!({"sessionId": "1", "prompt": []}));
        let seen = scene.seen();
        assert!(seen.contains("a < ") && seen.contains("session/prompt"), "{user}: {seen}");
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": "1", "name": "Rm", "kind": "delete",
            "status": "pending", "rawInput": {}});
        let update = json!({"sessionId": "1", "update": call});
        scene.agent(&json!({"jsonrpc": "2.0", "method": "session/update", "params": update}));
        scene.ask(3, "session/load", &json!({"sessionId": "hers", "cwd": "/w", "mcpServers": []}));
        scene.ask(4, "session/close", &json!({"sessionId": "1"}));
        scene.answer(4, &json!({}));
        let events: Vec<_> = scene.sight.accepted.iter().chain(&scene.sight.events).collect();
        assert!(events.len() >= 6, "{user}: {events:?}");
        for event in events {
            let identity = event.facts.get("identity").map(|fact| fact.clone().into_value());
            assert_eq!(identity, Some(json!(user)), "{}", event.action);
        }
    }
    // On another connection nobody can tell whose it is: neither has it, and neither is told of it.
    for user in users {
        let mut scene = scene(&book);
        user.clone_into(&mut scene.gate.principal.id);
        for (id, method) in
            [(1, "session/load"), (2, "session/resume"), (3, "session/prompt"), (4, "session/delete")]
        {
            scene.ask(id, method, &json!({"sessionId": "1", "cwd": "/w", "mcpServers": [], "prompt": []}));
            let seen = scene.seen();
            assert!(seen.contains("-32002") && !seen.contains("a < "), "{user}: {seen}");
        }
        scene.ask(5, "session/list", &json!({}));
        scene.answer(5, &json!({"sessions": [{"sessionId": "1", "title": "t"}]}));
        assert!(scene.seen().contains(r#""sessions":[]"#), "{user}");
    }
}

#[test]
fn a_session_whose_owner_cannot_be_kept_is_not_had() {
    let mut scene = scene(&Arc::new(Book::default()));
    scene.gate = scene.gate.with_owners(Arc::new(Book { full: true, ..Book::default() }));
    scene.ask(1, "session/new", &json!({"cwd": "/w", "mcpServers": []}));
    scene.answer(1, &json!({"sessionId": "s"}));
    assert!(scene.seen().contains("-32017"));
    scene.ask(2, "session/prompt", &json!({"sessionId": "s", "prompt": []}));
    assert!(!scene.seen().contains("a < "));
}

#[test]
fn a_notification_about_anothers_session_is_dropped_and_recorded() {
    for method in ["session/cancel", "_x/y", "_narrows/x", "mcp/message"] {
        let mut scene = scene(&Arc::new(Book::default()));
        scene.client(&json!({"jsonrpc": "2.0", "method": method, "params": {"sessionId": "hers"}}));
        assert_eq!(scene.seen(), "log method.refused deny code=\"unknown_session\"", "{method}");
    }
}

#[test]
fn a_session_with_a_long_name_is_not_kept() {
    let book = Arc::new(Book::default());
    let mut scene = scene(&book);
    scene.ask(1, "session/new", &json!({"cwd": "/w/a", "mcpServers": []}));
    scene.seen();
    scene.answer(1, &json!({"sessionId": "x".repeat(1_025)}));
    let seen = scene.seen();
    assert!(seen.contains("-32017") && seen.contains("too long"), "{}", &seen[..seen.len().min(2_000)]);
    let entries = lock(&book.entries);
    assert_eq!(entries.len(), 1, "only hers");
}
