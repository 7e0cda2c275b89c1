//! The gate between a client and an agent: every action is decided, recorded, and only then done.
//!
//! A [`Gate`] serves one connection. It is a pure state machine. Its inputs are the messages of both peers.
//! Its outputs are messages, audit events and, after a violation, the order to end the agent. An action that
//! its [`GateConfig`] does not grant, or that the policy does not allow, is neither shown nor done. An
//! allowed action is recorded first. [`run_gate`] runs a gate on two links and an audit log.
//!
//! # Example
//!
//! [`narrows_manifest::load`] loads a manifest; here [`narrows_manifest::resolve`] reads one from memory.
//! [`GateConfig::from_bundle`] and [`bundle_policy`] derive the settings and the policy. Any link works: here
//! both are pairs in memory, and the example plays the client and the agent.
//!
//! ```
//! use std::path::Path;
//!
//! use narrows_audit::{Log, LogOptions, verify};
//! use narrows_govern::{SystemPathResolver, Gate, GateConfig, GateStart, Principal, bundle_policy, run_gate};
//! use narrows_link::{Link, memory};
//! use narrows_manifest::{MemoryFiles, resolve};
//! use serde_json::{Value, json};
//!
//! async fn send(link: &Link, message: Value) {
//!     link.sender.send(message.to_string().into()).await.expect("an open link");
//! }
//!
//! async fn receive(link: &mut Link) -> Value {
//!     let frame = link.receiver.recv().await.expect("an open link");
//!     serde_json::from_slice(frame.bytes()).expect("a message")
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let files = MemoryFiles::default()
//!     .with("notes/ACP.md", "---\nname: notes\nid: notes\ndescription: Keeps notes.\nversion: 1.0.0\n\
//!         kind: server\ntransport: stdio\nmetadata:\n  aip44:\n    acp_rev: \"272bf79\"\n\
//!         \x20   tier: governance-aware\n    operator: ./OPERATOR.md\n---\n")
//!     .with("notes/OPERATOR.md", "---\nname: Notes\nid: notes\npersona_summary: Keeps notes.\nversion: 1.0.0\n\
//!         profile: {role: Keep notes., voice: Short., boundaries: []}\ntools: [{id: 'kind:read'}]\n\
//!         governance: {audit_log: 'audit:default', autonomy: autonomous}\n---\n")
//!     .with("notes/GOVERNANCE.md", "---\nschema: governance.workspace/v1\nname: home\ntitle: Home\n\
//!         description: Looking is free.\nversion: 1.0.0\n---\n");
//! let bundle = resolve(&files, Path::new("notes/ACP.md"))?;
//!
//! let directory = tempfile::tempdir()?;
//! let root = directory.path().canonicalize()?;
//! let log = Log::open(&root.join("audit-log.jsonl"), LogOptions::default())?;
//! let principal = Principal { id: "user:ada".into(), ..Principal::default() };
//! let start = GateStart { started_at: 1_700_000_000, nonce: "unguessable".into() };
//! let config = GateConfig::from_bundle(&bundle, vec![root.clone()]);
//! let gate = Gate::new(config, principal, bundle_policy(&bundle), Box::new(SystemPathResolver), start);
//!
//! let (mut client, outer) = memory::pair(&narrows_link::Options::default());
//! let (inner, mut agent) = memory::pair(&narrows_link::Options::default());
//! let (_sender, requests) = tokio::sync::mpsc::channel(1);
//! let running = tokio::spawn(run_gate(gate, outer, inner, log.clone(), requests));
//!
//! // A session outside the workspace never reaches the agent.
//! let new = |id: u8, cwd: &Path| json!({"jsonrpc": "2.0", "id": id, "method": "session/new",
//!     "params": {"cwd": cwd, "mcpServers": []}});
//! send(&client, new(1, Path::new("/"))).await;
//! assert_eq!(receive(&mut client).await["error"]["data"]["code"], "cwd_outside_root");
//!
//! // One inside does, and the client gets the updates in it that are allowed.
//! send(&client, new(2, &root)).await;
//! assert_eq!(receive(&mut agent).await["method"], "session/new");
//! send(&agent, json!({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "s"}})).await;
//! assert_eq!(receive(&mut client).await["result"]["sessionId"], "s");
//! for (id, kind) in [("one", "delete"), ("two", "read")] {
//!     let call = json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "Look", "kind": kind,
//!         "status": "pending", "rawInput": {"path": "a.txt"}});
//!     send(&agent, json!({"jsonrpc": "2.0", "method": "session/update",
//!         "params": {"sessionId": "s", "update": call}})).await;
//! }
//! // The operator has no tool that deletes, so the first call is not shown.
//! assert_eq!(receive(&mut client).await["params"]["update"]["toolCallId"], "two");
//!
//! client.sender.close();
//! running.await?;
//! log.close();
//! let report = verify::log(&root.join("audit-log.jsonl"), &verify::VerifyOptions::default())?;
//! assert!(report.bad.is_none() && report.entries > 3);
//! # Ok(())
//! # }
//! ```
//!
//! # Other uses
//!
//! [`preview_decision`] returns the decision about a call without a conversation. A driver other than
//! [`run_gate`], such as a simulation with its own clock, implements [`GateOutput`].

mod audit_events;
mod authorizer;
mod batches;
mod call;
mod config;
mod coverage;
mod driver;
mod gate;
mod identity;
mod lifecycle;
mod log_text;
mod lookalike_keys;
mod meta;
mod path_resolver;
mod protected_files;
mod proxy;
mod proxy_driver;
mod recovery;
mod request_ids;
mod resource_uri;
mod scope;
mod shared_budget;
mod timeouts;
mod unauthenticated;
mod unique_keys;

pub use authorizer::preview_decision;
pub use config::{Autonomy, GateConfig, bundle_policy, mcp_server_config};
pub use coverage::{BUILT_IN_TOOLS, PolicyCoverage};
pub use driver::{GateExit, GateRequest, run_gate};
pub use gate::{
    ApprovalRequest, ApprovalSummary, ApprovalVote, AuditSeq, Gate, GateOutput, GateStart, GateTime,
    SessionSlot, SessionSlots, SignatureValidity, ToolCheck, VoteError, VoteSignature, is_signer,
};
pub use identity::{IdentityMethod, Principal, SessionOwners};
pub use path_resolver::{PathRefusal, PathResolver, SystemPathResolver, resolve_in_roots};
pub use proxy::{Neighbor, ProxyCore, ProxyOutput, is_for_proxy};
pub use proxy_driver::split_proxy_link;
pub use recovery::{GatePresence, RecoveryError};
pub use shared_budget::{AuditLogBudget, BudgetError, BudgetSource, BudgetUse};
pub use timeouts::GateTimeouts;
pub use unauthenticated::UnauthenticatedGate;
