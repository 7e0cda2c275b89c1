//! Several clients on one session.

use insta::assert_snapshot;

use super::*;

const PERMISSION: &str = r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"a","options":[]}}"#;
const YES: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"outcome":{"outcome":"selected","optionId":"yes"}}}"#;

/// A bus of the network with one worker for all.
fn scene() -> Scene {
    scene_with(Limits::default(), Share::All)
}

fn scene_with(limits: Limits, share: Share) -> Scene {
    let listen = vec![Listen::parse("http://127.0.0.1:1/acp").unwrap()];
    let mut scene = Scene::new(&Config { listen, limits, ..config(vec![pool(share)]) });
    scene.up(0);
    if share == Share::All {
        scene.answer(0, 1, &able());
    }
    scene.sight.seen.clear();
    scene
}

impl Scene {
    /// Two clients, of whom the first has session `a` and the second watches it.
    fn watched(&mut self) -> (u32, u32) {
        let (one, two) = (self.open(), self.open());
        self.session(one, 0, "a");
        let key = self.core.clients.key_at(two);
        if let Some(state) = key.and_then(|key| self.core.clients.get_mut(key)) {
            state.initialize = Some(b"{}".as_slice().into());
        }
        self.ask(two, 1, "session/resume", &json!({"sessionId": "a"}));
        self.sight.seen.clear();
        (one, two)
    }
}

#[test]
fn whoever_comes_later_is_told_what_was_said_and_then_hears_it_too() {
    let mut scene = scene();
    let (one, two) = (scene.open(), scene.open());
    scene.ask(one, 1, "session/new", &json!({"cwd": "/"}));
    scene.answer(0, 2, &json!({"sessionId": "a", "modes": {"currentModeId": "m"}}));
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.update(0, "a", "one");
    scene.said(0, r#"{"jsonrpc":"2.0","method":"session/update","params":{"_meta":{"x":1,"narrows":{"y":2}},"sessionId":"a","update":"two"}}"#);
    scene.seen();
    scene.ask(two, 7, "session/load", &json!({"sessionId": "a", "cwd": "/", "mcpServers": []}));
    scene.update(0, "a", "three");
    scene.answer(0, 3, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(scene.seen(), @r#"
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"one","_meta":{"narrows":{"replay":true}}}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"update":"two","sessionId":"a","_meta":{"x":1,"narrows":{"y":2,"replay":true}}}}
    c1 < {"jsonrpc":"2.0","id":7,"result":{"modes":{"currentModeId":"m"},"_meta":{"narrows":{"replay":{"complete":true}}}}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"three"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"three"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}
    "#);
}

#[test]
fn where_clients_come_from_this_machine_alone_a_session_is_one_clients() {
    let mut scene = Scene::shared(1);
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.ask(two, 7, "session/load", &json!({"sessionId": "a"}));
    assert!(scene.seen().contains("session_in_use"));
}

#[test]
fn the_first_answer_wins_and_the_others_are_told() {
    let mut scene = scene();
    let (one, two) = scene.watched();
    let three = scene.open();
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.said(0, PERMISSION);
    // Who comes now is asked, too.
    scene.ask(three, 1, "session/load", &json!({"sessionId": "a"}));
    scene.line(two, YES);
    scene.line(one, YES);
    scene.line(three, YES);
    scene.said(0, r#"{"jsonrpc":"2.0","id":"f","method":"fs/read_text_file","params":{"sessionId":"a"}}"#);
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c0 < {"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"a","options":[]}}
    c1 < {"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"a","options":[]}}
    c2 < {"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":{"sessionId":"a","options":[]}}
    c2 < {"jsonrpc":"2.0","id":1,"result":{"_meta":{"narrows":{"replay":{"complete":true}}}}}
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    c2 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"selected","optionId":"yes"}}}
    c0 < {"jsonrpc":"2.0","id":2,"method":"fs/read_text_file","params":{"sessionId":"a"}}
    "#);
}

#[test]
fn a_question_ends_for_all_when_its_agent_goes_or_gives_up() {
    let mut scene = scene();
    let (one, two) = scene.watched();
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.said(0, PERMISSION);
    scene.said(0, &PERMISSION.replace("\"p\"", "\"q\""));
    scene.seen();
    scene.said(0, r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"p"}}"#);
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    c1 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    "#);
    scene.line(two, &YES.replace("\"id\":1", "\"id\":2"));
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":2}}
    w0 < {"jsonrpc":"2.0","id":"q","result":{"outcome":{"outcome":"selected","optionId":"yes"}}}
    "#);
    scene.said(0, &PERMISSION.replace("\"p\"", "\"r\""));
    scene.seen();
    scene.dies(0);
    let seen = scene.seen();
    assert_eq!(
        seen.matches("c1 < {\"jsonrpc\":\"2.0\",\"method\":\"$/cancel_request\"").count(),
        1,
        "{seen}"
    );
}

#[test]
fn who_watches_is_told_once_that_nobody_wants_an_answer() {
    let mut scene = scene();
    let (one, two) = scene.watched();
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.said(0, r#"{"jsonrpc":"2.0","id":"f","method":"fs/read_text_file","params":{"sessionId":"a"}}"#);
    scene.said(0, PERMISSION);
    scene.seen();
    // Some name the session too. The number of each is another.
    scene.said(
        0,
        r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"sessionId":"a","requestId":"p"}}"#,
    );
    scene.line(one, r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32800,"message":"cancelled"}}"#);
    scene.line(two, YES);
    // Who comes now hears nothing of it.
    let three = scene.open();
    scene.ask(three, 1, "session/resume", &json!({"sessionId": "a"}));
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"sessionId":"a","requestId":2}}
    c1 < {"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}
    w0 < {"jsonrpc":"2.0","id":"p","error":{"code":-32800,"message":"cancelled"}}
    c2 < {"jsonrpc":"2.0","id":1,"result":{"_meta":{"narrows":{"replay":{"complete":true}}}}}
    "#);
    // What is about no request of anybody's is for all.
    scene.said(0, r#"{"jsonrpc":"2.0","method":"_x","params":{"sessionId":"a","requestId":"p"}}"#);
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","method":"_x","params":{"sessionId":"a","requestId":"p"}}
    c1 < {"jsonrpc":"2.0","method":"_x","params":{"sessionId":"a","requestId":"p"}}
    c2 < {"jsonrpc":"2.0","method":"_x","params":{"sessionId":"a","requestId":"p"}}
    "#);
}

#[test]
fn whoever_prompts_controls_and_nobody_prompts_into_anothers_turn() {
    let mut scene = scene();
    let (one, two) = scene.watched();
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.ask(two, 2, "session/prompt", &prompt("a"));
    scene.note(two, "session/cancel", &json!({"sessionId": "a"}));
    scene.answer(0, 3, &json!({"stopReason": "cancelled"}));
    scene.ask(two, 3, "session/prompt", &prompt("a"));
    scene.said(0, r#"{"jsonrpc":"2.0","id":"f","method":"fs/read_text_file","params":{"sessionId":"a"}}"#);
    scene.update(0, "a", "both hear it");
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c1 < {"jsonrpc":"2.0","id":2,"error":{"code":-32602,"message":"the session is in use by another connection","data":{"condition":"session_in_use","retryable":true,"effects":"none"}}}
    w0 < {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"a"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"cancelled"}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c1 < {"jsonrpc":"2.0","id":1,"method":"fs/read_text_file","params":{"sessionId":"a"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"both hear it"}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"both hear it"}}
    "#);
    // The one that controlled it watches, and may leave.
    scene.ask(one, 4, "session/close", &json!({"sessionId": "a"}));
    scene.update(0, "a", "one hears it");
    assert_snapshot!(scene.seen(), @r#"
    c0 < {"jsonrpc":"2.0","id":4,"result":{}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"one hears it"}}
    "#);
}

#[test]
fn a_turn_goes_on_while_somebody_watches() {
    let mut scene = scene();
    let (one, two) = scene.watched();
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.said(0, PERMISSION);
    scene.seen();
    scene.leaves(one);
    scene.pass(60.0);
    assert_eq!(scene.seen(), "");
    scene.line(two, YES);
    scene.update(0, "a", "still there");
    let before = scene.seen();
    scene.ask(two, 9, "session/prompt", &prompt("a"));
    assert!(scene.seen().contains("session_in_use"), "it is not the turn of who controls it now");
    scene.answer(0, 3, &json!({"stopReason": "end_turn"}));
    scene.ask(two, 2, "session/prompt", &prompt("a"));
    assert_snapshot!(before + "\n" + &scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":"p","result":{"outcome":{"outcome":"selected","optionId":"yes"}}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"still there"}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    "#);
    // The last one goes, and it is as ever.
    scene.leaves(two);
    scene.pass(0.1);
    assert!(scene.seen().contains("session/cancel"));
}

#[test]
fn who_watches_can_cancel_a_turn_by_a_request_too() {
    let mut scene = scene();
    let (one, two) = scene.watched();
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.seen();
    scene.ask(two, 2, "session/cancel", &json!({"sessionId": "a"}));
    assert_snapshot!(scene.seen(), @r#"w0 < {"jsonrpc":"2.0","id":4,"method":"session/cancel","params":{"sessionId":"a"}}"#);
}

#[test]
fn an_observer_that_goes_is_asked_nothing_and_costs_nothing() {
    let mut scene = scene();
    let (one, two) = scene.watched();
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.said(0, PERMISSION);
    scene.leaves(two);
    scene.seen();
    // Whoever has its place is no observer.
    let next = scene.open();
    assert_eq!(next, two);
    scene.update(0, "a", "x");
    scene.line(next, YES);
    scene.line(one, YES);
    let seen = scene.seen();
    assert!(!seen.contains(&format!("c{next} <")), "{seen}");
    assert_eq!(seen.matches("w0 < ").count(), 1, "{seen}");
}

#[test]
fn the_beginning_of_a_long_session_is_gone_and_that_is_told() {
    let mut scene = scene_with(Limits { replay_bytes: 300, ..Limits::default() }, Share::All);
    let (one, two) = (scene.open(), scene.open());
    scene.ask(
        two,
        0,
        "initialize",
        &json!({"protocolVersion": 1, "clientCapabilities": {"session": {"notices": {}}}}),
    );
    scene.session(one, 0, "a");
    for number in 0..10 {
        scene.update(0, "a", &format!("{number}"));
    }
    scene.seen();
    scene.ask(two, 7, "session/resume", &json!({"sessionId": "a"}));
    assert_snapshot!(scene.seen(), @r#"
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":{"sessionUpdate":"notice","severity":"info","title":"The beginning is missing","description":"What follows is only the end of what was said in this session."},"_meta":{"narrows":{"replay":true}}}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"7","_meta":{"narrows":{"replay":true}}}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"8","_meta":{"narrows":{"replay":true}}}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"9","_meta":{"narrows":{"replay":true}}}}
    c1 < {"jsonrpc":"2.0","id":7,"result":{"_meta":{"narrows":{"replay":{"complete":false}}}}}
    "#);
    assert!(scene.core.watch_bytes <= 300);
    scene.ask(one, 3, "session/close", &json!({"sessionId": "a"}));
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    assert_eq!(scene.core.watch_bytes, 0);
    scene.seen();
    scene.ask(two, 8, "session/prompt", &prompt("a"));
    assert!(scene.seen().contains("-32002"));
}

#[test]
fn a_history_is_for_whom_it_was_asked_for() {
    let mut scene = scene();
    let (one, two) = scene.watched();
    scene.update(0, "a", "said once");
    scene.seen();
    scene.ask(one, 5, "session/load", &json!({"sessionId": "a"}));
    scene.update(0, "a", "said once");
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({}));
    scene.update(0, "a", "new");
    let seen = scene.seen();
    assert_eq!(seen.matches("said once").count(), 1, "{seen}");
    assert_eq!(seen.matches("new").count(), 2, "{seen}");
    scene.ask(two, 6, "session/resume", &json!({"sessionId": "a"}));
    let seen = scene.seen();
    assert_eq!(seen.matches("said once").count(), 1, "{seen}");
    assert!(seen.contains("\"complete\":true"), "{seen}");
}

#[test]
fn others_do_not_watch() {
    let mut scene = scene();
    let (_, two) = scene.watched();
    scene.leaves(two);
    let from = ClientInfo::new(0, "token:x");
    let other = scene.core.client_open(scene.now, from, &mut scene.sight).unwrap().0;
    scene.initialized(other);
    scene.seen();
    for method in ["session/load", "session/resume", "session/prompt"] {
        scene.ask(other, 7, method, &prompt("a"));
        assert!(scene.seen().contains("-32002"), "{method}");
    }
}

#[test]
fn a_worker_of_ones_own_can_be_watched() {
    let mut scene = scene_with(Limits::default(), Share::Connection);
    let (one, two) = scene.watched();
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.update(0, "a", "x");
    let seen = scene.seen();
    assert!(seen.contains("c0 <") && seen.contains("c1 <"), "{seen}");
    scene.leaves(one);
    scene.pass(1.0);
    scene.update(0, "a", "y");
    assert!(scene.seen().contains(&format!("c{two} <")));
}

#[test]
fn the_history_of_an_idle_session_is_told_by_its_agent_to_who_asks() {
    let mut scene = scene();
    let (one, two) = (scene.open(), scene.open());
    scene.session(one, 0, "a");
    scene.ask(
        two,
        7,
        "session/load",
        &json!({"sessionId": "a", "cwd": "/other", "mcpServers": [{"type": "acp", "name": "x", "id": "1"}]}),
    );
    scene.update(0, "a", "history");
    // Whoever prompts meanwhile waits for its end.
    scene.ask(one, 2, "session/prompt", &prompt("a"));
    scene.update(0, "a", "more history");
    let id = scene.last_id(0);
    scene.answer(0, id, &json!({"modes": null}));
    scene.update(0, "a", "news");
    scene.answer(0, id + 1, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(scene.seen(), @r#"
    w0 < {"jsonrpc":"2.0","id":3,"method":"session/load","params":{"cwd":"/","sessionId":"a","mcpServers":[]}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"history"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"more history"}}
    w0 < {"jsonrpc":"2.0","id":4,"method":"session/prompt","params":{"sessionId":"a","prompt":[]}}
    c1 < {"jsonrpc":"2.0","id":7,"result":{"modes":null}}
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"news"}}
    c1 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"a","update":"news"}}
    c0 < {"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}
    "#);
}

#[test]
fn a_history_that_is_not_told_to_its_end_leaves_nothing_behind() {
    let begin = |share| {
        let mut scene = scene_with(Limits::default(), share);
        let (one, two) = (scene.open(), scene.open());
        scene.session(one, 0, "a");
        scene.ask(two, 7, "session/load", &json!({"sessionId": "a"}));
        scene.ask(one, 2, "session/prompt", &prompt("a"));
        let id = scene.last_id(0);
        scene.seen();
        (scene, one, two, id)
    };
    // The one who asked goes: nobody hears the rest, and whoever has its place is nobody.
    let (mut scene, _, two, id) = begin(Share::All);
    scene.leaves(two);
    scene.open();
    scene.update(0, "a", "history");
    assert_eq!(scene.seen(), "");
    scene.answer(0, id, &json!({}));
    scene.update(0, "a", "news");
    let seen = scene.seen();
    assert!(seen.starts_with("w0 < ") && seen.contains("session/prompt"), "{seen}");
    assert_eq!(seen.matches("news").count(), 1, "{seen}");
    // The agent does not want to: the one who asked does not watch.
    let (mut scene, _, two, id) = begin(Share::All);
    scene.fail(0, id, -32603);
    scene.update(0, "a", "news");
    let seen = scene.seen();
    assert_eq!(seen.matches(&format!("c{two} <")).count(), 1, "{seen}");
    assert!(seen.contains("session/prompt"), "{seen}");
    // The agent goes: the session is taken up elsewhere for whom it waits.
    let (mut scene, _, two, _) = begin(Share::All);
    scene.dies(0);
    let seen = scene.seen();
    assert!(seen.contains(&format!("c{two} < ")) && seen.contains("-32010"), "{seen}");
    scene.pass(1.0);
    scene.up(0);
    scene.answer(0, 1, &able());
    let id = scene.last_id(0);
    let seen = scene.seen();
    assert!(seen.contains("session/resume"), "{seen}");
    scene.answer(0, id, &json!({}));
    assert!(scene.seen().contains("session/prompt"));
    // It is closed by who controls it, after that.
    let (mut scene, one, _, id) = begin(Share::All);
    scene.ask(one, 3, "session/close", &json!({"sessionId": "a"}));
    scene.answer(0, id, &json!({}));
    let seen = scene.seen();
    assert!(seen.contains("session/prompt") && seen.contains("session/close"), "{seen}");
}
