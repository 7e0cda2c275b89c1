//! Servers that are processes, correct and faulty ones.
#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use narrows_mcp::{CallError, CallOutcome, Content, Options, Server, Servers};
use narrows_process::{Environment, Ladder};
use narrows_testkit::example::example;
use narrows_testkit::wait::{alive_with_marker, wait_until};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// `examples/mcp_server.rs`, which cargo builds beside the tests.
fn program() -> String {
    example("narrows-mcp", "mcp_server")
}

/// A unique directory. Its path appears in the command line of every server that runs in it.
struct ServerDirectory(TempDir);

impl ServerDirectory {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn notes(&self) -> PathBuf {
        self.0.path().join("notes")
    }

    fn marker(&self) -> &str {
        self.0.path().to_str().expect("a path of ASCII")
    }

    fn server(&self, name: &str, fault: &str) -> Server {
        let notes = self.notes().into_os_string().into_string().expect("a path of ASCII");
        Server::Stdio {
            name: name.into(),
            command: program(),
            args: vec![fault.into(), notes],
            env: Vec::new(),
        }
    }

    fn options(&self) -> Options {
        let mut env = Environment::empty();
        env.extend([("PATH", "/usr/bin:/bin"), ("BASE", "from the session"), ("BOTH", "session")]);
        Options::new(self.0.path(), env)
    }

    async fn start(&self, fault: &str) -> Servers {
        self.start_with(fault, self.options()).await
    }

    async fn start_with(&self, fault: &str, options: Options) -> Servers {
        let servers = Servers::start(vec![self.server("s", fault)], options, None);
        servers.wait_until_settled(TEST_TIMEOUT).await;
        servers
    }

    async fn noted(&self, text: &str) -> bool {
        wait_until(TEST_TIMEOUT, || {
            std::fs::read_to_string(self.notes()).is_ok_and(|notes| notes.contains(text))
        })
        .await
    }

    #[track_caller]
    fn assert_empty(&self) {
        let alive = self.alive();
        assert!(alive.is_empty(), "still there: {alive:?}");
    }

    fn alive(&self) -> Vec<u32> {
        alive_with_marker(self.marker())
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => panic!("{value} is not an object"),
    }
}

async fn call(servers: &Servers, tool: &str, arguments: Value) -> Result<CallOutcome, CallError> {
    servers.call("s", tool, object(arguments), |_| {}).await
}

fn names(servers: &Servers) -> Vec<String> {
    servers.tools().into_iter().map(|tool| format!("{}/{}", tool.server, tool.name)).collect()
}

fn text(outcome: &CallOutcome) -> &str {
    match &outcome.content[..] {
        [Content::Text(text)] => text,
        content => panic!("{content:?} is not one text"),
    }
}

fn reason(servers: &Servers) -> String {
    let mut failures = servers.failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(servers.failures().is_empty(), "each is reported once");
    failures.remove(0).reason
}

#[tokio::test]
async fn tools_are_listed_and_called() {
    let directory = ServerDirectory::new();
    let servers =
        Servers::start(vec![directory.server("b", ""), directory.server("a", "")], directory.options(), None);
    servers.wait_until_settled(TEST_TIMEOUT).await;
    assert_eq!(names(&servers), ["b/echo", "b/more", "a/echo", "a/more"]);
    let tools = servers.tools();
    assert_eq!((tools[0].read_only, tools[0].destructive, &*tools[0].description), (true, false, "a tool"));
    assert_eq!((tools[1].read_only, tools[1].destructive), (false, true));
    let outcome = servers.call("a", "echo", object(json!({"x": [1, "ä"]})), |_| {}).await.expect("it echoes");
    assert_eq!(text(&outcome), r#"{"x":[1,"ä"]}"#);
    assert_eq!((outcome.structured, outcome.failed), (Some(json!({"x": [1, "ä"]})), false));
    assert_eq!(servers.call("c", "echo", Map::new(), |_| {}).await, Err(CallError::NoServer));
    assert_eq!(servers.failures(), []);
    servers.close().await;
    directory.assert_empty();
    assert!(directory.noted("end of input").await, "a server is asked to exit before it is killed");
}

#[tokio::test]
async fn outcomes_and_refusals() {
    let directory = ServerDirectory::new();
    let servers = directory.start("").await;
    let outcome = call(&servers, "fail", json!({})).await.expect("a tool that fails has an outcome");
    assert_eq!((text(&outcome), outcome.failed), ("it broke", true));
    assert_eq!(text(&call(&servers, "odd", json!({})).await.expect("it is kept")), r#"{"type":"hologram"}"#);
    let refused = CallError::Refused { code: -32602, message: "no | such tool".into() };
    assert_eq!(call(&servers, "refuse", json!({})).await, Err(refused));
    assert_eq!(call(&servers, "input", json!({})).await, Err(CallError::Unsupported("input from the user")));
    servers.close().await;
}

#[tokio::test]
async fn progress_comes_in_order_and_before_the_outcome() {
    let directory = ServerDirectory::new();
    let servers = directory.start("").await;
    let mut heard = Vec::new();
    servers.call("s", "progress", Map::new(), |text| heard.push(text)).await.expect("it ends");
    assert_eq!(heard, ["one | step", "2 of 3", "3"]);
    servers.close().await;
}

#[tokio::test]
async fn a_server_sees_its_own_environment_and_directory() {
    let directory = ServerDirectory::new();
    let mut server = directory.server("s", "");
    if let Server::Stdio { env, .. } = &mut server {
        *env = vec![("MINE".into(), "from the descriptor".into()), ("BOTH".into(), "descriptor".into())];
    }
    let servers = Servers::start(vec![server], directory.options(), None);
    let outcome = call(&servers, "self", json!({})).await.expect("a server that is starting is waited for");
    let text = text(&outcome);
    let mut lines: Vec<&str> = text.lines().collect();
    let cwd = lines.remove(0);
    assert_eq!(PathBuf::from(cwd), directory.0.path().canonicalize().expect("it is there"));
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["BASE=from the session", "BOTH=descriptor", "MINE=from the descriptor", "PATH=/usr/bin:/bin"]
    );
    servers.close().await;
}

#[tokio::test]
async fn a_faulty_server_does_not_delay_the_others() {
    let directory = ServerDirectory::new();
    let mut options = directory.options();
    options.start_timeout = Duration::from_secs(5);
    let bad = ["silent", "exit", "flood", "only-garbage"].map(|fault| directory.server(fault, fault));
    let missing = Server::Stdio {
        name: "missing".into(),
        command: "no-such-program".into(),
        args: vec![],
        env: vec![],
    };
    let mut all = Vec::from(bad);
    all.extend([missing, directory.server("good", ""), directory.server("good", "")]);
    let started = Instant::now();
    let servers = Servers::start(all, options, None);
    let outcome = servers.call("good", "echo", Map::new(), |_| {}).await.expect("it answers");
    assert_eq!(text(&outcome), "{}");
    assert!(started.elapsed() < Duration::from_secs(5), "it waited for others: {:?}", started.elapsed());
    assert_eq!(names(&servers), ["good/echo", "good/more"]);
    servers.wait_until_settled(TEST_TIMEOUT).await;
    let mut failed: Vec<String> = servers.failures().into_iter().map(|failure| failure.to_string()).collect();
    failed.sort();
    let expected = [
        ("exit", "exited with status 1; its stderr ends: cannot find my\\u{1b}[31m configuration"),
        ("flood", "not ready within 5s"),
        ("good", "another server of this name"),
        ("missing", "program \"no-such-program\" not found"),
        (
            "only-garbage",
            "not ready within 5s; its stdout contains text that is not a message: Welcome to the server!",
        ),
        ("silent", "not ready within 5s"),
    ];
    assert_eq!(failed.len(), expected.len(), "{failed:#?}");
    for (failed, (name, reason)) in failed.iter().zip(expected) {
        assert!(failed.starts_with(&format!("MCP server {name:?}: ")) && failed.contains(reason), "{failed}");
        assert!(!failed.contains('\n'));
    }
    assert!(matches!(servers.call("exit", "x", Map::new(), |_| {}).await, Err(CallError::NotRunning(_))));
    servers.close().await;
    directory.assert_empty();
}

#[tokio::test]
async fn waiting_for_servers_has_a_limit() {
    let directory = ServerDirectory::new();
    let servers = Servers::start(vec![directory.server("s", "silent")], directory.options(), None);
    let started = Instant::now();
    servers.wait_until_settled(Duration::from_millis(50)).await;
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(servers.failures(), []);
    servers.close().await;
    directory.assert_empty();
}

#[tokio::test]
async fn a_server_exit_during_a_call_is_explained() {
    let directory = ServerDirectory::new();
    let servers = directory.start("").await;
    let error = call(&servers, "die", json!({})).await.expect_err("it is dead");
    let expected = "it exited with status 3; its stderr ends: out of luck";
    assert_eq!(error, CallError::NotRunning(expected.into()));
    assert_eq!(reason(&servers), expected);
    assert_eq!(names(&servers), [""; 0]);
    assert_eq!(call(&servers, "echo", json!({})).await, Err(CallError::NotRunning(expected.into())));
    servers.close().await;
}

#[tokio::test]
async fn garbage_between_messages_is_skipped() {
    let directory = ServerDirectory::new();
    let servers = directory.start("garbage").await;
    assert_eq!(names(&servers), ["s/echo", "s/more"]);
    servers.close().await;
}

#[tokio::test]
async fn an_endless_list_is_cut() {
    let directory = ServerDirectory::new();
    let mut options = directory.options();
    options.max_tools = 10;
    let servers = directory.start_with("forever", options).await;
    assert_eq!(servers.tools().len(), 10);
    servers.close().await;
    // 64 pages have fewer tools than the limit allows.
    let servers = directory.start("forever").await;
    assert_eq!(servers.tools().len(), 64);
    servers.close().await;
}

#[tokio::test]
async fn requests_of_a_server_are_refused() {
    let directory = ServerDirectory::new();
    let servers = directory.start("").await;
    let outcome = call(&servers, "ask", json!({})).await.expect("it got its answers");
    assert_eq!(text(&outcome), r#"-32601 -32601 {"action":"decline"} {} -32601"#);
    servers.close().await;
}

#[tokio::test]
async fn a_changed_list_is_read_again() {
    let directory = ServerDirectory::new();
    let servers = directory.start("").await;
    call(&servers, "change", json!({})).await.expect("it changes");
    let changed = wait_until(TEST_TIMEOUT, || names(&servers) == ["s/echo", "s/more", "s/new"]).await;
    assert!(changed, "{:?}", names(&servers));
    servers.close().await;
}

#[tokio::test]
async fn a_dropped_call_is_cancelled() {
    let directory = ServerDirectory::new();
    let servers = directory.start("").await;
    {
        let mut slow = Box::pin(call(&servers, "slow", json!({})));
        let waited = tokio::time::timeout(Duration::from_millis(1), &mut slow).await;
        assert!(waited.is_err());
        let working = directory.noted("working on ");
        tokio::select! {
            _ = &mut slow => panic!("it has no answer"),
            working = working => assert!(working),
        }
    }
    let notes = std::fs::read_to_string(directory.notes()).expect("there are notes");
    let id =
        notes.lines().find_map(|line| line.strip_prefix("working on ")).expect("it was called").to_owned();
    assert!(directory.noted(&format!("cancelled {id}")).await);
    call(&servers, "echo", json!({})).await.expect("the server is still there");
    servers.close().await;
}

#[tokio::test]
async fn a_call_ends_at_its_limit_and_is_cancelled() {
    let directory = ServerDirectory::new();
    let mut options = directory.options();
    options.call_timeout = Duration::from_millis(200);
    let servers = directory.start_with("", options).await;
    let late = Err(CallError::Deadline(Duration::from_millis(200)));
    assert_eq!(call(&servers, "slow", json!({})).await, late);
    assert!(directory.noted("cancelled ").await);
    assert_eq!(call(&servers, "wrong-id", json!({})).await, late);
    servers.close().await;
}

/// A blocked write to the server must not delay its end.
#[tokio::test]
async fn a_server_that_does_not_read_is_ended() {
    let directory = ServerDirectory::new();
    let mut options = directory.options();
    options.call_timeout = Duration::from_millis(300);
    let servers = directory.start_with("", options).await;
    let late = Err(CallError::Deadline(Duration::from_millis(300)));
    assert_eq!(call(&servers, "deaf", json!({})).await, late);
    let much = "x".repeat(4 << 20);
    assert_eq!(call(&servers, "echo", json!({"text": much})).await, late);
    let started = Instant::now();
    servers.close().await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    directory.assert_empty();
}

#[tokio::test]
async fn a_long_result_is_cut_and_a_longer_one_refused() {
    let directory = ServerDirectory::new();
    let servers = directory.start("").await;
    let outcome = call(&servers, "long", json!({"bytes": 3 << 20})).await.expect("it is cut");
    assert_eq!(outcome.omitted, 2 << 20);
    assert!(matches!(&outcome.content[0], Content::Text(text) if text.len() == 1 << 20));
    let error =
        call(&servers, "long", json!({"bytes": 17 << 20})).await.expect_err("it is too long to be read");
    assert!(
        matches!(&error, CallError::Refused { message, .. } if message.contains("at most 16777216")),
        "{error}"
    );
    call(&servers, "echo", json!({})).await.expect("the server is still there");
    servers.close().await;
}

#[tokio::test]
async fn a_server_that_refuses_the_handshake_is_connected_without_it() {
    let directory = ServerDirectory::new();
    let servers = directory.start("modern").await;
    assert_eq!(servers.failures(), []);
    assert_eq!(names(&servers), ["s/echo", "s/more"]);
    assert!(directory.noted("listening").await);
    call(&servers, "change", json!({})).await.expect("it changes");
    assert!(wait_until(TEST_TIMEOUT, || names(&servers).len() == 3).await);
    servers.close().await;
    directory.assert_empty();
}

#[tokio::test]
async fn no_process_is_left_after_closing() {
    let directory = ServerDirectory::new();
    let servers = directory.start("daemon").await;
    assert!(wait_until(TEST_TIMEOUT, || directory.alive().len() >= 3).await, "{:?}", directory.alive());
    servers.close().await;
    directory.assert_empty();
}

#[tokio::test]
async fn dropping_the_servers_ends_their_processes() {
    let directory = ServerDirectory::new();
    let servers = directory.start("daemon").await;
    assert!(wait_until(TEST_TIMEOUT, || directory.alive().len() >= 3).await);
    drop(servers);
    assert!(wait_until(TEST_TIMEOUT, || directory.alive().is_empty()).await, "{:?}", directory.alive());
}

#[test]
fn the_end_of_the_runtime_ends_the_processes() {
    let directory = ServerDirectory::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let servers = runtime().block_on(directory.start("daemon"));
    drop(servers);
    let gone = runtime().block_on(wait_until(TEST_TIMEOUT, || directory.alive().is_empty()));
    assert!(gone, "{:?}", directory.alive());
}

/// The process ignores the end of its input and `SIGTERM`.
#[tokio::test]
async fn a_server_that_ignores_sigterm_is_ended() {
    let directory = ServerDirectory::new();
    let mut options = directory.options();
    options.ladder = Ladder { eof_grace: Duration::from_millis(50), term_grace: Duration::from_millis(50) };
    let script = format!("trap '' TERM; while :; do sleep 1; done # {}", directory.marker());
    let stubborn = Server::Stdio {
        name: "s".into(),
        command: "sh".into(),
        args: vec!["-c".into(), script],
        env: vec![],
    };
    let servers = Servers::start(vec![stubborn], options, None);
    assert!(wait_until(TEST_TIMEOUT, || !directory.alive().is_empty()).await);
    servers.close().await;
    directory.assert_empty();
}

#[tokio::test]
async fn a_server_behind_a_bridge_fails_without_a_bridge() {
    let server = Server::Acp { name: "s".into(), id: "1".into(), authorizes: false };
    let servers = Servers::start(vec![server], Options::new("/", Environment::empty()), None);
    servers.wait_until_settled(TEST_TIMEOUT).await;
    assert_eq!(reason(&servers), "the client does not support MCP over ACP");
    servers.close().await;
}
