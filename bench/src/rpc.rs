//! A stream of updates between two processes: the cost of an update at each end, compared with bare pipes
//! that carry the same bytes.

use std::io::{self, BufWriter, Read, Write};
use std::process::{Command, Stdio};

use narrows_acp::v1;
use narrows_link::{Options as LinkOptions, child, stdio};
use narrows_process::{Environment, Ladder, Spec};
use narrows_rpc::{Item, Options, Peer, Session, start};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::measure::{Bar, Demand, Report, peak_memory, reset_peak_memory};

const UPDATES: u32 = 200_000;
/// Number of repetitions. The best counts, because it was disturbed least.
const ROUNDS: usize = 5;

const SESSION: &str = "sess_8f2c41d07a";

/// Resources that one end used for one turn.
#[derive(Clone, Copy)]
struct Cost {
    /// Microseconds of processor time per update.
    cpu: f64,
    /// Peak memory in MiB above the memory before the turn.
    memory: f64,
}

impl Cost {
    const WORST: Self = Self { cpu: f64::INFINITY, memory: 0.0 };

    /// Returns the lesser time and the greater memory of two.
    fn and(self, other: Self) -> Self {
        Self { cpu: self.cpu.min(other.cpu), memory: self.memory.max(other.memory) }
    }
}

/// Streams from a child process, and measures both ends.
pub(crate) fn run() -> Report {
    let floor = bare_pipes();
    let (agent, client) = runtime().block_on(conversation());
    let bar = |name: &str, value, limit| Bar { name: name.to_owned(), value, demand: Demand::AtMost(limit) };
    let row = |name: &str, cost: Cost| (name.to_owned(), vec![cost.cpu, cost.cpu / floor.cpu, cost.memory]);
    Report {
        title: "rpc: 200,000 updates over pipes, per end; best time and worst memory of the rounds",
        columns: ["µs per update", "times the floor", "MiB over idle"].map(str::to_owned).to_vec(),
        rows: vec![row("agent", agent), row("client", client), row("bare pipes", floor)],
        bars: vec![
            bar("agent: µs of processor time per update", agent.cpu, 1.5),
            bar("client: µs of processor time per update", client.cpu, 1.5),
            bar("agent: peak MiB over idle", agent.memory, 4.0),
            bar("client: peak MiB over idle", client.memory, 4.0),
        ],
    }
}

/// Runs the other end: answers each prompt with a stream of updates, and then with their cost.
pub(crate) fn serve() -> io::Result<()> {
    runtime().block_on(async {
        let (peer, mut inbox) = start(stdio::take(&LinkOptions::default())?, Options::agent(|_| true));
        while let Some(item) = inbox.recv().await {
            let Item::Request(prompt) = item else { continue };
            reset_peak_memory();
            let (cpu, memory) = (processor_time(), peak_memory());
            for _ in 0..UPDATES {
                if peer.notify("session/update", &update()).await.is_err() {
                    return Ok(());
                }
            }
            let cpu = (processor_time() - cpu) / f64::from(UPDATES);
            prompt.responder.respond(&json!({"cpu": cpu, "memory": peak_memory() - memory}));
        }
        Ok(())
    })
}

/// Runs the other end of the floor: writes the same prepared lines as fast as possible.
pub(crate) fn pour() -> io::Result<()> {
    let line = narrows_wire::message::notification("session/update", &update())?;
    let mut stdout = BufWriter::with_capacity(64 << 10, io::stdout().lock());
    for _ in 0..UPDATES {
        stdout.write_all(&line)?;
        stdout.write_all(b"\n")?;
    }
    stdout.flush()
}

async fn conversation() -> (Cost, Cost) {
    let program = std::env::current_exe().expect("the bench knows its own program");
    let spec = Spec { args: vec!["rpc-agent".into()], env: Environment::empty(), ..Spec::new(program) };
    let (link, process) =
        child::spawn(spec, &LinkOptions::default()).await.expect("the bench can start itself");
    let (peer, inbox) = start(link, Options::client(|_| true));
    let mut session = peer.session(SESSION).expect("claimed once");
    let (mut agent, mut client) = (Cost::WORST, Cost::WORST);
    for _ in 0..ROUNDS {
        let (theirs, ours) = turn(&peer, &mut session).await;
        (agent, client) = (agent.and(theirs), client.and(ours));
    }
    peer.close();
    drop((peer, inbox, session));
    process.stop(Ladder::default()).await;
    (agent, client)
}

async fn turn(peer: &Peer, session: &mut Session) -> (Cost, Cost) {
    reset_peak_memory();
    let (cpu, memory) = (processor_time(), peak_memory());
    peer.call_in(session, "session/prompt", &json!({"sessionId": SESSION})).await.expect("the agent lives");
    let mut updates = 0;
    loop {
        match session.recv().await.expect("the agent lives") {
            Item::Notification(frame) => {
                assert!(frame.params().is_some());
                updates += 1;
            }
            Item::Answer(answer) => {
                assert_eq!(updates, UPDATES, "all of them, and all before the answer");
                let cpu = (processor_time() - cpu) / f64::from(UPDATES);
                let ours = Cost { cpu, memory: peak_memory() - memory };
                let theirs: Value = answer.outcome.and_then(|response| response.read()).expect("figures");
                let figure = |name| theirs[name].as_f64().expect("a number");
                return (Cost { cpu: figure("cpu"), memory: figure("memory") }, ours);
            }
            Item::Request(_) => {}
        }
    }
}

fn bare_pipes() -> Cost {
    let program = std::env::current_exe().expect("the bench knows its own program");
    let mut best = Cost::WORST;
    for _ in 0..ROUNDS {
        let mut child =
            Command::new(&program).arg("rpc-pour").stdout(Stdio::piped()).spawn().expect("can start itself");
        let mut stdout = child.stdout.take().expect("piped");
        let mut buffer = vec![0; 64 << 10];
        let mut bytes = 0;
        let before = processor_time();
        while let Ok(count @ 1..) = stdout.read(&mut buffer) {
            bytes += count;
        }
        let cpu = (processor_time() - before) / f64::from(UPDATES);
        assert!(bytes > UPDATES as usize * 100);
        child.wait().expect("it ends");
        best = best.and(Cost { cpu, memory: 0.0 });
    }
    best
}

fn update() -> v1::SessionNotification {
    let chunk = v1::ContentChunk::new("a few words ".into());
    v1::SessionNotification::new(SESSION, v1::SessionUpdate::AgentMessageChunk(chunk))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}
