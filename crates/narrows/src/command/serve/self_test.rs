//! `narrows serve --self-test`: a manifest tried out against the thirty points of AIP-44.
//!
//! Two conversations are held. In one the manifest's own agent introduces itself, and is ended again. In the other a
//! scripted client talks through the manifest's gate to a scripted agent that wants everything the manifest has a rule for.
//! The log of it lies in a directory of its own and is thrown away with it.

mod client;
mod clock;
mod live;
mod papers;
mod point;
mod points;
mod script;
mod stage;
mod stranger;
#[cfg(test)]
mod tests;
mod wish;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use narrows_audit::{Log, Options};
use narrows_govern::{Gate, Mandate, Principal, policy_of, provided};
use narrows_manifest::AuditTarget;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::charge::Charge;
use super::guests::Guests;
use super::{data_dir, stand};
use crate::cli::{CheckFormat, Serve};
use crate::failure::{Code, Failure};
use crate::output;
use crate::terminal::line;
use point::{Point, Verdict};
use points::Evidence;
use stage::{Seen, Stage};
use stranger::Knock;
use wish::Wishes;

/// Tries a manifest out and tells what was seen. The exit code is 0 if nothing failed.
pub(super) fn execute(args: &Serve) -> Result<ExitCode, Failure> {
    let Some(charge) = Charge::load(args)? else { return Ok(Code::Usage.exit()) };
    let guests = Guests::load(args.identities.as_deref(), &charge)?;
    let data = data_dir(args)?;
    let points = super::super::block_on(trial(&charge, args, &guests, &data))??;
    tell(&points, args.format)?;
    let failed = points.iter().any(|point| point.outcome.verdict == Verdict::Fail);
    Ok(if failed { Code::Agent } else { Code::Success }.exit())
}

async fn trial(charge: &Charge, args: &Serve, guests: &Guests, data: &Path) -> Result<Vec<Point>, Failure> {
    let who = &guests.starter();
    let place =
        tempfile::tempdir().map_err(|error| Failure::setup("make a directory for the test", &error))?;
    let before = prints(charge, data);
    let live = live::introduce(charge, args, &place.path().join("data")).await;
    let gate = stand::gate(charge, who.clone())?;
    let path = place.path().join("audit-log.jsonl");
    let log = Log::open(&path, Options::default()).map_err(|error| Failure::unopened_log(&path, &error))?;
    let trial = Trial::of(charge, who);
    let seen = trial.play(gate, Some(log), &path).await?;
    let gates = (0..clock::GATES).map(|_| stand::gate(charge, who.clone())).collect::<Result<Vec<_>, _>>()?;
    let knock = stranger::knock(guests, charge).await;
    let after = prints(charge, data);
    let paths = before.keys().chain(after.keys()).collect::<BTreeSet<_>>().into_iter();
    let touched: Vec<String> = paths
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| path.display().to_string())
        .collect();
    Ok(trial.judge(&seen, &live, gates, &knock, &touched))
}

/// A manifest, and what is tried with it.
struct Trial<'a> {
    charge: &'a Charge,
    who: &'a Principal,
    mandate: Mandate,
    wishes: Wishes,
}

impl<'a> Trial<'a> {
    fn of(charge: &'a Charge, who: &'a Principal) -> Self {
        let mandate = Mandate::of(&charge.bundle, vec![charge.root.clone()]);
        let wishes = Wishes::of(&charge.bundle, &mandate, who, &policy_of(&charge.bundle));
        Self { charge, who, mandate, wishes }
    }

    /// Tries everything at this gate, with this log at `path`.
    async fn play(&self, gate: Gate, log: Option<Log>, path: &Path) -> Result<Seen, Failure> {
        let root = &self.charge.root;
        let script = script::of(&self.wishes, &self.mandate.capabilities, &root.to_string_lossy())
            .map_err(|error| Failure::bad_script("self-test", &error))?;
        let signers = stage::signers(&self.wishes, &self.mandate);
        let brought = self.brought();
        let stage = Stage { gate, log, path, root, script, signers, brought };
        stage.play().await.map_err(|error| Failure::setup("read the log of the test", &error))
    }

    /// The name of a server that a client may bring, where the manifest lists one and leaves it to the client.
    fn brought(&self) -> Option<String> {
        let servers = self.charge.bundle.mcp_servers.iter().filter(|server| provided(server).is_none());
        let mut names = servers.map(|server| server.server.name.clone());
        names.next().filter(|_| self.mandate.capabilities.mcp_acp)
    }

    fn judge(
        &self,
        seen: &Seen,
        live: &live::Live,
        gates: Vec<Gate>,
        knock: &Knock,
        touched: &[String],
    ) -> Vec<Point> {
        let Self { charge, who, mandate, wishes } = self;
        let setup = clock::Setup {
            root: &charge.root.to_string_lossy(),
            patience: charge.patience,
            approved: wishes.approved.as_ref(),
            denied: wishes.denied.as_ref(),
        };
        let deadlines = clock::deadlines(gates, &setup);
        let brought = self.brought();
        let evidence = Evidence {
            charge,
            mandate,
            wishes,
            seen,
            live,
            touched,
            deadlines,
            knock,
            brought: brought.as_deref(),
            who: &who.id,
        };
        evidence.points()
    }
}

/// What the test must not change, and what it is now: the log, and everything in the data directory but sessions.
fn prints(charge: &Charge, data: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let digest = |path: &Path| std::fs::read(path).ok().map(|bytes| Sha256::digest(bytes).to_vec());
    let mut paths = Vec::new();
    if let AuditTarget::Log(path) = &charge.bundle.audit {
        paths.push(charge.root.join(path));
    }
    for directory in ["pins", "memory"] {
        let entries = std::fs::read_dir(data.join(directory)).into_iter().flatten().filter_map(Result::ok);
        paths.extend(entries.map(|entry| entry.path()));
    }
    paths.into_iter().map(|path| (path.clone(), digest(&path))).collect()
}

fn tell(points: &[Point], format: CheckFormat) -> Result<(), Failure> {
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
        "pass": count(Verdict::Pass), "fail": count(Verdict::Fail), "not_applicable": count(Verdict::NotApplicable),
    })
}
