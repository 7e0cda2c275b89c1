//! One turn with an agent: `cargo run -p narrows-rpc --example one_turn -- AGENT [ARG…]`.
#![expect(clippy::print_stdout, reason = "the answer goes there")]

use std::error::Error;
use std::time::Duration;

use narrows_link::Options as LinkOptions;
use narrows_link::child::{self, AllowList, Environment, Ladder, Spec};
use narrows_rpc::{Item, Options, Peer, start};
use serde_json::{Value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().ok_or("which agent?")?;
    let env = Environment::filtered(std::env::vars_os(), &AllowList::default());
    let spec = Spec { args: words.collect(), env, ..Spec::new(program) };
    let (link, agent) = child::spawn(spec, &LinkOptions::default()).await?;
    // Only updates are served, so every request of the agent is answered with -32601.
    let (peer, mut inbox) = start(link, Options::client(|method| method == "session/update"));
    // Messages without a session are ignored, but an inbox that is not read would block the conversation.
    tokio::spawn(async move { while inbox.recv().await.is_some() {} });
    let answer = turn(&peer).await;
    // In any case the agent and its descendants have exited when this returns.
    peer.close();
    agent.stop(Ladder::default()).await;
    println!("{}", answer?);
    Ok(())
}

async fn turn(peer: &Peer) -> Result<String, Box<dyn Error>> {
    let soon = Duration::from_secs(30);
    let _: Value =
        peer.request("initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}), soon).await?;
    let cwd = std::env::current_dir()?;
    let new: Value = peer.request("session/new", &json!({"cwd": cwd, "mcpServers": []}), soon).await?;
    let mut session = peer.session(new["sessionId"].as_str().ok_or("no session id")?)?;
    let prompt = json!({"sessionId": session.id(), "prompt": [{"type": "text", "text": "Hello!"}]});
    peer.call_in(&session, "session/prompt", &prompt).await?;
    let mut text = String::new();
    while let Some(item) = session.recv().await {
        match item {
            Item::Notification(frame) => {
                let update: Value = frame.read_params()?;
                if update["update"]["sessionUpdate"] == "agent_message_chunk" {
                    text += update["update"]["content"]["text"].as_str().unwrap_or_default();
                }
            }
            // All updates of the turn precede its response.
            Item::Answer(answer) => return answer.outcome.map(|_| text).map_err(Into::into),
            Item::Request(_) => {}
        }
    }
    Err("the agent has gone".into())
}
