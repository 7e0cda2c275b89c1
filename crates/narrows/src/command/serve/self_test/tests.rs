//! The self-test fails where something is broken: gates with holes, logs that lose lines, agents that lack something.

use std::path::{Path, PathBuf};

use narrows_govern::{Disk, Gate, Setting};
use narrows_manifest::Capabilities;
use narrows_policy::{Access, Narrowing, Policy};

use super::live::Live;
use super::*;

/// The example, which breaks no point.
fn charge() -> Charge {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/governed");
    let root = root.canonicalize().expect("it is there");
    let bundle =
        narrows_manifest::load(&root.join("ACP.md"), None).unwrap_or_else(|findings| panic!("{findings}"));
    Charge {
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

/// What is broken.
#[derive(Default)]
struct Broken {
    mandate: Option<fn(&mut Mandate)>,
    policy: Option<Policy>,
    /// Nothing is recorded.
    mute: bool,
    /// What happens to the log before it is read.
    log: Option<fn(Vec<String>) -> Vec<String>>,
    live: Option<Live>,
    knock: Option<Knock>,
    touched: Vec<String>,
}

fn introduced(load: bool) -> Live {
    let answer = json!({"result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": load}}});
    Live::Introduced { answer, ended: Some(("exited with status 0".to_owned(), std::time::Duration::ZERO)) }
}

fn gate(trial: &Trial<'_>, broken: &Broken) -> Gate {
    let mut mandate = trial.mandate.clone();
    if let Some(change) = broken.mandate {
        change(&mut mandate);
    }
    let policy = broken.policy.clone().unwrap_or_else(|| policy_of(&trial.charge.bundle));
    let setting = Setting { began: 1_700_000_000, nonce: "n".to_owned() };
    Gate::new(mandate, who(), policy, Box::new(Disk), setting)
}

/// The points that fail.
async fn failing(broken: Broken) -> Vec<u8> {
    let (charge, who) = (charge(), who());
    let trial = Trial::of(&charge, &who);
    let place = tempfile::tempdir().expect("a directory");
    let path: PathBuf = place.path().join("audit-log.jsonl");
    let log = (!broken.mute).then(|| Log::open(&path, Options::default()).expect("a log"));
    let mut seen = trial
        .play(gate(&trial, &broken), log, &path)
        .await
        .unwrap_or_else(|error| panic!("{}", error.message()));
    if let Some(change) = broken.log {
        let text = std::fs::read_to_string(&path).expect("a log");
        let lines = change(text.lines().map(str::to_owned).collect());
        std::fs::write(&path, lines.join("\n") + "\n").expect("it is ours");
        seen = seen.with_log(&path).expect("it can be read");
    }
    let live = broken.live.as_ref().map_or_else(|| introduced(true), clone);
    let gates = (0..clock::GATES).map(|_| gate(&trial, &broken)).collect();
    let knock = broken.knock.clone().unwrap_or_else(|| Knock::NotTried("nobody is there".to_owned()));
    let points = trial.judge(&seen, &live, gates, &knock, &broken.touched);
    assert_eq!(points.len(), 30);
    let fails = |point: &&Point| point.outcome.verdict == Verdict::Fail;
    points.iter().filter(fails).map(|point| point.point).collect()
}

fn clone(live: &Live) -> Live {
    match live {
        Live::Introduced { answer, ended } => {
            Live::Introduced { answer: answer.clone(), ended: ended.clone() }
        }
        Live::Failed(why) => Live::Failed(why.clone()),
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
async fn a_gate_that_lets_everything_pass_is_found() {
    let policy = Some(Policy::new(Access::High, Narrowing::default()));
    fails(&failing(Broken { policy, ..Broken::default() }).await, &[22, 23, 24, 25, 29]);
}

#[tokio::test]
async fn a_gate_for_any_tool_is_found() {
    let mandate: fn(&mut Mandate) = |mandate| mandate.tools = None;
    let failing = failing(Broken { mandate: Some(mandate), ..Broken::default() }).await;
    assert_eq!(failing, [23]);
}

#[tokio::test]
async fn a_gate_for_the_whole_disk_is_found() {
    let mandate: fn(&mut Mandate) = |mandate| mandate.roots = vec!["/".into()];
    let failing = failing(Broken { mandate: Some(mandate), ..Broken::default() }).await;
    fails(&failing, &[27]);
}

#[tokio::test]
async fn a_gate_that_offers_what_is_not_declared_is_found() {
    let mandate: fn(&mut Mandate) = |mandate| {
        mandate.capabilities = Capabilities { read_text_file: true, image: true, ..mandate.capabilities };
    };
    let failing = failing(Broken { mandate: Some(mandate), ..Broken::default() }).await;
    fails(&failing, &[11]);
}

#[tokio::test]
async fn a_gate_for_any_server_is_found() {
    let mandate: fn(&mut Mandate) = |mandate| mandate.servers = None;
    assert_eq!(failing(Broken { mandate: Some(mandate), ..Broken::default() }).await, [28]);
}

#[tokio::test]
async fn another_operator_is_found() {
    let mandate: fn(&mut Mandate) = |mandate| mandate.operator = "another".to_owned();
    assert_eq!(failing(Broken { mandate: Some(mandate), ..Broken::default() }).await, [14, 15]);
}

#[tokio::test]
async fn patience_without_an_end_is_found() {
    let mandate: fn(&mut Mandate) = |mandate| mandate.patience.approval = std::time::Duration::MAX / 4;
    let failing = failing(Broken { mandate: Some(mandate), ..Broken::default() }).await;
    fails(&failing, &[29]);
}

#[tokio::test]
async fn another_patience_than_what_is_set_is_found() {
    for change in [
        (|mandate: &mut Mandate| mandate.patience.initialize *= 2) as fn(&mut Mandate),
        |mandate| mandate.patience.new *= 2,
        |mandate| mandate.patience.silence *= 2,
        |mandate| mandate.patience.cancel *= 2,
        |mandate| mandate.patience.close *= 2,
        |mandate| mandate.patience.other = std::time::Duration::MAX / 4,
    ] {
        assert_eq!(failing(Broken { mandate: Some(change), ..Broken::default() }).await, [29]);
    }
}

#[tokio::test]
async fn a_stranger_who_comes_in_is_found() {
    let knock = Some(Knock::LetIn("they came in".to_owned()));
    assert_eq!(failing(Broken { knock, ..Broken::default() }).await, [26]);
}

#[tokio::test]
async fn a_gate_that_lets_undeclared_servers_be_used_is_found() {
    let mandate: fn(&mut Mandate) = |mandate| mandate.capabilities.mcp_acp = true;
    fails(&failing(Broken { mandate: Some(mandate), ..Broken::default() }).await, &[28]);
}

#[tokio::test]
async fn a_log_that_loses_a_line_is_found() {
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
async fn a_gate_that_records_nothing_is_found() {
    fails(&failing(Broken { mute: true, ..Broken::default() }).await, &[15, 16, 17, 19, 20, 22, 23, 26, 27]);
}

#[tokio::test]
async fn an_agent_that_lacks_something_or_does_not_start_is_found() {
    assert_eq!(failing(Broken { live: Some(introduced(false)), ..Broken::default() }).await, [1]);
    assert_eq!(failing(Broken { live: Some(Live::Failed("no".into())), ..Broken::default() }).await, [1]);
}

#[tokio::test]
async fn a_test_that_leaves_something_behind_is_found() {
    assert_eq!(failing(Broken { touched: vec!["pins/x".into()], ..Broken::default() }).await, [21]);
}
