//! `narrows serve --listen ws://`: authentication and isolation of network clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::bus_support::{Bus, Peer};
use crate::serve_support::{DEMO, Governed, READ, acp, server};

/// Starts a server that listens for WebSocket and HTTP.
pub(crate) fn listening<'a>(governed: &'a Governed, args: &[&str]) -> Bus<'a> {
    let places = ["--listen", "ws://127.0.0.1:0/acp"];
    Bus::started(&governed.dir, governed.serve(&[&places[..], args].concat()))
}

/// Creates a token in the file of [`TOKENS`].
pub(crate) fn token(governed: &Governed, name: &str, scopes: &[&str]) -> String {
    let mut command = governed.dir.narrows(["token", "new", name, "--file", "tokens.toml"]);
    command.args(scopes.iter().flat_map(|scope| ["--scope", scope]));
    let made = command.output().expect("the program starts");
    String::from_utf8(made.stdout).expect("UTF-8").trim().to_owned()
}

/// The arguments for the file of [`token`].
pub(crate) const TOKENS: [&str; 2] = ["--tokens", "tokens.toml"];

/// Connects a client with this token.
fn client(bus: &Bus<'_>, token: &str) -> Peer {
    Peer::web(&bus.at[0], &[("authorization", &format!("Bearer {token}"))])
        .expect("the connection is accepted")
}

fn initialize(peer: &mut Peer, meta: &Value) -> Value {
    let params = json!({"protocolVersion": 1, "clientCapabilities": {}, "_meta": meta});
    let answer = peer.call(&json!(0), "initialize", &params);
    assert_eq!(answer["result"]["_meta"]["aip44"]["operator"], "tidy", "{answer}");
    // Only the user who started the server gets the notice about trust.
    assert_eq!(answer["result"]["_meta"]["aip44"]["notice"], Value::Null, "{answer}");
    answer
}

/// Initializes a client and opens a session.
pub(crate) fn opened(peer: &mut Peer, governed: &Governed) -> String {
    initialize(peer, &json!({}));
    new(peer, governed)
}

fn new(peer: &mut Peer, governed: &Governed) -> String {
    let cwd = governed.root().canonicalize().expect("the file exists");
    let answer = peer.call(&json!(1), "session/new", &json!({"cwd": cwd, "mcpServers": []}));
    assert!(answer["result"]["sessionId"].is_string(), "{answer}");
    answer["result"]["sessionId"].as_str().expect("a text").to_owned()
}

/// Returns the identities in the log with their methods, each once.
fn identities(governed: &Governed) -> Vec<String> {
    let entries = governed.entries();
    let all = entries.iter().filter(|entry| entry["action"] != "manifest.pinned");
    let about = |entry: &Value, key: &str| entry["metadata"]["aip44"][key].as_str().unwrap_or("-").to_owned();
    let mut names: Vec<String> = all
        .map(|entry| format!("{} {}", about(entry, "identity"), about(entry, "identity_method")))
        .collect();
    names.sort();
    names.dedup();
    names
}

fn own_name() -> String {
    let id = Command::new("id").arg("-un").output().expect("there is a user");
    String::from_utf8(id.stdout).expect("a name").trim().to_owned()
}

#[test]
fn clients_with_different_tokens_are_isolated() {
    let governed = server();
    let (ada, bob) = (token(&governed, "ada", &[]), token(&governed, "bob", &[]));
    let bus = listening(&governed, &[&DEMO[..], &TOKENS].concat());
    let mut first = client(&bus, &ada);
    let session = opened(&mut first, &governed);
    first.prompt(&json!(2), &session, "hello");
    assert_eq!(first.answer(&json!(2))["result"]["stopReason"], "end_turn");
    let mut other = client(&bus, &bob);
    opened(&mut other, &governed);
    let load = |name: &str| json!({"sessionId": name, "cwd": governed.root(), "mcpServers": []});
    let foreign = other.call(&json!(3), "session/load", &load(&session));
    let unknown = other.call(&json!(4), "session/load", &load("sess_none"));
    let without = |answer: &Value, name: &str| answer["error"].to_string().replace(name, "NAME");
    assert_eq!(foreign["error"]["code"], -32002, "{foreign}");
    assert_eq!(without(&foreign, &session), without(&unknown, "sess_none"));
    let listed = other.call(&json!(5), "session/list", &json!({}));
    assert!(!listed.to_string().contains(&session), "{listed}");
    // The same identity on another connection.
    drop(first);
    let mut again = client(&bus, &ada);
    initialize(&mut again, &json!({}));
    let listed = again.call(&json!(5), "session/list", &json!({}));
    assert!(listed.to_string().contains(&session), "{listed}");
    bus.stop();
    governed.actions();
    assert_eq!(identities(&governed), ["token:ada token", "token:bob token"]);
}

#[test]
fn local_clients_are_identified_by_the_system() {
    let governed = Governed::bridge(READ);
    let bus = listening(&governed, &[]);
    let mut peer = Peer::web(&bus.at[0], &[]).expect("the connection is accepted");
    opened(&mut peer, &governed);
    bus.stop();
    governed.actions();
    assert_eq!(identities(&governed), [format!("user:{} socket-owner", own_name())]);
}

#[test]
fn unlisted_hosts_and_origins_are_refused() {
    let governed = Governed::bridge(READ);
    let bus = listening(&governed, &["--origin", "https://app.example", "--host", "op.example"]);
    let check = |headers: &[(&'static str, &str)], status: Option<u16>| {
        assert_eq!(Peer::web(&bus.at[0], headers).err(), status, "{headers:?}");
    };
    check(&[("origin", "https://app.example")], None);
    check(&[("host", "op.example")], None);
    check(&[("origin", "https://evil.example")], Some(403));
    check(&[("host", "evil.example")], Some(403));
    bus.stop();
}

#[test]
fn the_identities_file_may_narrow_a_token() {
    let governed = Governed::bridge(READ);
    let token = token(&governed, "ada", &["kind:read"]);
    governed.dir.file("who.toml", "[[identity]]\nwho = \"token:ada\"\nscopes = [\"kind:edit\"]\n");
    let bus = listening(&governed, &["--tokens", "tokens.toml", "--identities", "who.toml"]);
    let mut peer = client(&bus, &token);
    let session = opened(&mut peer, &governed);
    peer.prompt(&json!(2), &session, "go");
    assert_ne!(peer.answer(&json!(2))["result"]["stopReason"], "end_turn");
    bus.stop();
    let entries = governed.entries();
    let decided = entries.iter().find(|entry| entry["action"] == "policy.resolved").expect("a decision");
    assert_eq!(decided["policy"]["decision"], "deny", "{decided}");
}

#[test]
fn a_client_over_the_limit_gets_a_retry_answer() {
    let governed = Governed::bridge(READ);
    let [ada, bob, carol] = ["ada", "bob", "carol"].map(|name| token(&governed, name, &[]));
    let limits = ["--max-connections", "2", "--limit", "max_connections_per_identity=1"];
    let bus = listening(&governed, &[&limits[..], &TOKENS].concat());
    let mut first = client(&bus, &ada);
    opened(&mut first, &governed);
    let proof = format!("Bearer {ada}");
    assert_eq!(Peer::web(&bus.at[0], &[("authorization", &proof)]).err(), Some(429), "one of each identity");
    let mut second = client(&bus, &bob);
    opened(&mut second, &governed);
    let mut third = client(&bus, &carol);
    third.request(&json!(0), "initialize", &json!({"protocolVersion": 1}));
    assert_eq!(third.answer(&json!(0))["error"]["data"]["condition"], "backpressure");
    assert_eq!(third.closed(), Some(1013), "all slots are taken");
    drop(first);
    governed.dir.wait_for(|| {
        let proof = format!("Bearer {carol}");
        // The slot of the client's earlier connection may not be free yet.
        let Ok(mut next) = Peer::web(&bus.at[0], &[("authorization", &proof)]) else { return false };
        next.request(&json!(0), "initialize", &json!({"protocolVersion": 1, "clientCapabilities": {}}));
        next.next().is_some_and(|answer| answer.get("result").is_some())
    });
    bus.stop();
}

#[test]
fn a_revoked_token_ends_its_connections() {
    let governed = Governed::bridge("[[turn]]\nsteps = [{ wait_cancel = true }]\n");
    let token = token(&governed, "ada", &[]);
    let bus = listening(&governed, &TOKENS);
    let mut peer = client(&bus, &token);
    let session = opened(&mut peer, &governed);
    peer.prompt(&json!(2), &session, "go");
    let revoked = governed.dir.narrows(["token", "revoke", "ada", "--file", "tokens.toml"]).status();
    assert!(revoked.is_ok_and(|status| status.success()));
    assert_eq!(peer.closed(), Some(4401));
    governed.dir.wait_for(|| governed.actions().last().is_some_and(|action| action == "session.closed"));
    let said = bus.stop();
    assert!(!said.contains(&token), "{said}");
}

#[test]
fn connected_clients_are_notified_of_the_shutdown() {
    let governed = Governed::bridge("[[turn]]\nsteps = [{ wait_cancel = true }]\n");
    let bus = listening(&governed, &[]);
    let mut peer = Peer::web(&bus.at[0], &[]).expect("the connection is accepted");
    let session = opened(&mut peer, &governed);
    peer.prompt(&json!(2), &session, "go");
    bus.stop();
    assert_eq!(peer.closed(), Some(1001));
    let actions = governed.actions();
    assert_eq!(actions.last().map(String::as_str), Some("session.closed"), "{actions:?}");
}

#[test]
fn a_connection_survives_its_socket_for_its_owner_only() {
    let governed = Governed::bridge(READ);
    let (ada, bob) = (token(&governed, "ada", &[]), token(&governed, "bob", &[]));
    let bus = listening(&governed, &TOKENS);
    let mut peer = client(&bus, &ada);
    let answer = initialize(&mut peer, &json!({"narrows": {"resume": 1}}));
    let connection = answer["result"]["_meta"]["narrows"]["resume"]["connection"].clone();
    assert!(connection.is_string(), "{answer}");
    let session = new(&mut peer, &governed);
    drop(peer);
    let resume = json!({"connection": connection, "received": 2});
    let mut thief = client(&bus, &bob);
    assert_eq!(thief.call(&json!(7), "_narrows/resume", &resume)["error"]["code"], -32002);
    let mut again = client(&bus, &ada);
    assert_eq!(again.call(&json!(7), "_narrows/resume", &resume)["result"]["received"], 2);
    again.prompt(&json!(2), &session, "go");
    assert_eq!(again.answer(&json!(2))["result"]["stopReason"], "end_turn");
    bus.stop();
    let actions = governed.actions();
    assert_eq!(actions.iter().filter(|action| *action == "operator.invoked").count(), 1, "{actions:?}");
    assert_eq!(identities(&governed), ["token:ada token"]);
}

/// Runs openssl in the workspace; returns `false` if it is missing.
fn openssl(governed: &Governed, arguments: &str) -> bool {
    let mut command = Command::new("openssl");
    match command.current_dir(governed.dir.path()).args(arguments.split(' ')).output() {
        Err(_) => false,
        Ok(done) => {
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            true
        }
    }
}

#[test]
fn a_certificate_identifies_its_client() {
    let governed = Governed::bridge(READ);
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    let root = format!(
        "req -x509 {new} -keyout ca.key -out ca.pem -subj /CN=test -addext basicConstraints=critical,CA:TRUE"
    );
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if !has_curl || !openssl(&governed, &root) {
        return println!("skipped: there is no curl or no openssl");
    }
    for (name, subject) in [("server", "/CN=op"), ("client", "/CN=laptop")] {
        let request = new.trim_end_matches(" -days 2");
        openssl(
            &governed,
            &format!(
                "req {request} -keyout {name}.key -out {name}.csr -subj {subject} -addext subjectAltName=IP:127.0.0.1"
            ),
        );
        openssl(
            &governed,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copyall -out {name}.pem"
            ),
        );
    }
    let places = [
        "--listen",
        "wss://127.0.0.1:0/acp",
        "--cert",
        "server.pem",
        "--key",
        "server.key",
        "--client-ca",
        "ca.pem",
    ];
    let bus = Bus::started(&governed.dir, governed.serve(&places));
    let before = governed.dir.alive().len();
    let post = |more: &[&str]| {
        let body =
            json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}});
        let mut curl = Command::new("curl");
        curl.current_dir(governed.dir.path());
        curl.args([
            "-q",
            "--noproxy",
            "*",
            "-sS",
            "-i",
            "--max-time",
            "30",
            "--http1.1",
            "--cacert",
            "ca.pem",
        ]);
        curl.args(["-H", "content-type: application/json", "--data-binary", &body.to_string()]);
        curl.arg(bus.at[0].replacen("wss://", "https://", 1));
        let done = curl.args(more).output().expect("the program starts");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let refused = post(&[]);
    assert!(!refused.contains("200 OK"), "{refused}");
    assert!(governed.dir.alive().len() <= before, "no agent is started for unauthenticated clients");
    let answer = post(&["--cert", "client.pem", "--key", "client.key"]);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("cert:laptop"), "{answer}");
    bus.stop();
    governed.actions();
    assert!(
        identities(&governed).iter().all(|known| known == "cert:laptop certificate"),
        "{:?}",
        identities(&governed)
    );
}

#[test]
fn http_is_spoken_on_the_same_port() {
    let governed = Governed::bridge(READ);
    let token = token(&governed, "ada", &[]);
    let bus = listening(&governed, &TOKENS);
    let before = governed.dir.alive().len();
    let address = bus.at[0]
        .trim_start_matches("http://")
        .trim_start_matches("ws://")
        .split('/')
        .next()
        .expect("an address")
        .to_owned();
    let post = |proof: &str| {
        let message =
            json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}});
        let body = message.to_string();
        let mut stream = TcpStream::connect(&address).expect("the server listens");
        let head = format!(
            "POST /acp HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n{proof}Content-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("the peer reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("UTF-8");
        answer
    };
    let refused = post("");
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    assert!(governed.dir.alive().len() <= before, "no agent is started for unauthenticated clients");
    let answer = post(&format!("Authorization: Bearer {token}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"operator\":\"tidy\""), "{answer}");
    bus.stop();
    governed.actions();
}

#[test]
fn a_websocket_manifest_prints_its_address() {
    let governed = Governed::bridge(READ);
    let text = acp("bridge", "governance-aware", "    operator: ./OPERATOR.md\n");
    governed.file("ACP.md", &text.replace("transport: stdio", "transport: websocket"));
    let mut command = governed.serve(&[]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("narrows starts");
    let lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    // If another process uses the port, there is an error instead.
    let told = lines.into_iter().find(|line| line.contains("127.0.0.1:8787"));
    child.kill().expect("a child process");
    child.wait().expect("the process ends");
    let told = told.expect("the line with the address");
    assert!(
        told.starts_with("listening on ws://127.0.0.1:8787/acp") || told.contains("cannot listen"),
        "{told}"
    );
}
