//! Tests that the self-test fails for broken parts: gates with holes, logs that lose lines, agents without a
//! capability.

use std::path::{Path, PathBuf};

use narrows_govern::{Gate, GateStart, SystemPathResolver};
use narrows_manifest::Capabilities;
use narrows_policy::{Access, Narrowing, Policy};

use super::live_agent::LiveAgent;
use super::*;

/// The example manifest, for which no point fails.
fn manifest() -> LoadedManifest {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/governed");
    let root = root.canonicalize().expect("the file exists");
    let bundle =
        narrows_manifest::load(&root.join("ACP.md"), None).unwrap_or_else(|findings| panic!("{findings}"));
    LoadedManifest {
        bundle,
        root,
        keys: Default::default(),
        scripts: Default::default(),
        patience: Default::default(),
        admin: None,
        notice: None,
    }
}

fn who() -> Principal {
    Principal { id: "user:ada".to_owned(), ..Principal::default() }
}

#[derive(Default)]
struct Broken {
    mandate: Option<fn(&mut GateConfig)>,
    policy: Option<Policy>,
    mute: bool,
    /// Changes the lines of the log before they are judged.
    log: Option<fn(Vec<String>) -> Vec<String>>,
    agent: Option<LiveAgent>,
    foreign_user: Option<ForeignUserResult>,
    changed_files: Vec<String>,
}

fn introduced(load: bool) -> LiveAgent {
    let answer = json!({"result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": load}}});
    LiveAgent::Introduced {
        answer,
        ended: Some(("exited with status 0".to_owned(), std::time::Duration::ZERO)),
    }
}

fn gate(test: &SelfTest<'_>, broken: &Broken) -> Gate {
    let mut mandate = test.mandate.clone();
    if let Some(change) = broken.mandate {
        change(&mut mandate);
    }
    let policy = broken.policy.clone().unwrap_or_else(|| bundle_policy(&test.manifest.bundle));
    let setting = GateStart { started_at: 1_700_000_000, nonce: "n".to_owned() };
    Gate::new(mandate, who(), policy, Box::new(SystemPathResolver), setting)
}

async fn failing(broken: Broken) -> Vec<u8> {
    let (manifest, who) = (manifest(), who());
    let test = SelfTest::new(&manifest, &who);
    let place = tempfile::tempdir().expect("a directory");
    let path: PathBuf = place.path().join("audit-log.jsonl");
    let log = (!broken.mute).then(|| Log::open(&path, LogOptions::default()).expect("a log"));
    let mut observed = test
        .run(gate(&test, &broken), log, &path)
        .await
        .unwrap_or_else(|error| panic!("{}", error.message()));
    if let Some(change) = broken.log {
        let text = std::fs::read_to_string(&path).expect("a log");
        let lines = change(text.lines().map(str::to_owned).collect());
        std::fs::write(&path, lines.join("\n") + "\n").expect("the file is writable");
        observed = observed.with_log(&path).expect("it can be read");
    }
    let agent = broken.agent.as_ref().map_or_else(|| introduced(true), clone);
    let gates = (0..deadlines::GATE_COUNT).map(|_| gate(&test, &broken)).collect();
    let foreign_user = broken
        .foreign_user
        .clone()
        .unwrap_or_else(|| ForeignUserResult::NotTried("no other user".to_owned()));
    let points = test.evaluate(&observed, &agent, gates, &foreign_user, &broken.changed_files);
    assert_eq!(points.len(), 30);
    let fails = |point: &&Point| point.outcome.verdict == PointStatus::Fail;
    points.iter().filter(fails).map(|point| point.point).collect()
}

fn clone(agent: &LiveAgent) -> LiveAgent {
    match agent {
        LiveAgent::Introduced { answer, ended } => {
            LiveAgent::Introduced { answer: answer.clone(), ended: ended.clone() }
        }
        LiveAgent::Failed(why) => LiveAgent::Failed(why.clone()),
    }
}

#[track_caller]
fn fails(failing: &[u8], wanted: &[u8]) {
    for point in wanted {
        assert!(failing.contains(point), "point {point} does not fail, but {failing:?}");
    }
}

#[tokio::test]
async fn the_example_breaks_no_point() {
    assert_eq!(failing(Broken::default()).await, Vec::<u8>::new());
}

#[tokio::test]
async fn a_gate_that_allows_everything_fails() {
    let policy = Some(Policy::new(Access::High, Narrowing::default()));
    fails(&failing(Broken { policy, ..Broken::default() }).await, &[22, 23, 24, 25, 29]);
}

#[tokio::test]
async fn a_gate_for_any_tool_fails() {
    let mandate: fn(&mut GateConfig) = |mandate| mandate.tools = None;
    let failing = failing(Broken { mandate: Some(mandate), ..Broken::default() }).await;
    assert_eq!(failing, [23]);
}

#[tokio::test]
async fn a_gate_for_the_whole_disk_fails() {
    let mandate: fn(&mut GateConfig) = |mandate| mandate.roots = vec!["/".into()];
    let failing = failing(Broken { mandate: Some(mandate), ..Broken::default() }).await;
    fails(&failing, &[27]);
}

#[tokio::test]
async fn a_gate_that_offers_undeclared_capabilities_fails() {
    let mandate: fn(&mut GateConfig) = |mandate| {
        mandate.capabilities = Capabilities { read_text_file: true, image: true, ..mandate.capabilities };
    };
    let failing = failing(Broken { mandate: Some(mandate), ..Broken::default() }).await;
    fails(&failing, &[11]);
}

#[tokio::test]
async fn a_gate_for_any_mcp_server_fails() {
    let mandate: fn(&mut GateConfig) = |mandate| mandate.servers = None;
    assert_eq!(failing(Broken { mandate: Some(mandate), ..Broken::default() }).await, [28]);
}

#[tokio::test]
async fn another_operator_fails() {
    let mandate: fn(&mut GateConfig) = |mandate| mandate.operator = "another".to_owned();
    assert_eq!(failing(Broken { mandate: Some(mandate), ..Broken::default() }).await, [14, 15]);
}

#[tokio::test]
async fn missing_deadlines_fail() {
    let mandate: fn(&mut GateConfig) = |mandate| mandate.timeouts.approval = std::time::Duration::MAX / 4;
    let failing = failing(Broken { mandate: Some(mandate), ..Broken::default() }).await;
    fails(&failing, &[29]);
}

#[tokio::test]
async fn other_deadlines_than_configured_fail() {
    for change in [
        (|mandate: &mut GateConfig| mandate.timeouts.initialize *= 2) as fn(&mut GateConfig),
        |mandate| mandate.timeouts.new *= 2,
        |mandate| mandate.timeouts.silence *= 2,
        |mandate| mandate.timeouts.cancel *= 2,
        |mandate| mandate.timeouts.close *= 2,
        |mandate| mandate.timeouts.other = std::time::Duration::MAX / 4,
    ] {
        assert_eq!(failing(Broken { mandate: Some(change), ..Broken::default() }).await, [29]);
    }
}

#[tokio::test]
async fn an_admitted_foreign_user_fails() {
    let foreign_user = Some(ForeignUserResult::Admitted("they came in".to_owned()));
    assert_eq!(failing(Broken { foreign_user, ..Broken::default() }).await, [26]);
}

#[tokio::test]
async fn a_gate_that_allows_undeclared_servers_fails() {
    let mandate: fn(&mut GateConfig) = |mandate| mandate.capabilities.mcp_acp = true;
    fails(&failing(Broken { mandate: Some(mandate), ..Broken::default() }).await, &[28]);
}

#[tokio::test]
async fn a_log_without_one_line_fails() {
    let log: fn(Vec<String>) -> Vec<String> = |mut lines| {
        lines.remove(lines.len() / 2);
        lines
    };
    fails(&failing(Broken { log: Some(log), ..Broken::default() }).await, &[22]);
    let log: fn(Vec<String>) -> Vec<String> = |lines| {
        lines
            .into_iter()
            .map(|line| line.replace("\"decision\":\"deny\"", "\"decision\":\"allow\""))
            .collect()
    };
    fails(&failing(Broken { log: Some(log), ..Broken::default() }).await, &[22, 23]);
}

#[tokio::test]
async fn a_gate_that_records_nothing_fails() {
    fails(&failing(Broken { mute: true, ..Broken::default() }).await, &[15, 16, 17, 19, 20, 22, 23, 26, 27]);
}

#[tokio::test]
async fn an_agent_that_lacks_a_capability_or_does_not_start_fails() {
    assert_eq!(failing(Broken { agent: Some(introduced(false)), ..Broken::default() }).await, [1]);
    assert_eq!(
        failing(Broken { agent: Some(LiveAgent::Failed("no".into())), ..Broken::default() }).await,
        [1]
    );
}

#[tokio::test]
async fn a_test_that_changes_files_fails() {
    assert_eq!(failing(Broken { changed_files: vec!["pins/x".into()], ..Broken::default() }).await, [21]);
}
