//! Usage of turns, for every kind of report.

use narrows_acp::Version;
use narrows_client::{RunRequest, UsageScope};
use narrows_link::{Link, memory};
use narrows_policy::Access;
use narrows_rpc::{Item, Request};
use serde_json::json;

use crate::common::Stage;

/// An agent with this name. It reports 104 input and 19 output tokens for each turn, or totals of the session
/// if `is_total`.
async fn reporting(link: Link, name: &'static str, is_total: bool) {
    let (_peer, mut inbox) = narrows_rpc::start(link, narrows_rpc::Options::agent(|_| true));
    let mut prompts = 0;
    while let Some(item) = inbox.recv().await {
        let Item::Request(Request { frame, responder }) = item else { continue };
        let answer = match frame.method().as_deref() {
            Some("initialize") => {
                json!({"protocolVersion": 1, "agentInfo": {"name": name, "version": "1"}})
            }
            Some("session/prompt") => {
                prompts += 1;
                let times = if is_total { prompts } else { 1 };
                let usage = json!({"inputTokens": 104 * times, "outputTokens": 19 * times, "totalTokens": 123 * times});
                json!({"stopReason": "end_turn", "usage": usage})
            }
            _ => json!({"sessionId": "s"}),
        };
        responder.respond(&answer);
    }
}

#[tokio::test]
async fn every_turn_has_its_own_usage_for_every_kind_of_report() {
    for (name, is_total, usage_scope) in [
        ("OpenCode", false, UsageScope::Detect),
        ("@zed-industries/codex-acp", false, UsageScope::Detect),
        ("unknown", false, UsageScope::Detect),
        ("unknown", false, UsageScope::Turn),
        ("unknown", true, UsageScope::Detect),
        ("narrows", true, UsageScope::Detect),
        ("OpenCode", true, UsageScope::Session),
    ] {
        let (link, far) = memory::pair(&narrows_link::Options::default());
        let mut stage = Stage::new(Version::V1, Access::Medium);
        stage.agent.usage_scope = usage_scope;
        let driven = stage.open_on(link, tokio::spawn(reporting(far, name, is_total))).await;
        for turn in 1..=3 {
            let result = driven.session.run(RunRequest::text("Go")).await.expect("a run").result().await;
            let usage = result.usage.expect("the agent reports it");
            let took = (usage.input_tokens, usage.output_tokens, usage.total_tokens);
            // The second report may be an unchanged total; the third is decisive.
            let is_open = (name, is_total, usage_scope, turn) == ("unknown", false, UsageScope::Detect, 2);
            let expected = if is_open { [0, 0, 0] } else { [104, 19, 123] }.map(Some);
            assert_eq!(<[_; 3]>::from(took), expected, "{name} {is_total} {usage_scope:?} turn {turn}");
        }
        driven.leave().await;
    }
}
