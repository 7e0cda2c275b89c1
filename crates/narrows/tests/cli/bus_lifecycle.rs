//! Start, reload and shutdown of a bus.

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::json;

use crate::bus_support::{Bus, NARROWS, command, write};
use crate::test_dir::{MARK, TestDir};

fn file(agent: &str, limits: &str) -> String {
    format!(
        "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n[[pool]]\ncommand = ['narrows', 'fake-agent', '{agent}']\n\
         share = 'all'\npass_env = ['[MARK]']\n[limits]\n{limits}\n"
    )
}

#[test]
fn without_arguments_the_bus_prints_its_help() {
    let dir = TestDir::new();
    let told = dir.output_of(dir.narrows(["bus"]));
    assert!(told.contains("narrows bus --config <FILE>") && told.contains("Examples:"), "{told}");
    assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
    // The help of `bus` lists its own exit codes and variables, not those of `run`.
    for (args, codes) in
        [(&["bus", "--help"][..], "0, 2, 5, 70, 130"), (&["bus", "status", "--help"], "0, 1, 2, 130, 141")]
    {
        let told = dir.output_of(dir.narrows(args));
        let section = told.split("Exit codes:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
        let lines = section.expect(&told).lines();
        let numbers: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(numbers.join(", "), codes, "{told}");
        assert!(told.contains("XDG_RUNTIME_DIR") && !told.contains("OPENAI_"), "{told}");
    }
}

#[test]
fn errors_are_reported_before_anything_is_started() {
    let dir = TestDir::new();
    let output = |args: &[&str]| dir.output_of(command(&dir, args));
    assert_snapshot!(output(&["--", "narrows", "acp"]), @"
    --- stderr ---
    error: no listener configured
    hint: add --listen tcp://127.0.0.1:9000, --listen unix:/PATH or --stdio
    --- exit 2 ---
    ");
    assert_snapshot!(output(&["--tcp", "127.0.0.1:0", "--share", "all"]), @"
    --- stderr ---
    error: no agent configured
    hint: add an agent after the options: `-- narrows acp`; or a configuration file: --config bus.toml
    --- exit 2 ---
    ");
    assert_snapshot!(output(&["--tcp", "127.0.0.1:0", "narrows", "acp"]), @r#"
    --- stderr ---
    error: unexpected argument "narrows" before `--`
    hint: put the command of the agent after `--`: -- narrows acp
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["statsu"]), @r#"
    --- stderr ---
    error: unexpected argument "statsu" before `--`
    hint: did you mean `narrows bus status`?
    --- exit 2 ---
    "#);
    let quoted = output(&["--tcp", "127.0.0.1:0", "--", "narrows acp"]);
    assert!(
        quoted.contains(
            "hint: write the command as separate words, as no shell splits it: `-- narrows acp` or "
        ),
        "{quoted}"
    );
    assert!(quoted.contains("because: program \"narrows acp\" not found in PATH\n"), "{quoted}");
    assert!(quoted.ends_with("--- exit 5 ---\n"), "{quoted}");
    assert_snapshot!(output(&["--tcp", "127.0.0.1:0", "--", "./no-such-agent"]), @r#"
    --- stderr ---
    error: cannot start the agents of pool "default"
      because: program "./no-such-agent" not found
    hint: install the program, or use its path; `narrows check` finds all missing programs
    --- exit 5 ---
    "#);
    dir.file("bus.toml", "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n[[pool]]\ncommand = ['./no-such-agent']\n");
    assert_snapshot!(output(&["--config", "bus.toml"]), @r#"
    --- stderr ---
    error: bus.toml:4:11: cannot start the agents of pool "default"
      because: program "./no-such-agent" not found
    hint: install the program, or use its path; `narrows check` finds all missing programs
    --- exit 5 ---
    "#);
    dir.file("bus.toml", "[[listen]]\nurl = 'tcp://0.0.0.0:1'\n[[pool]]\ncommand = ['a']\ninstancse = 2\n");
    assert_snapshot!(output(&["--config", "bus.toml"]), @r#"
    --- stderr ---
    error: bus.toml:2:7: `url` cannot be "tcp://0.0.0.0:1": only 127.0.0.1, [::1] and localhost are allowed, because every client may use the agents; for other machines use https:// or wss:// with `auth`
    error: bus.toml:5:1: unknown setting `instancse` in [pool]
    hint: did you mean `instances`?
    --- exit 2 ---
    "#);
    assert_snapshot!(output(&["--listen", "tcp://192.0.2.1:1", "--", "a"]), @"
    --- stderr ---
    error: invalid value 'tcp://192.0.2.1:1' for '--listen <URL>': only 127.0.0.1, [::1] and localhost are allowed, because every client may use the agents; for other machines use https:// or wss:// with `auth`

    For more information, try '--help'.
    --- exit 2 ---
    ");
    assert_snapshot!(output(&["--config", "none.toml"]), @r#"
    --- stderr ---
    error: --config: cannot read "none.toml"
      because: No such file or directory (os error 2)
    --- exit 2 ---
    "#);
    for (setting, can) in narrows_bus::worker_limits() {
        let Err(error) = can else { continue };
        dir.file(
            "limited.toml",
            &format!(
                "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n[[pool]]\ncommand = ['sh']\n{setting} = 4000000\n"
            ),
        );
        let why = &error.why;
        let expected = format!(
            "--- stderr ---\nerror: pool \"default\": cannot enforce `{setting}` on this machine: {why}\nhint: remove `memory` and `pids` of the pool, or limit the whole bus from outside\n--- exit 2 ---\n"
        );
        assert_eq!(output(&["--config", "limited.toml"]), expected);
    }
    // Flags cannot repeat settings of a file.
    for more in [["--", "a"], ["--share", "all"], ["--instances", "2"], ["--protocol", "2"], ["--name", "a"]]
    {
        let told = output(&[&["--config", "bus.toml"][..], &more].concat());
        assert!(told.contains("the argument '--config <FILE>' cannot be used with"), "{told}");
        assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
    }
}

#[test]
fn a_port_in_use_is_reported() {
    let dir = TestDir::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let told = dir.output_of(command(&dir, &["--tcp", &address, "--", "narrows", "acp"]));
    assert!(told.contains(&format!("error: tcp://{address} is in use by another process\n")), "{told}");
    assert!(told.ends_with("--- exit 2 ---\n"), "{told}");
    let listen = format!("ws://{address}/acp");
    let told = dir.output_of(command(&dir, &["--listen", &listen, "--", "narrows", "acp"]));
    let words = format!(
        "error: {address} is in use by another process\nhint: check if another bus is running: narrows bus status\n"
    );
    assert!(told.contains(&words) && told.ends_with("--- exit 2 ---\n"), "{told}");
    assert!(!dir.path().join("run/narrows/admin.sock").exists(), "nothing is left of it");
}

#[test]
fn a_duplicate_listener_is_an_error() {
    let dir = TestDir::new();
    let check = |one: &str, other: &str, expected: &str| {
        let told =
            dir.output_of(command(&dir, &["--listen", one, "--listen", other, "--", "narrows", "acp"]));
        assert!(told.contains(expected) && told.ends_with("--- exit 2 ---\n"), "{told}");
    };
    check("ws://127.0.0.1:1/acp", "ws://127.0.0.1:1", "error: duplicate listener ws://127.0.0.1:1/acp\n");
    check("ws://127.0.0.1:1/a", "http://127.0.0.1:1/b", "hint: a port has one path");
    check("127.0.0.1:1", "stdio:", "http://HOST:PORT/acp; did you mean tcp://127.0.0.1:1?\n");
}

#[test]
fn sigterm_waits_for_active_turns() {
    let dir = TestDir::new();
    let script = "name = 'short'\n[[turn]]\nsteps = [{ say = 'So' }, { pause = '1s' }, { say = ' it is' }]\n";
    let script = dir.file("short.toml", script);
    let mut bus = Bus::from_file(&dir, &file(script.to_str().expect("UTF-8"), ""));
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!(2), &session, "Hi");
    peer.expect_text("So");
    bus.signal(Signal::TERM);
    // There was no Ctrl-C.
    assert_eq!(bus.expect_text("shutting down: waiting up to 30s for active turns"), "");
    let refused = peer.call(&json!(3), "session/new", &json!({"cwd": dir.path(), "mcpServers": []}));
    assert_eq!(refused["error"]["code"], -32016, "{refused}");
    assert_eq!(refused["error"]["data"]["effects"], "none", "{refused}");
    assert_eq!(peer.answer(&json!(2))["result"]["stopReason"], "end_turn");
    assert_eq!(peer.agent_text(), "So it is");
    assert_eq!(peer.next(), None);
    let ended = bus.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn an_idle_bus_stops_at_once() {
    let dir = TestDir::new();
    let bus = Bus::from_file(&dir, &file("echo", ""));
    let mut peer = bus.client();
    peer.session(&dir);
    let said = bus.stop();
    assert!(said.contains("shutting down: no active requests\n"), "{said}");
}

#[test]
fn an_unfinished_turn_is_reported_to_its_client() {
    let dir = TestDir::new();
    let bus = Bus::from_file(&dir, &file("slow", "drain_timeout = '500ms'"));
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!(2), &session, "Hi");
    peer.expect_text("One moment. ");
    bus.signal(Signal::TERM);
    let answer = peer.answer(&json!(2));
    assert_eq!(answer["error"]["code"], -32016, "{answer}");
    assert_eq!(answer["error"]["data"]["effects"], "possible", "{answer}");
    let ended = bus.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_second_ctrl_c_exits_immediately() {
    let dir = TestDir::new();
    let mut bus =
        Bus::from_file(&dir, &format!("{}[[listen]]\nurl = 'unix:in.sock'\n", file("stubborn", "")));
    let sockets = [bus.admin.clone(), dir.path().join("in.sock")];
    assert!(sockets.iter().all(|socket| socket.exists()));
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!(2), &session, "Hi");
    peer.expect_text("I will not stop. ");
    bus.signal(Signal::INT);
    bus.expect_text("(Ctrl-C again to exit now)");
    bus.signal(Signal::INT);
    assert_eq!(bus.wait().code, Some(130));
    assert!(sockets.iter().all(|socket| !socket.exists()), "the bus removes its sockets");
}

#[test]
fn a_killed_bus_leaves_no_agents() {
    let dir = TestDir::new();
    let bus = Bus::from_file(&dir, &file("stubborn", ""));
    let mut peer = bus.client();
    let session = peer.session(&dir);
    peer.prompt(&json!(2), &session, "Hi");
    peer.expect_text("I will not stop. ");
    bus.signal(Signal::KILL);
    assert_eq!(bus.wait().code, None);
}

#[test]
fn a_reload_fails_no_request() {
    let dir = TestDir::new();
    let script = "name = 'short'\n[[turn]]\nsteps = [{ say = 'So' }, { pause = '1s' }, { say = ' it is' }]\n";
    let script = dir.file("short.toml", script);
    let mut bus = Bus::from_file(&dir, &file(script.to_str().expect("UTF-8"), ""));
    let mut old = bus.client();
    let session = old.session(&dir);
    old.prompt(&json!(2), &session, "Hi");
    old.expect_text("So");

    // An invalid file changes nothing, and the position of the error is reported.
    write(&dir, "[[listen]]\nurl = 'tcp://127.0.0.1:0'\n[[pool]]\ncommand = ['narrows']\nshrae = 'all'\n");
    bus.signal(Signal::HUP);
    let said = bus.expect_text("bus.toml:5:1: ");
    assert!(said.contains("`shrae`"), "{said}");
    bus.expect_text("reload failed, keeping the current configuration");
    write(&dir, &file("echo", "").replace("'narrows'", "'./no-such-agent'"));
    bus.signal(Signal::HUP);
    bus.expect_text("no-such-agent");
    bus.expect_text("reload failed, keeping the current configuration");
    let other_place = file("echo", "").replace("tcp://127.0.0.1:0", "tcp://127.0.0.1:1");
    write(&dir, &other_place);
    bus.signal(Signal::HUP);
    let open = format!("{} stays open until the bus is restarted", bus.at[0]);
    let closed = "tcp://127.0.0.1:1 is not opened until the bus is restarted";
    bus.expect_lines(&[&open, closed, "configuration reloaded"]);

    write(&dir, &file("echo", "max_connections = 7"));
    bus.signal(Signal::HUP);
    bus.expect_text("configuration reloaded");
    let mut new = bus.client();
    let session = new.session(&dir);
    new.prompt(&json!(2), &session, "one two");
    assert_eq!(new.answer(&json!(2))["result"]["stopReason"], "end_turn");
    assert_eq!(new.agent_text(), "one two", "it is the new agent");
    assert_eq!(old.answer(&json!(2))["result"]["stopReason"], "end_turn");
    assert_eq!(old.agent_text(), "So it is", "the old one has finished");
    assert_eq!(bus.state()["max_connections"], 7);
    bus.wait_for(|state| state["pools"].as_array().is_some_and(|pools| pools.len() == 1));
    bus.stop();
}

#[test]
fn the_admin_socket_does_not_change_on_reload() {
    let dir = TestDir::new();
    let text = file("echo", "");
    let mut bus = Bus::from_file(&dir, &text);
    // The warning is repeated with every reload.
    for name in ["one.sock", "one.sock", "two.sock"] {
        write(&dir, &format!("{text}[admin]\nsocket = '{name}'\nport = 7\n"));
        bus.signal(Signal::HUP);
        let told = "changed admin sockets need a restart: the default socket until then, ";
        bus.expect_lines(&[told, &format!("{name} and 127.0.0.1:7"), "configuration reloaded"]);
    }
    bus.stop();
}

#[test]
fn a_replaced_program_still_starts_workers() {
    let dir = TestDir::new();
    let program = dir.path().join("narrows");
    let install = || {
        if std::fs::hard_link(NARROWS, &program).is_err() {
            std::fs::copy(NARROWS, &program).expect("a copy");
        }
    };
    install();
    let usual = command(&dir, &[]);
    let mut command = std::process::Command::new(&program);
    command.args(["bus", "--config", &write(&dir, &file("echo", ""))]).env_clear();
    command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(dir.path());
    let mut bus = Bus::started(&dir, command);
    std::fs::remove_file(&program).expect("the file exists");
    install();
    write(&dir, &file("echo", "").replace("'echo'", "'hello'"));
    bus.signal(Signal::HUP);
    bus.expect_text("configuration reloaded");
    bus.client().session(&dir);
    bus.stop();
}

#[test]
fn stderr_of_workers_can_be_followed() {
    let dir = TestDir::new();
    let script = r"printf 'one\n\033[2Jtwo\n' >&2; cat; echo last >&2";
    let args = ["--log", "narrows_bus::worker=debug,warn", "--tcp", "127.0.0.1:0", "--", "sh", "-c", script];
    let mut bus = Bus::start(&dir, &args);
    // One line while the worker runs, and the incomplete one when it ends.
    bus.expect_lines(&["DEBUG narrows_bus::worker: one pool=\"default\" worker=0", "\\u{1b}[2Jtwo"]);
    let said = bus.stop();
    assert!(said.contains("narrows_bus::worker: last pool="), "{said}");
    assert_eq!(said.matches("worker: one ").count(), 1, "{said}");
    assert!(!said.contains("WARN"), "{said}");
}

#[test]
fn sighup_reloads_the_file_under_nohup() {
    let dir = TestDir::new();
    let file = write(&dir, &file("echo", ""));
    let run = format!("trap '' HUP; exec {NARROWS} bus --config {file}");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &run]).env(MARK, dir.mark()).env("XDG_RUNTIME_DIR", dir.path().join("run"));
    let mut bus = Bus::started(&dir, command);
    bus.signal(Signal::HUP);
    bus.expect_text("configuration reloaded");
    bus.stop();
}

#[test]
fn sighup_stops_a_bus_without_a_configuration_file() {
    let dir = TestDir::new();
    let bus = Bus::start(&dir, &["--tcp", "127.0.0.1:0", "--", "narrows", "fake-agent", "echo"]);
    bus.signal(Signal::HUP);
    assert_eq!(bus.wait().code, Some(0));
}

#[test]
fn a_log_for_programs_is_json_and_holds_no_messages() {
    let dir = TestDir::new();
    let args = ["--log", "trace", "--log-format", "json", "--tcp", "127.0.0.1:0", "--"];
    let mut command = command(&dir, &[&args[..], &["narrows", "fake-agent", "noisy"]].concat());
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("narrows starts");
    let stderr = std::io::BufReader::new(child.stderr.take().expect("piped"));
    let mut lines = std::io::BufRead::lines(stderr).map(|line| {
        let line = line.expect("UTF-8");
        let entry: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        assert!(entry["level"].is_string() && entry["timestamp"].is_string(), "{line}");
        entry
    });
    let said = |entry: &serde_json::Value| entry["message"].as_str().unwrap_or_default().to_owned();
    let mut all = String::new();
    let address = loop {
        let entry = lines.next().expect("the output names the address");
        if let Some(rest) = said(&entry).strip_prefix("listening on ") {
            break rest.split(',').next().expect("an address").to_owned();
        }
    };
    let mut peer = crate::bus_support::Peer::connect(&address);
    let session = peer.session(&dir);
    peer.prompt(&json!(2), &session, "a prompt nobody logs");
    peer.answer(&json!(2));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).expect("the process runs");
    for entry in lines {
        all.push_str(&entry.to_string());
    }
    assert_eq!(child.wait().expect("the process ends").code(), Some(0));
    assert!(!all.contains("nobody logs"), "{all}");
    dir.assert_no_process_left();
}
