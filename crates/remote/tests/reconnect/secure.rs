//! TLS and tokens over both transports: which servers are trusted, and which clients are admitted.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narrows_remote::client::{
    ClientCertificateFiles, ClientOptions, Connected, ConnectionLost, DialError, connect,
};
use narrows_remote::identity::Identity;
use narrows_remote::server::{Backend, ClientAuth, HttpLimits, HttpListenerConfig, HttpServer, Opening};
use narrows_remote::server_tls::TlsFiles;
use narrows_remote::tokens;
use serde_json::{Value, json};

use crate::breaker::Breaker;
use crate::cuts::{ask, initialize, recv};
use crate::cutter::Cutter;

/// Runs openssl in `directory`. Returns `false` if it is not installed.
fn openssl(directory: &Path, arguments: &str) -> bool {
    let done = Command::new("openssl").current_dir(directory).args(arguments.split(' ')).output();
    done.is_ok_and(|done| {
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        true
    })
}

/// Creates two authorities, a certificate for localhost by the first, a client certificate by each, and one by the
/// first without an identity.
fn authorities(at: &Path) -> bool {
    let new = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    let authority = |name: &str| {
        let extension = "-addext basicConstraints=critical,CA:TRUE";
        openssl(
            at,
            &format!(
                "req -x509 {new} -days 2 -keyout {name}.key -out {name}.pem -subj /CN={name} {extension}"
            ),
        )
    };
    authority("ca")
        && authority("other")
        && openssl(
            at,
            &format!(
                "req {new} -keyout bus.key -out bus.csr -subj /CN=bus -addext subjectAltName=DNS:localhost"
            ),
        )
        && openssl(
            at,
            "x509 -req -in bus.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copyall -out bus.pem",
        )
        && openssl(at, &format!("req {new} -keyout nameless.key -out nameless.csr -subj /O=nobody -addext extendedKeyUsage=clientAuth"))
        && openssl(
            at,
            "x509 -req -in nameless.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -copy_extensions copyall -out nameless.pem",
        )
        && ["ca", "other"].into_iter().all(|by| {
            let usage = "-addext extendedKeyUsage=clientAuth";
            openssl(at, &format!("req {new} -keyout by-{by}.key -out by-{by}.csr -subj /CN=laptop {usage}"))
                && openssl(
                    at,
                    &format!(
                        "x509 -req -in by-{by}.csr -CA {by}.pem -CAkey {by}.key -CAcreateserial -days 2 -copy_extensions copyall -out by-{by}.pem"
                    ),
                )
        })
}

/// Answers every request like `initialize`.
struct Agent;

impl Backend for Agent {
    fn open(&self, _: Identity, _: usize) -> Opening<'_> {
        Box::pin(async {
            let (ours, theirs) = UnixStream::pair()?;
            std::thread::spawn(move || {
                let mut out = &theirs;
                for line in BufReader::new(&theirs).lines() {
                    let Ok(line) = line else { return };
                    let message: Value = serde_json::from_str(&line).unwrap();
                    if message["id"] != Value::Null {
                        let result = json!({"protocolVersion": 1});
                        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
                        let _ = out.write_all(format!("{answer}\n").as_bytes());
                    }
                }
            });
            Ok(ours)
        })
    }
}

fn serve(at: &Path, auth: ClientAuth) -> SocketAddr {
    let client_ca = (auth == ClientAuth::Mtls).then(|| at.join("ca.pem"));
    let tls = TlsFiles { cert: at.join("bus.pem"), key: at.join("bus.key"), client_ca };
    let listener = HttpListenerConfig {
        number: 0,
        address: "127.0.0.1:0".parse().unwrap(),
        path: "/acp".to_owned(),
        auth,
        origins: Vec::new(),
        hosts: Vec::new(),
        tls: Some(tls),
    };
    let front = HttpServer::bind(vec![listener], HttpLimits::default(), Arc::new(Agent)).unwrap();
    let address = front.local_addrs()[0];
    tokio::spawn(front.serve());
    address
}

/// Returns the error of a connection and its first request: over HTTP errors appear only there.
async fn first(url: &str, options: ClientOptions) -> Result<(), DialError> {
    let Connected { mut link, outcome } = connect(&url.parse().unwrap(), options).await?;
    let line = r#"{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":1}}"#;
    link.sender.send(line.into()).await.unwrap();
    let answer = link.receiver.recv().await.unwrap();
    if answer.error().is_none() {
        drop(link);
        outcome.wait().await.unwrap();
        return Ok(());
    }
    match outcome.wait().await {
        Err(ConnectionLost::Dial(error)) => Err(error),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn trusted_servers_and_known_clients_are_accepted() {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    if !authorities(at) {
        println!("skipped: there is no openssl");
        return;
    }
    let file = at.join("tokens.toml");
    let token = tokens::add(&file, "laptop", None, std::time::SystemTime::now()).unwrap();
    let address = serve(at, ClientAuth::Token(file));
    let options = |ca: &str, token: Option<&str>| ClientOptions {
        ca: Some(at.join(ca)),
        token: token.map(|token| token.to_owned().into()),
        ..ClientOptions::default()
    };
    for scheme in ["wss", "https"] {
        let url = format!("{scheme}://localhost:{}/acp", address.port());
        first(&url, options("ca.pem", Some(&token))).await.unwrap();
        let stranger = first(&url, options("other.pem", Some(&token))).await;
        assert!(matches!(stranger, Err(DialError::Certificate(_))), "{scheme}: {stranger:?}");
        for wrong in [None, Some("t0k3n")] {
            let unknown = first(&url, options("ca.pem", wrong)).await;
            let is_told = match wrong {
                None => matches!(unknown, Err(DialError::TokenWanted)),
                Some(_) => matches!(unknown, Err(DialError::Unauthorized)),
            };
            assert!(is_told, "{scheme}: {unknown:?}");
        }
        let elsewhere = first(&url.replace("/acp", "/other"), options("ca.pem", Some(&token))).await;
        assert!(matches!(elsewhere, Err(DialError::Status { status: 404, .. })), "{scheme}: {elsewhere:?}");
    }
    let nothing = first(&format!("wss://localhost:{}/acp", address.port()), options("bus.key", None)).await;
    assert!(matches!(nothing, Err(DialError::Ca(_))), "{nothing:?}");
    let plain = first(&format!("ws://localhost:{}/acp", address.port()), ClientOptions::default()).await;
    assert!(plain.is_err_and(|error| !error.is_final()), "no TLS where it is wanted");
}

#[tokio::test]
async fn a_tls_connection_that_is_cut_before_initialize_is_answered_is_retried() {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    if !authorities(at) {
        println!("skipped: there is no openssl");
        return;
    }
    let address = serve(at, ClientAuth::None);
    for scheme in ["wss", "https"] {
        // Before, during and after the handshake.
        for most in [0, 10, 500, 1200, 1700] {
            let breaker = Breaker::start(address, 2, most).await;
            let url = format!("{scheme}://localhost:{}/acp", breaker.address.port());
            let options = ClientOptions { ca: Some(at.join("ca.pem")), ..ClientOptions::default() };
            first(&url, options).await.expect(&url);
            assert!(breaker.connections() > 2 || most > 500, "{scheme} {most}");
        }
    }
}

#[tokio::test]
async fn a_client_certificate_authenticates_the_client() {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    if !authorities(at) {
        println!("skipped: there is no openssl");
        return;
    }
    let address = serve(at, ClientAuth::Mtls);
    let options = |own: Option<(&str, &str)>| ClientOptions {
        ca: Some(at.join("ca.pem")),
        client_certificate: own
            .map(|(cert, key)| ClientCertificateFiles { cert: at.join(cert), key: at.join(key) }),
        ..ClientOptions::default()
    };
    let exposed = at.join("exposed.key");
    std::fs::copy(at.join("by-ca.key"), &exposed).unwrap();
    std::fs::set_permissions(&exposed, std::fs::Permissions::from_mode(0o602)).unwrap();
    for scheme in ["wss", "https"] {
        let url = format!("{scheme}://localhost:{}/acp", address.port());
        first(&url, options(Some(("by-ca.pem", "by-ca.key")))).await.unwrap();
        let nothing = first(&url, options(None)).await;
        assert!(matches!(nothing, Err(DialError::CertificateWanted)), "{scheme}: {nothing:?}");
        let foreign = first(&url, options(Some(("by-other.pem", "by-other.key")))).await;
        assert!(matches!(foreign, Err(DialError::CertificateRefused(_))), "{scheme}: {foreign:?}");
        let nameless = first(&url, options(Some(("nameless.pem", "nameless.key")))).await;
        assert!(matches!(nameless, Err(DialError::CertificateNotAccepted)), "{scheme}: {nameless:?}");
        for (cert, key, wrong) in [
            ("none.pem", "by-ca.key", "none.pem"),
            ("by-ca.key", "by-ca.key", "by-ca.key"),
            ("by-ca.pem", "none.key", "none.key"),
            ("by-ca.pem", "by-ca.pem", "by-ca.pem: contains no private key"),
            ("by-ca.pem", "by-other.key", "by-other.key does not match certificate"),
            ("by-ca.pem", "exposed.key", "exposed.key"),
        ] {
            match first(&url, options(Some((cert, key)))).await {
                Err(DialError::Own(error)) => assert!(error.to_string().contains(wrong), "{error}"),
                other => panic!("{scheme} {cert} {key}: {other:?}"),
            }
        }
    }
    for url in ["ws://localhost:1/acp", "http://localhost:1/acp", "tcp://localhost:1", "unix:/x"] {
        let clear = first(url, options(Some(("by-ca.pem", "by-ca.key")))).await;
        assert!(matches!(clear, Err(DialError::CertificateWithoutTls)), "{url}: {clear:?}");
    }
}

#[tokio::test]
async fn over_http_a_conversation_begins_and_ends() {
    let place = tempfile::tempdir().unwrap();
    if !authorities(place.path()) {
        println!("skipped: there is no openssl");
        return;
    }
    let address = serve(place.path(), ClientAuth::None);
    let url = format!("https://localhost:{}/acp", address.port());
    let options = ClientOptions { ca: Some(place.path().join("ca.pem")), ..ClientOptions::default() };
    let Connected { mut link, outcome } = connect(&url.parse().unwrap(), options).await.unwrap();
    // Requests before `initialize` are refused by the client.
    link.sender.send(r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{}}"#.into()).await.unwrap();
    assert!(link.receiver.recv().await.unwrap().error().is_some());
    initialize(&mut link).await;
    link.sender.send(r#"[{"jsonrpc":"2.0","id":1,"method":"session/list"}]"#.into()).await.unwrap();
    assert_eq!(link.receiver.recv().await.unwrap().error().unwrap().code, -32600);
    drop(link);
    outcome.wait().await.unwrap();
}

#[tokio::test]
async fn a_dead_https_connection_is_replaced() {
    let place = tempfile::tempdir().unwrap();
    if !authorities(place.path()) {
        println!("skipped: there is no openssl");
        return;
    }
    let cutter = Cutter::start(serve(place.path(), ClientAuth::None), u64::MAX).await;
    cutter.calm(true);
    let url = format!("https://localhost:{}/acp", cutter.address.port());
    let silence_timeout = Duration::from_secs(2);
    let options =
        ClientOptions { ca: Some(place.path().join("ca.pem")), silence_timeout, ..ClientOptions::default() };
    let Connected { mut link, outcome } = connect(&url.parse().unwrap(), options).await.unwrap();
    initialize(&mut link).await;
    ask(&link, "_x", 1).await;
    assert_eq!(recv(&mut link).await.id(), Some(&b"1"[..]));
    let (passed, began) = (cutter.passed(), Instant::now());
    cutter.swallow();
    ask(&link, "_x", 2).await;
    assert_eq!(recv(&mut link).await.id(), Some(&b"2"[..]));
    assert!(cutter.passed() > passed && began.elapsed() < silence_timeout * 2, "{:?}", began.elapsed());
    drop(link);
    outcome.wait().await.unwrap();
}
