//! The cost that a gate adds to frames: between two links in memory, compared with a relay that only
//! copies.
//!
//! Both are measured by the processor time of the whole process, so the log's thread counts: hashing, and
//! the system calls that write lines to a file in memory, where a sync costs nothing. An event of a call is
//! one update about the call. Each call has two: the policy decides the first, the second reports the
//! result. Each update is parsed, recorded in a separate line, marked, and forwarded after that line is
//! written. The figure is the mean of both.

use std::io;
use std::path::Path;

use bytes::Bytes;
use narrows_audit::Log;
use narrows_govern::{Gate, GateConfig, GateStart, Principal, SystemPathResolver, run_gate};
use narrows_link::{Link, Options, Receiver, Sender, memory};
use narrows_policy::{Access, Class, DefaultApproval, GovernanceRule, GovernanceRuleset, Narrowing, Policy};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::processor;

/// Frames and calls in a round.
const FRAMES: usize = 200_000;
const CALLS: usize = 5_000;
/// Number of repetitions. The best counts, because it was disturbed least.
const ROUNDS: usize = 3;

/// Results in microseconds of processor time.
pub(super) struct Gated {
    /// Cost of each frame through a relay, and the additional cost of the gate.
    pub(super) frame: (f64, f64),
    /// Cost of each event of a call through a relay, and the additional cost of the gate with a log that
    /// never waits for a disk.
    pub(super) call: (f64, f64),
}

/// Measures the updates of a turn, then calls, with and without a gate.
pub(super) fn measure(memory: &Path) -> io::Result<Gated> {
    let chunk: Bytes = update(&json!({"sessionUpdate": "agent_message_chunk",
        "content": {"type": "text", "text": "and so the narrows open into the sound at last"}}));
    let frames = vec![chunk; FRAMES];
    let calls: Vec<Bytes> = (0..CALLS).flat_map(call).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let least = |lines: &[Bytes], gated: bool| -> io::Result<f64> {
        let mut best = f64::INFINITY;
        for round in 0..ROUNDS {
            let log = memory.join(format!("gate-{}-{round}.jsonl", lines.len()));
            best = best.min(runtime.block_on(pass(lines, gated.then_some(log.as_path())))?);
        }
        Ok(best * 1e6 / lines.len() as f64)
    };
    let added = |lines: &[Bytes]| -> io::Result<(f64, f64)> {
        let bare = least(lines, false)?;
        Ok((bare, least(lines, true)? - bare))
    };
    Ok(Gated { frame: added(&frames)?, call: added(&calls)? })
}

fn update(update: &Value) -> Bytes {
    let params = json!({"sessionId": "s", "update": update});
    json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string().into()
}

/// Returns the first and the last update of a call. Both are recorded.
fn call(number: usize) -> [Bytes; 2] {
    let id = format!("call_{number}");
    let input = json!({"path": "notes/a.md", "line": 4, "limit": 200});
    let content =
        json!([{"type": "content", "content": {"type": "text", "text": "bring the café its beans"}}]);
    [
        update(
            &json!({"sessionUpdate": "tool_call", "toolCallId": id, "name": "Read", "title": "Read notes/a.md",
            "kind": "read", "status": "pending", "rawInput": input}),
        ),
        update(&json!({"sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed",
            "content": content, "rawOutput": {"lines": 12}})),
    ]
}

/// Creates a gate with a few rules, of which one allows reading.
fn gate() -> io::Result<Gate> {
    let rule = |name: &str, class, tool: &str| {
        GovernanceRule::new(name, "tool.call", class)
            .with_subject(tool)
            .map_err(|error| io::Error::other(error.to_string()))
    };
    let clauses = vec![
        rule("reads", Class::Allow, "Read")?,
        rule("runs", Class::RequireApproval, "Bash")?,
        rule("never", Class::Deny, "Rm")?,
    ];
    let ruleset = GovernanceRuleset::new(clauses).with_level(Some(2)).with_default(DefaultApproval::OnMutate);
    let policy = Policy::new(Access::High, Narrowing::default()).with_ruleset(ruleset);
    let root = std::env::temp_dir().canonicalize()?;
    let mandate = GateConfig { operator: "notes".into(), roots: vec![root], ..GateConfig::default() };
    let who = Principal { id: "user:ada".into(), ..Principal::default() };
    Ok(Gate::new(
        mandate,
        who,
        policy,
        Box::new(SystemPathResolver),
        GateStart { started_at: 1_700_000_000, nonce: "n".into() },
    ))
}

/// Returns the processor time in seconds to bring the agent's lines to its client.
async fn pass(lines: &[Bytes], log: Option<&Path>) -> io::Result<f64> {
    let (mut client, outer) = memory::pair(&Options::default());
    let (inner, mut agent) = memory::pair(&Options::default());
    let (_inquiries, asked) = mpsc::channel(1);
    let between = match log {
        Some(path) => {
            let log = Log::open(path, narrows_audit::LogOptions::default()).map_err(io::Error::other)?;
            tokio::spawn(async move {
                // Either end may go first. The log is closed below in any case.
                let _ = run_gate(gate()?, outer, inner, log.clone(), asked).await;
                log.close();
                Ok(())
            })
        }
        None => tokio::spawn(relay(outer, inner)),
    };
    open(&mut client, &mut agent).await?;
    let start = processor();
    let speaker = tokio::spawn(send_all(lines.to_vec(), agent.sender));
    let mut frames = Vec::new();
    let mut heard = 0;
    while heard < lines.len() && client.receiver.recv_all(&mut frames).await {
        heard += frames.drain(..).count();
    }
    let took = processor() - start;
    let speaker = speaker.await.map_err(io::Error::other)??;
    drop(client);
    drop((speaker, agent.receiver));
    between.await.map_err(io::Error::other)??;
    if heard == lines.len() {
        Ok(took)
    } else {
        Err(io::Error::other(format!("{heard} of {} lines came", lines.len())))
    }
}

/// Sends all lines, and returns the sender: dropping it would end the link.
async fn send_all(lines: Vec<Bytes>, sender: Sender) -> io::Result<Sender> {
    for line in lines {
        sender.send(line).await.map_err(|_| io::Error::other("nobody listens"))?;
    }
    Ok(sender)
}

async fn open(client: &mut Link, agent: &mut Link) -> io::Result<()> {
    let cwd = std::env::temp_dir().canonicalize()?;
    let asked = [
        ("session/new", json!({"cwd": cwd, "mcpServers": []})),
        ("session/prompt", json!({"sessionId": "s", "prompt": []})),
    ];
    for (id, (method, params)) in asked.into_iter().enumerate() {
        send(&client.sender, &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await?;
        receive(&mut agent.receiver).await?;
        if method == "session/new" {
            send(&agent.sender, &json!({"jsonrpc": "2.0", "id": id, "result": {"sessionId": "s"}})).await?;
            receive(&mut client.receiver).await?;
        }
    }
    Ok(())
}

async fn send(sender: &Sender, value: &Value) -> io::Result<()> {
    sender.send(value.to_string().into()).await.map_err(|_| io::Error::other("nobody listens"))
}

async fn receive(receiver: &mut Receiver) -> io::Result<()> {
    receiver.recv().await.map(drop).ok_or_else(|| io::Error::other("nobody speaks"))
}

async fn relay(one: Link, other: Link) -> io::Result<()> {
    let copy = async |mut from: Receiver, to: Sender| {
        let mut frames = Vec::new();
        while from.recv_all(&mut frames).await {
            for frame in frames.drain(..) {
                if to.send(frame.bytes().clone()).await.is_err() {
                    return;
                }
            }
        }
        to.close();
    };
    tokio::select! {
        () = copy(one.receiver, other.sender) => {}
        () = copy(other.receiver, one.sender) => {}
    }
    Ok(())
}
