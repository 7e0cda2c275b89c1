//! Low access, and agents with read-only modes.

use std::sync::Arc;

use narrows_acp::Version;
use narrows_client::RunRequest;
use narrows_link::memory;
use narrows_policy::{Access, Narrowing, Policy, Rules};
use narrows_rpc::{Item, Request};
use serde_json::{Value, json};

use crate::common::{Stage, VERSIONS, all, payloads};

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

/// An agent can choose its name, so the name does not exempt it from a read-only mode.
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
async fn low_access_reports_an_agent_without_a_read_only_mode() {
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
            assert!(rejected[0]["reason"].as_str().expect("a text").contains("no read-only mode"));
        }
    }
}

/// Returns the `mode.left` events of a run, the final mode, and the code of its error.
async fn left(stage: Stage, script: &str) -> (Vec<Value>, String, Option<String>) {
    let driven = stage.open(script).await;
    let mut run = driven.session.run(RunRequest::text("Go")).await.expect("a run");
    let events = all(&mut run).await;
    let result = run.result().await;
    let snapshot = driven.session.snapshot();
    driven.leave().await;
    let told = payloads(&events, "other").into_iter().filter(|told| told["name"] == "mode.left");
    let mode = snapshot.option("mode").and_then(|option| option.current.as_str()).unwrap_or_default();
    (told.map(|told| told["data"].clone()).collect(), mode.to_owned(), result.error.map(|error| error.code))
}

#[tokio::test]
async fn an_agent_that_leaves_the_read_only_mode_is_set_back() {
    const LEAVES: &str = r#"
        modes = ["code", "plan"]
        [[turn]]
        steps = [{ mode = "code" }, { pause = "200ms" }, { say = "Done." }]
    "#;
    for version in VERSIONS {
        let (told, mode, error) = left(Stage::new(version, Access::Low), LEAVES).await;
        assert_eq!((mode.as_str(), error), ("plan", None), "{version}");
        assert_eq!(told.len(), 1, "{version} {told:?}");
        assert_eq!((&told[0]["mode"], &told[0]["wanted"]), (&json!("code"), &json!("plan")));
        assert!(told[0]["problem"].as_str().expect("a text").contains("setting it back"), "{told:?}");
        // With other access, or in a mode that the user selected, the agent may change the mode.
        let (told, mode, _) = left(Stage::new(version, Access::Medium), LEAVES).await;
        assert_eq!((mode.as_str(), told.len()), ("code", 0), "{version}");
        let mut stage = Stage::new(version, Access::Low);
        stage.config.mode = Some("plan".to_owned());
        let (told, mode, _) = left(stage, LEAVES).await;
        assert_eq!((mode.as_str(), told.len()), ("code", 0), "{version}");
    }
}

#[tokio::test]
async fn a_turn_ends_if_the_agent_leaves_the_read_only_mode_again() {
    let twice = r#"
        modes = ["code", "plan"]
        [[turn]]
        steps = [{ mode = "code" }, { pause = "200ms" }, { mode = "code" }, { pause = "20s" }, { say = "Done." }]
    "#;
    let refusing = r#"
        modes = ["plan", "code"]
        [on]
        session_set_mode = [{ error = { code = -32603, message = "I will not" } }]
        session_set_config_option = [{ error = { code = -32603, message = "I will not" } }]
        [[turn]]
        steps = [{ mode = "code" }, { pause = "20s" }, { say = "Done." }]
    "#;
    for version in VERSIONS {
        for (script, last) in [(twice, "low access cannot prevent"), (refusing, "I will not")] {
            let (told, _, error) = left(Stage::new(version, Access::Low), script).await;
            assert_eq!(error.as_deref(), Some("mode_left"), "{version} {script}");
            assert_eq!(told.len(), 2, "{told:?}");
            assert!(told[1]["problem"].as_str().expect("a text").contains(last), "{told:?}");
        }
    }
}

/// A change of mode that a rule allows is not reverted.
#[tokio::test]
async fn a_mode_that_the_agent_was_allowed_to_choose_stays() {
    let script = r#"
        modes = ["code", "plan"]
        [[turn]]
        steps = [
          { tool = { id = "t", title = "Leave the plan", kind = "switch_mode" } },
          { ask = { tool = "t", title = "May I?" } },
          { mode = "code" }, { pause = "100ms" }, { say = "Done." },
        ]
    "#;
    let (rules, _) =
        Rules::parse("[[rule]]\neffect = 'allow'\nkind = 'switch_mode'\n", "p.toml").expect("rules");
    let mut stage = Stage::new(Version::V1, Access::Low);
    stage.config.policy = Arc::new(Policy::new(Access::Low, Narrowing::default()).with_rules(rules));
    let (told, mode, error) = left(stage, script).await;
    assert_eq!((told, mode.as_str(), error), (Vec::new(), "code", None));
}
