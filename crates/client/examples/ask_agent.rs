//! One turn with an agent, under a policy: `cargo run -p narrows-client --example ask_agent -- AGENT [ARG…]`.
#![expect(clippy::print_stdout, reason = "the answer goes there")]

use std::error::Error;
use std::sync::Arc;

use narrows_client::{Agent, EventBody, Offer, RunRequest, Runtime, SessionConfig};
use narrows_policy::{Access, Narrowing, Policy};
use narrows_process::{AllowList, Environment, Spec};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1);
    let mut spec = Spec::new(words.next().ok_or("which agent?")?);
    spec.args = words.collect();
    // The agent gets the ordinary environment variables, and no keys.
    spec.env = Environment::filtered(std::env::vars_os(), &AllowList::default());
    let offer = Offer { read_files: true, write_files: false, run_commands: false };
    let runtime = Runtime::start(Agent::new("mine", spec), offer).await?;

    // The agent may only read, and no user can be asked.
    let policy = Policy::new(Access::Low, Narrowing::default());
    let config = SessionConfig::new(std::env::current_dir()?, Arc::new(policy));
    let session = runtime.open_session(config).await?;

    let mut run = session.run(RunRequest::text("Hello!")).await?;
    while let Some(event) = run.next().await {
        match event.body {
            EventBody::AssistantDelta { text_delta } => print!("{text_delta}"),
            EventBody::ToolCall { tool_name, .. } => println!("[{tool_name}]"),
            _ => {}
        }
    }
    let result = run.result().await;
    println!("\n{}", result.status);

    // After this, the agent and its process tree have ended in any case.
    session.close().await;
    runtime.close().await;
    Ok(())
}
