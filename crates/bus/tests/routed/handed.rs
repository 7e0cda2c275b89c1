//! Clients that are accepted or served by another server, and the owners of sessions after a restart.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use narrows_bus::config::ListenerAuth;
use narrows_bus::{IncomingClient, ResumableConnection, StartError, StartOptions};

use super::*;

/// A worker that creates and loads sessions.
const AGENT: &str = r#"exec sed -u -n -e 's/"method":"session\/new","params":.*/"result":{"sessionId":"made"}}/p' \
    -e 's/"method":"session\/load","params":.*/"result":{}}/p'"#;

fn options(owners: &Path) -> StartOptions {
    StartOptions { owners: Some(owners.to_owned()), ..StartOptions::default() }
}

fn config(listen: &str, auth: ListenerAuth) -> Config {
    let mut listen = ListenerSettings::parse(listen).unwrap();
    if let ListenAddr::Web(web) = &mut listen.addr {
        web.auth = auth;
        web.tokens = (auth == ListenerAuth::Token).then(|| "tokens.toml".into());
    }
    let shell = vec!["/bin/sh".into(), "-c".into(), AGENT.into()];
    Config {
        listen: vec![listen],
        pools: vec![Pool { share: ShareMode::Connection, ..Pool::new("p", shell) }],
        limits: BusLimits::default(),
        admin: AdminConfig::default(),
    }
}

fn begin(config: Config, options: StartOptions) -> Result<Bus, StartError> {
    Bus::start_with_options(config, [("PATH".into(), "/usr/bin:/bin".into())].into(), options)
}

/// Connects a client through a handle.
fn enter(bus: &Bus, identity: &str) -> BufReader<UnixStream> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let from = IncomingClient { is_authenticated: true, ..IncomingClient::new(0, identity) };
    bus.handle().connect(theirs.into(), from).unwrap();
    BufReader::new(ours)
}

fn call(peer: &mut BufReader<UnixStream>, method: &str, params: &Value) -> Value {
    peer.get_mut().write_all(request(method, &json!(1), params).as_bytes()).unwrap();
    let mut line = String::new();
    peer.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn a_session_keeps_its_owner_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let owners = directory.path().join("bus").join("owners");
    let web = || config("http://127.0.0.1:1/acp", ListenerAuth::Token);
    let made = json!({"sessionId": "made"});
    for round in 0..3 {
        let bus = begin(web(), options(&owners)).unwrap();
        let [mut maker, mut other] = ["token:maker", "token:other"].map(|identity| enter(&bus, identity));
        if round == 0 {
            assert_eq!(call(&mut maker, "session/new", &json!({}))["result"], made);
            // The owner is now on disk.
            assert!(std::fs::read_to_string(&owners).unwrap().contains("token:maker"));
        } else {
            assert_eq!(call(&mut maker, "session/load", &made)["result"], json!({}));
        }
        let foreign = call(&mut other, "session/load", &made);
        assert_eq!(foreign["error"]["code"], -32002, "{foreign}");
        assert_eq!(call(&mut other, "session/load", &json!({"sessionId": "none"})), foreign);
        let again = begin(web(), options(&owners)).unwrap_err();
        assert!(matches!(again, StartError::Owners(_)), "{again}");
        finish(&bus);
        let from = IncomingClient::new(0, "x");
        assert!(bus.handle().connect(UnixStream::pair().unwrap().0.into(), from).is_err());
    }
}

#[test]
fn no_owner_file_is_written_without_authentication() {
    let directory = tempfile::tempdir().unwrap();
    let owners = directory.path().join("owners");
    let bus = begin(config("http://127.0.0.1:1/acp", ListenerAuth::None), options(&owners)).unwrap();
    let mut peer = enter(&bus, "anyone");
    assert_eq!(call(&mut peer, "session/load", &json!({"sessionId": "any"}))["result"], json!({}));
    finish(&bus);
    assert!(!owners.exists());
    let nowhere =
        begin(config("http://127.0.0.1:1/acp", ListenerAuth::Token), StartOptions::default()).unwrap_err();
    assert!(matches!(nowhere, StartError::MissingOwnersFile), "{nowhere}");
    let open = begin(config("http://0.0.0.0:1/acp", ListenerAuth::None), options(&owners)).unwrap_err();
    assert!(open.to_string().contains("other machines"), "{open}");
}

#[test]
fn a_resumable_connection_is_handed_over_with_the_bytes_that_were_read() {
    let (tell, handed) = sync_channel::<ResumableConnection>(8);
    let hand_over = Box::new(move |handed| tell.send(handed).unwrap());
    let bus = begin(
        config("tcp://127.0.0.1:0", ListenerAuth::None),
        StartOptions { owners: None, hand_over: Some(hand_over) },
    )
    .unwrap();
    let first = request("initialize", &json!(0), &json!({"_meta": {"narrows": {"resume": 1}}}));
    let (start, end) = first.split_at(20);
    let mut peer = connect(&bus);
    peer.get_mut().write_all(start.as_bytes()).unwrap();
    status(&bus, |status| status.clients == 1);
    peer.get_mut().write_all(end.as_bytes()).unwrap();
    let mut got = handed.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(
        (String::from_utf8(got.read).unwrap(), got.identity.as_str(), got.listener),
        (first, "anyone", 0)
    );
    // The other server gets the same socket, and the bus keeps nothing of it.
    status(&bus, |status| status.clients == 0);
    let mut socket = TcpStream::from(got.socket.try_clone().unwrap());
    socket.write_all(b"{}\n").unwrap();
    got.socket = socket.into();
    let mut line = String::new();
    peer.read_line(&mut line).unwrap();
    assert_eq!(line, "{}\n");
    // The bus serves a connection that is not resumable, in however many parts its line arrives.
    let mut plain = connect(&bus);
    plain.get_mut().set_nodelay(true).unwrap();
    for byte in request("session/load", &json!(1), &json!({"sessionId": "resume"})).bytes() {
        plain.get_mut().write_all(&[byte]).unwrap();
    }
    assert_eq!(answer(&mut plain)["result"], json!({}));
    // This includes a connection with a single line without a line end.
    let mut brief = connect(&bus);
    let only = request("session/load", &json!(1), &json!({"sessionId": "brief"}));
    brief.get_mut().write_all(only.trim_end().as_bytes()).unwrap();
    brief.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(answer(&mut brief)["result"], json!({}));
    assert!(handed.try_recv().is_err());
    finish(&bus);
}

#[test]
fn two_users_of_a_socket_do_not_see_each_others_sessions() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be two users");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let nobody = rustix::process::Uid::from_raw(65_534);
    let group = rustix::process::Gid::from_raw(65_534);
    rustix::fs::chown(directory.path(), Some(nobody), Some(group)).unwrap();
    let path = directory.path().join("s");
    let listen = format!("unix:{}", path.display());
    let start = move || {
        // Affects only this thread and the threads that it starts.
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let shell = vec!["/bin/sh".into(), "-c".into(), ECHO.into()];
        let pool = Pool {
            instances: 2,
            share: ShareMode::All,
            protocol: PoolProtocol::JsonRpc,
            ..Pool::new("p", shell)
        };
        begin(Config { pools: vec![pool], ..config(&listen, ListenerAuth::None) }, StartOptions::default())
            .unwrap()
    };
    let bus = std::thread::spawn(start).join().unwrap();
    let enter = |path: &Path| {
        let peer = UnixStream::connect(path).unwrap();
        peer.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        BufReader::new(peer)
    };
    let there = path.clone();
    let other = std::thread::spawn(move || {
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        enter(&there)
    });
    let mut peers = [enter(&path), other.join().unwrap()];
    for (number, name) in ["root's", "nobody's"].into_iter().enumerate() {
        let params = json!({"sessionId": name});
        assert_eq!(call(&mut peers[number], "echo", &params)["result"], params);
        let foreign = call(&mut peers[1 - number], "echo", &params);
        assert_eq!(foreign["error"]["code"], -32002, "{foreign}");
    }
    let identities = status(&bus, |_| true).identities;
    assert_eq!(identities.keys().collect::<Vec<_>>(), ["uid:0", "uid:65534"]);
    finish(&bus);
}
