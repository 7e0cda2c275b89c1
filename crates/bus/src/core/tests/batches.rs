//! Arrays that are answered late or have to wait, and what happens beside them.

use insta::assert_snapshot;

use super::*;

#[test]
fn a_notice_about_a_session_follows_the_array_that_names_it() {
    let mut scene = Scene::shared(2);
    let client = scene.open();
    let notices = json!({"protocolVersion": 1, "clientCapabilities": {"session": {"notices": {}}}});
    scene.ask(client, 0, "initialize", &notices);
    scene.session(client, 0, "a");
    scene.line(client, r#"[{"jsonrpc":"2.0","id":1,"method":"session/new","params":{}},{"jsonrpc":"2.0","id":2,"method":"session/prompt","params":{"sessionId":"a"}}]"#);
    let created = scene.last_id(1);
    scene.answer(1, created, &json!({"sessionId": "b"}));
    let turn = scene.last_id(0);
    scene.seen();
    scene.dies(1);
    let seen = scene.seen();
    assert!(!seen.contains("c0 < "), "{seen}");
    scene.answer(0, turn, &json!({"stopReason": "end_turn"}));
    assert_snapshot!(scene.seen(), @r#"
    c0 < [{"jsonrpc":"2.0","id":1,"result":{"sessionId":"b"}},{"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}]
    c0 < {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"b","update":{"sessionUpdate":"notice","severity":"warning","title":"The agent's process has ended","description":"killed by SIGKILL. The session is taken up again with the next prompt."}}}
    "#);
    // A session whose name the client knows waits for no array.
    scene.line(client, r#"[{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a"}}]"#);
    scene.seen();
    scene.dies(0);
    let seen = scene.seen();
    let (notice, array) = (seen.find("\"notice\""), seen.find("c0 < [{"));
    assert!(notice.is_some() && notice < array, "{seen}");
}
