//! Requests other than prompts: initialize, authentication, and sessions.

mod common;

use common::{Talk, able};
use narrows_fake::Ended;
use serde_json::{Value, json};

fn nothing(_: &Value) -> Option<Value> {
    None
}

#[tokio::test(start_paused = true)]
async fn connecting() {
    for version in [1, 2] {
        let mut talk = Talk::start("name = 'test'\nversion = '1.2.3'\nmodes = ['code', 'plan']");
        talk.initialize(version, able()).await;
        talk.new_session().await;
        insta::assert_snapshot!(format!("connect-v{version}"), talk.log);
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_are_kept_loaded_listed_closed_and_deleted() {
    for version in [1, 2] {
        let script = "[[turn]]\nsteps = [{ think = 'hm' }, { say = 'You said ' }, { say = '{prompt}' }, { title = 'T' }]";
        let mut talk = Talk::open(version, able(), script).await;
        talk.turn("hello", nothing).await;
        talk.log.clear();
        let again = || json!({"cwd": "/project", "mcpServers": []});
        talk.ask("session/list", json!({})).await;
        talk.ask("session/list", json!({"cwd": "/elsewhere"})).await;
        talk.ask("session/close", talk.about(json!({}))).await;
        talk.ask("session/prompt", talk.about(json!({"prompt": [{"type": "text", "text": "x"}]}))).await;
        match version {
            1 => drop(talk.ask("session/load", talk.about(again())).await),
            _ => {
                let params = json!({"cwd": "/project", "replayFrom": {"type": "start"}});
                talk.ask("session/resume", talk.about(params)).await;
            }
        }
        talk.ask("session/resume", talk.about(again())).await;
        talk.ask("session/resume", talk.about(json!({"cwd": "/elsewhere", "mcpServers": []}))).await;
        talk.ask("session/delete", talk.about(json!({}))).await;
        talk.ask("session/delete", talk.about(json!({}))).await;
        talk.ask("session/list", json!({})).await;
        talk.ask("session/resume", talk.about(again())).await;
        insta::assert_snapshot!(format!("sessions-v{version}"), talk.log);
    }
}

#[tokio::test(start_paused = true)]
async fn closing_ends_the_turn_first() {
    for version in [1, 2] {
        let mut talk = Talk::open(version, able(), "slow").await;
        talk.prompt("go").await;
        while !talk.agent_text().contains("One moment") {
            talk.next().await;
        }
        let close = talk.request("session/close", talk.about(json!({}))).await;
        talk.answer_to(close, nothing).await;
        insta::assert_snapshot!(format!("close-v{version}"), talk.log);
    }
}

#[tokio::test(start_paused = true)]
async fn modes_can_be_switched() {
    for version in [1, 2] {
        let script = "modes = ['code', 'plan']\n[[turn]]\nsteps = [{ say = '{mode}' }]";
        let mut talk = Talk::open(version, able(), script).await;
        talk.ask("session/set_mode", talk.about(json!({"modeId": "plan"}))).await;
        talk.ask("session/set_mode", talk.about(json!({"modeId": "dance"}))).await;
        let option = |id: &str, value: &str| json!({"configId": id, "type": "id", "value": value});
        talk.ask("session/set_config_option", talk.about(option("mode", "plan"))).await;
        talk.ask("session/set_config_option", talk.about(option("mode", "dance"))).await;
        talk.ask("session/set_config_option", talk.about(option("model", "plan"))).await;
        talk.turn("go", nothing).await;
        insta::assert_snapshot!(format!("modes-v{version}"), talk.log);
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_need_authentication_if_the_script_says_so() {
    for (version, login, logout) in [(1, "authenticate", "logout"), (2, "auth/login", "auth/logout")] {
        let mut talk = Talk::start("version = '1'\nauth = { id = 'token', name = 'A token' }");
        talk.initialize(version, able()).await;
        let new = || json!({"cwd": "/project", "mcpServers": []});
        talk.ask("session/new", new()).await;
        talk.ask(login, json!({"methodId": "password"})).await;
        talk.ask(login, json!({"methodId": "token"})).await;
        talk.ask("session/new", new()).await;
        talk.ask(logout, json!({})).await;
        talk.ask("session/new", new()).await;
        insta::assert_snapshot!(format!("auth-v{version}"), talk.log);
    }
}

#[tokio::test(start_paused = true)]
async fn methods_that_are_not_offered_are_refused() {
    #[track_caller]
    fn check(answer: &Value, code: i32) {
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    let script = "protocol = [1]\n[capabilities]\nload = false\nresume = false\nlist = false\nclose = false\n\
                  delete = false\nimage = false\naudio = false\nembedded_context = false\nmcp_http = false";
    let mut talk = Talk::start(script);
    check(&talk.ask("session/list", json!({})).await, -32600);
    let answer = talk.ask("initialize", json!({"protocolVersion": 2})).await;
    assert_eq!(answer["result"]["protocolVersion"], 1);
    assert_eq!(answer["result"]["agentCapabilities"]["sessionCapabilities"], json!({}));
    talk.new_session().await;
    for method in ["load", "resume", "list", "close", "delete"] {
        let params = talk.about(json!({"cwd": "/project", "mcpServers": []}));
        check(&talk.ask(&format!("session/{method}"), params).await, -32601);
    }
    check(&talk.ask("auth/login", json!({})).await, -32601);
    check(&talk.ask("_unknown", json!({})).await, -32601);
    check(&talk.ask("authenticate", json!({"methodId": "x"})).await, -32602);
    check(&talk.ask("session/new", json!({"cwd": "work", "mcpServers": []})).await, -32602);
    check(&talk.ask("session/new", json!({"cwd": "/project"})).await, -32602);
    let image = json!({"prompt": [{"type": "image", "data": "", "mimeType": "image/png"}]});
    check(&talk.ask("session/prompt", talk.about(image)).await, -32602);
    check(&talk.ask("session/prompt", talk.about(json!({"prompt": []}))).await, -32602);
    let unknown = json!({"sessionId": "x", "prompt": [{"type": "text", "text": "x"}]});
    check(&talk.ask("session/prompt", unknown).await, -32002);

    let mut talk = Talk::start("protocol = [2]");
    check(&talk.ask("initialize", json!({"protocolVersion": 1})).await, -32022);
}

#[tokio::test(start_paused = true)]
async fn session_ids_follow_their_template() {
    let mut talk = Talk::start("session_id = 'mine-{n}-{pid}'");
    talk.initialize(1, able()).await;
    let expected = |n: u32| json!(format!("mine-{n}-{}", std::process::id()));
    assert_eq!(talk.new_session().await["result"]["sessionId"], expected(1));
    assert_eq!(talk.new_session().await["result"]["sessionId"], expected(2));
}

#[tokio::test(start_paused = true)]
async fn a_script_can_act_before_and_after_a_response() {
    let script = "
        [on]
        initialize = [{ pause = '1m' }]
        session_new = [{ say = 'before ' }, { reorder = true }, { say = 'behind' }]
        session_list = [{ error = { code = -32012, message = 'not now' } }]
    ";
    let mut talk = Talk::start(script);
    let before = tokio::time::Instant::now();
    talk.initialize(1, able()).await;
    assert_eq!(before.elapsed().as_secs(), 60);
    talk.new_session().await;
    assert_eq!(talk.agent_text(), "before ");
    talk.next().await;
    assert_eq!(talk.agent_text(), "before behind");
    assert_eq!(talk.ask("session/list", json!({})).await["error"]["code"], -32012);
}

#[tokio::test(start_paused = true)]
async fn any_request_can_be_sent_to_the_client() {
    let script = "
        [[turn]]
        steps = [
          { notify = { method = '_progress', params = { session = '{session}' } } },
          { request = { method = '_weather', params = { where = '{cwd}' } } },
          { say = '{last}' },
        ]
    ";
    let mut talk = Talk::open(1, able(), script).await;
    talk.turn("go", |_| Some(json!({"sky": "clear"}))).await;
    insta::assert_snapshot!("request-v1", talk.log);
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_when_the_client_disconnects() {
    let mut talk = Talk::open(1, able(), "slow").await;
    talk.prompt("go").await;
    talk.next().await;
    assert_eq!(talk.leave().await, Ended::PeerLeft);
}
