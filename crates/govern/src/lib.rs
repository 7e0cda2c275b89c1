//! The gate between a client and an agent: who may do what, decided, recorded, and only then done.
//!
//! A [`Gate`] stands on one connection. It is a pure state machine: messages of both sides go in, and messages, events for
//! the audit log and, at worst, the order to end the agent come out. What a [`GateConfig`] does not grant and what the policy
//! does not allow is neither shown nor done; whatever is, was recorded before. [`stand`] puts one on two links and a log.
//!
//! # A manifest, an operator, and any link
//!
//! A manifest is loaded by [`narrows_manifest::load`], or as here from memory by [`narrows_manifest::resolve`].
//! [`GateConfig::of`] and [`policy_of`] say what comes of it. Which links the gate stands on is all the same to it: here both
//! are pairs in memory, and the agent is played by hand.
//!
//! ```
//! use std::path::Path;
//!
//! use narrows_audit::{Log, Options, verify};
//! use narrows_govern::{Disk, Gate, Mandate, Principal, Setting, policy_of, stand};
//! use narrows_link::{Link, memory};
//! use narrows_manifest::{Memory, resolve};
//! use serde_json::{Value, json};
//!
//! async fn say(link: &Link, message: Value) {
//!     link.sender.send(message.to_string().into()).await.expect("somebody listens");
//! }
//!
//! async fn hear(link: &mut Link) -> Value {
//!     let frame = link.receiver.recv().await.expect("somebody speaks");
//!     serde_json::from_slice(frame.bytes()).expect("a message")
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let files = Memory::default()
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
//! let place = tempfile::tempdir()?;
//! let root = place.path().canonicalize()?;
//! let log = Log::open(&root.join("audit-log.jsonl"), Options::default())?;
//! let who = Principal { id: "user:ada".into(), ..Principal::default() };
//! let setting = Setting { began: 1_700_000_000, nonce: "unguessable".into() };
//! let mandate = Mandate::of(&bundle, vec![root.clone()]);
//! let gate = Gate::new(mandate, who, policy_of(&bundle), Box::new(Disk), setting);
//!
//! let (mut client, outer) = memory::pair(&narrows_link::Options::default());
//! let (inner, mut agent) = memory::pair(&narrows_link::Options::default());
//! let (_inquiries, asked) = tokio::sync::mpsc::channel(1);
//! let standing = tokio::spawn(stand(gate, outer, inner, log.clone(), asked));
//!
//! // A session outside the workspace never reaches the agent.
//! let new = |id: u8, cwd: &Path| json!({"jsonrpc": "2.0", "id": id, "method": "session/new",
//!     "params": {"cwd": cwd, "mcpServers": []}});
//! say(&client, new(1, Path::new("/"))).await;
//! assert_eq!(hear(&mut client).await["error"]["data"]["code"], "cwd_outside_root");
//!
//! // One inside does, and what the agent says in it comes back, as far as it may.
//! say(&client, new(2, &root)).await;
//! assert_eq!(hear(&mut agent).await["method"], "session/new");
//! say(&agent, json!({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "s"}})).await;
//! assert_eq!(hear(&mut client).await["result"]["sessionId"], "s");
//! for (id, kind) in [("one", "delete"), ("two", "read")] {
//!     let call = json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "Look", "kind": kind,
//!         "status": "pending", "rawInput": {"path": "a.txt"}});
//!     say(&agent, json!({"jsonrpc": "2.0", "method": "session/update",
//!         "params": {"sessionId": "s", "update": call}})).await;
//! }
//! // The operator has no tool that deletes, so the first is not shown.
//! assert_eq!(hear(&mut client).await["params"]["update"]["toolCallId"], "two");
//!
//! client.sender.close();
//! standing.await?;
//! log.close();
//! let report = verify::log(&root.join("audit-log.jsonl"), &verify::Options::default())?;
//! assert!(report.bad.is_none() && report.entries > 3);
//! # Ok(())
//! # }
//! ```
//!
//! # What a gate would say
//!
//! [`foresee`] tells what would be decided about a call, without a conversation. Whoever keeps a gate without [`stand`],
//! such as a simulation with a clock of its own, implements [`GateOutput`].

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
    ApprovalRequest, ApprovalVote, AuditSeq, Gate, GateOutput, GateStart, GateTime, SessionSlot,
    SessionSlots, SignatureValidity, ToolCheck, VoteError, VoteSignature, is_signer,
};
pub use identity::{IdentityMethod, Principal, SessionOwners};
pub use path_resolver::{Disk, PathRefusal, PathResolver, resolve_in_roots};
pub use proxy::{Neighbor, ProxyCore, ProxyOutput, is_for_proxy};
pub use proxy_driver::split_proxy_link;
pub use recovery::{GatePresence, RecoveryError};
pub use shared_budget::{AuditLogBudget, BudgetError, BudgetSource, BudgetUse};
pub use timeouts::GateTimeouts;
pub use unauthenticated::UnauthenticatedGate;
