//! Low access and the modes of agents that act by themselves.

use narrows_acp::Version;
use narrows_client::RunRequest;
use narrows_link::memory;
use narrows_policy::Access;
use narrows_rpc::{Item, Request};
use serde_json::{Value, json};

use crate::common::{Stage, VERSIONS, payloads};

#[tokio::test]
async fn low_access_chooses_the_mode_in_which_an_agent_only_reads() {
    const MODES: &str = r#"
        modes = ["code", "plan"]
        [[turn]]
        steps = [{ say = "It is {mode}." }]
    "#;
    for version in VERSIONS {
        for (access, wanted, expected) in
            [(Access::Low, None, "plan"), (Access::Low, Some("code"), "code"), (Access::Medium, None, "code")]
        {
            let mut stage = Stage::new(version, access);
            stage.config.mode = wanted.map(str::to_owned);
            let driven = stage.open(MODES).await;
            let result = driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
            assert_eq!(
                result.final_text.as_deref(),
                Some(format!("It is {expected}.").as_str()),
                "{version} {access}"
            );
            driven.leave().await;
        }
    }
}

/// A name that an agent gives itself does not keep it from the mode that low access chooses.
#[tokio::test]
async fn low_access_chooses_the_mode_of_an_agent_that_calls_itself_narrows() {
    let (link, far) = memory::pair(&narrows_link::Options::default());
    let agent = tokio::spawn(async move {
        let (_peer, mut inbox) = narrows_rpc::start(far, narrows_rpc::Options::agent(|_| true));
        let mut chosen = Vec::new();
        while let Some(item) = inbox.recv().await {
            let Item::Request(Request { frame, responder }) = item else { continue };
            let modes = json!([{"id": "code", "name": "Code"}, {"id": "plan", "name": "Plan"}]);
            let answer = match frame.method().as_deref() {
                Some("initialize") => {
                    json!({"protocolVersion": 1, "agentInfo": {"name": "narrows", "version": "1"}})
                }
                Some("session/new") => {
                    json!({"sessionId": "s", "modes": {"currentModeId": "code", "availableModes": modes}})
                }
                Some("session/set_mode") => {
                    let params: Value = frame.read_params().expect("params");
                    chosen.push(params["modeId"].clone());
                    json!({})
                }
                _ => json!({"stopReason": "end_turn"}),
            };
            responder.respond(&answer);
        }
        chosen
    });
    let driven = Stage::new(Version::V1, Access::Low).open_on(link, tokio::spawn(async {})).await;
    driven.leave().await;
    assert_eq!(agent.await.expect("no panic"), [json!("plan")]);
}

#[tokio::test]
async fn an_agent_without_such_a_mode_is_told_of_under_low_access() {
    for (access, through_client, told) in
        [(Access::Low, false, true), (Access::Low, true, false), (Access::Medium, false, false)]
    {
        let mut stage = Stage::new(Version::V1, access);
        stage.agent.acts_through_client = through_client;
        let mut driven = stage.open("modes = [\"code\"]\n[[turn]]\nsteps = [{ say = \"Done.\" }]\n").await;
        let mut events = driven.session.events().expect("events");
        driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
        driven.leave().await;
        let mut seen = Vec::new();
        while let Some(event) = events.next().await {
            seen.push(event);
        }
        let rejected = payloads(&seen, "config.rejected");
        assert_eq!(rejected.len(), usize::from(told), "{access} {through_client}: {rejected:?}");
        if told {
            assert_eq!(
                (&rejected[0]["option"], &rejected[0]["value"]),
                (&json!("mode"), &json!("read-only"))
            );
            assert!(
                rejected[0]["reason"].as_str().expect("a text").contains("no mode in which it only reads")
            );
        }
    }
}
