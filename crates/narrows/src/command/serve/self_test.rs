//! `narrows serve --self-test`: tests a manifest against the thirty points of AIP-44.
//!
//! The test has two conversations. In the first, the agent of the manifest is only initialized and then
//! ended. In the second, a scripted client talks through the gate of the manifest to a scripted agent, which
//! tries everything that the manifest has a rule for. The log is in a temporary directory.

mod broken_manifests;
mod client;
mod deadlines;
mod foreign_user;
mod harness;
mod live_agent;
mod point;
mod points;
mod sample_calls;
mod script;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use narrows_audit::{Log, LogOptions};
use narrows_govern::{Gate, GateConfig, Principal, bundle_policy, mcp_server_config};
use narrows_manifest::AuditTarget;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::data_dir;
use super::identities::Identities;
use super::manifest::LoadedManifest;
use super::run_gate;
use crate::cli::{CheckFormat, Serve};
use crate::failure::{ExitStatus, Failure};
use crate::output;
use crate::terminal::line;
use foreign_user::ForeignUserResult;
use harness::{Harness, Observations};
use point::{Point, PointStatus};
use points::Evidence;
use sample_calls::SampleCalls;

/// Tests a manifest and prints the results. The exit code is 0 if no point fails.
pub(super) fn execute(args: &Serve) -> Result<ExitCode, Failure> {
    let Some(manifest) = LoadedManifest::load(args)? else { return Ok(ExitStatus::Usage.exit_code()) };
    let identities = Identities::load(args.identities.as_deref(), &manifest)?;
    let data = data_dir(args)?;
    let points = super::super::block_on(run(&manifest, args, &identities, &data))??;
    print(&points, args.format)?;
    let failed = points.iter().any(|point| point.outcome.verdict == PointStatus::Fail);
    Ok(if failed { ExitStatus::Agent } else { ExitStatus::Success }.exit_code())
}

async fn run(
    manifest: &LoadedManifest,
    args: &Serve,
    identities: &Identities,
    data: &Path,
) -> Result<Vec<Point>, Failure> {
    let who = &identities.launcher();
    let directory =
        tempfile::tempdir().map_err(|error| Failure::setup("create a directory for the test", &error))?;
    let before = fingerprints(manifest, data);
    let agent = live_agent::probe(manifest, args, &directory.path().join("data")).await;
    let gate = run_gate::build(manifest, who.clone())?;
    let path = directory.path().join("audit-log.jsonl");
    let log = Log::open(&path, LogOptions::default())
        .map_err(|error| Failure::audit_log_unopened(&path, &error))?;
    let test = SelfTest::new(manifest, who);
    let observed = test.run(gate, Some(log), &path).await?;
    let gates = (0..deadlines::GATE_COUNT)
        .map(|_| run_gate::build(manifest, who.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    let foreign_user = foreign_user::try_connect(identities, manifest).await;
    let after = fingerprints(manifest, data);
    let paths = before.keys().chain(after.keys()).collect::<BTreeSet<_>>().into_iter();
    let changed_files: Vec<String> = paths
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| path.display().to_string())
        .collect();
    Ok(test.evaluate(&observed, &agent, gates, &foreign_user, &changed_files))
}

struct SelfTest<'a> {
    manifest: &'a LoadedManifest,
    who: &'a Principal,
    mandate: GateConfig,
    samples: SampleCalls,
}

impl<'a> SelfTest<'a> {
    fn new(manifest: &'a LoadedManifest, who: &'a Principal) -> Self {
        let mandate = GateConfig::from_bundle(&manifest.bundle, vec![manifest.root.clone()]);
        let samples = SampleCalls::find(&manifest.bundle, &mandate, who, &bundle_policy(&manifest.bundle));
        Self { manifest, who, mandate, samples }
    }

    /// Runs the scripted conversation with this gate and the log at `path`.
    async fn run(&self, gate: Gate, log: Option<Log>, path: &Path) -> Result<Observations, Failure> {
        let root = &self.manifest.root;
        let script = script::build(&self.samples, &self.mandate.capabilities, &root.to_string_lossy())
            .map_err(|error| Failure::script_invalid("self-test", &error))?;
        let signers = harness::signers(&self.samples, &self.mandate);
        let client_server = self.client_server();
        let harness = Harness { gate, log, path, root, script, signers, client_server };
        harness.run().await.map_err(|error| Failure::setup("read the log of the test", &error))
    }

    /// Returns the name of a listed MCP server that the client provides.
    fn client_server(&self) -> Option<String> {
        let servers =
            self.manifest.bundle.mcp_servers.iter().filter(|server| mcp_server_config(server).is_none());
        let mut names = servers.map(|server| server.server.name.clone());
        names.next().filter(|_| self.mandate.capabilities.mcp_acp)
    }

    fn evaluate(
        &self,
        observed: &Observations,
        agent: &live_agent::LiveAgent,
        gates: Vec<Gate>,
        foreign_user: &ForeignUserResult,
        changed_files: &[String],
    ) -> Vec<Point> {
        let Self { manifest, who, mandate, samples } = self;
        let setup = deadlines::DeadlineSetup {
            root: &manifest.root.to_string_lossy(),
            patience: manifest.patience,
            approved: samples.approved.as_ref(),
            denied: samples.denied.as_ref(),
        };
        let deadlines = deadlines::deadlines(gates, &setup);
        let client_server = self.client_server();
        let evidence = Evidence {
            manifest,
            mandate,
            samples,
            observed,
            agent,
            changed_files,
            deadlines,
            foreign_user,
            client_server: client_server.as_deref(),
            who: &who.id,
        };
        evidence.points()
    }
}

fn fingerprints(manifest: &LoadedManifest, data: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let digest = |path: &Path| std::fs::read(path).ok().map(|bytes| Sha256::digest(bytes).to_vec());
    let mut paths = Vec::new();
    if let AuditTarget::Log(path) = &manifest.bundle.audit {
        paths.push(manifest.root.join(path));
    }
    for directory in ["pins", "memory"] {
        let entries = std::fs::read_dir(data.join(directory)).into_iter().flatten().filter_map(Result::ok);
        paths.extend(entries.map(|entry| entry.path()));
    }
    paths.into_iter().map(|path| (path.clone(), digest(&path))).collect()
}

fn print(points: &[Point], format: CheckFormat) -> Result<(), Failure> {
    if format == CheckFormat::Json {
        return output::print_json(json!({"points": points, "summary": summary(points)}));
    }
    let mut text = String::new();
    for Point { point, about, outcome } in points {
        let (verdict, evidence) = (outcome.verdict.name(), line(&outcome.evidence));
        text.push_str(&format!("{point:>2}  {verdict:14}  {about}: {evidence}\n"));
    }
    let summary = summary(points);
    let count = |name: &str| summary[name].to_string();
    text.push_str(&format!(
        "{} pass, {} fail, {} not applicable\n",
        count("pass"),
        count("fail"),
        count("not_applicable")
    ));
    output::print(text.as_bytes())
}

fn summary(points: &[Point]) -> serde_json::Value {
    let count = |verdict| points.iter().filter(|point| point.outcome.verdict == verdict).count();
    json!({
        "pass": count(PointStatus::Pass), "fail": count(PointStatus::Fail), "not_applicable": count(PointStatus::NotApplicable),
    })
}
