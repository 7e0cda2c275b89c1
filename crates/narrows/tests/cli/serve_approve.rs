//! `narrows approve`: signed approvals over the admin socket of a gate.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use narrows_audit::{PublicKey, Secret, SigningKey, key};
use serde_json::{Value, json};

use crate::serve::asks;
use crate::serve_support::{Governed, policy, session};
use crate::stdio_client::StdioClient;

/// Begins a turn that waits for an approval by another process. Returns its id.
fn waiting<'a>(governed: &'a Governed) -> (StdioClient<'a>, String) {
    let mut stdio = governed.stdio();
    let session = session(&mut stdio, governed);
    stdio.send("session/prompt", &json!({"sessionId": session, "prompt": [{"type": "text", "text": "go"}]}));
    let list = || governed.dir.output_beside_others(governed.approve(&["--list"]));
    governed.dir.wait_for(|| list().contains("kind:delete"));
    let id = list().split_whitespace().next().expect("an id").to_owned();
    (stdio, id)
}

/// Returns the outcome of the turn: the agent's text, if the client got no requests.
fn outcome(mut stdio: StdioClient<'_>) -> String {
    let answer = stdio
        .wait_for_response(|request| json!({"outcome": {"outcome": "cancelled", "asked": request["id"]}}));
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    let said = stdio.agent_text();
    assert_eq!(stdio.end().status.code(), Some(0));
    said
}

fn output(governed: &Governed, args: &[&str]) -> String {
    governed.dir.output_beside_others(governed.approve(args))
}

fn socket(governed: &Governed) -> PathBuf {
    let entries = std::fs::read_dir(governed.dir.path().join("narrows")).expect("a directory");
    entries.map(|entry| entry.expect("an entry").path()).next().expect("a socket")
}

#[test]
fn a_valid_signature_approves_a_call() {
    let governed = Governed::bridge(&asks("delete"));
    governed.with_lead_quorum(1);
    governed.keys(&["ada"]);
    let (stdio, id) = waiting(&governed);
    let socket = socket(&governed);
    let mode =
        |path: &std::path::Path| path.metadata().expect("the file exists").permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(socket.parent().expect("a directory"))), (0o600, 0o700));
    let said = output(&governed, &[&id, "--key", "ada.key"]);
    assert!(said.starts_with("approved: kind:delete") && said.contains("--- exit 0 ---"), "{said}");
    assert_eq!(outcome(stdio), "allowed");
    assert!(!socket.exists(), "the socket is removed with its process");
    governed.actions();
    let call = governed.entries().into_iter().rfind(|entry| entry["action"] == "tool.call").expect("a call");
    let file = call["signatures"][0].as_str().expect("a signature");
    let text = std::fs::read_to_string(governed.root().join(file)).expect("the file exists");
    assert!(text.contains("Ed25519") && text.contains(&id), "{text}");
    assert!(call["metadata"]["aip44"]["approval"].to_string().contains("user:ada"), "{call}");
}

#[test]
fn a_rejection_denies_the_call_with_its_reason() {
    let governed = Governed::bridge(&asks("delete"));
    governed.with_lead_quorum(2);
    governed.keys(&["ada"]);
    let (stdio, id) = waiting(&governed);
    let said = output(&governed, &[&id, "--reject", "not today", "--key", "ada.key"]);
    assert!(said.starts_with("rejected: ") && said.contains("--- exit 0 ---"), "{said}");
    assert_eq!(outcome(stdio), "rejected");
    governed.actions();
    let text = std::fs::read_to_string(governed.log()).expect("a log");
    assert!(text.contains("not today"), "{text}");
}

#[test]
fn a_quorum_counts_people_and_not_signatures() {
    let governed = Governed::bridge(&asks("delete"));
    governed.with_lead_quorum(2);
    governed.keys(&["ada", "bob"]);
    let (stdio, id) = waiting(&governed);
    assert!(output(&governed, &[&id, "--key", "ada.key"]).contains("--- exit 0 ---"));
    let again = output(&governed, &[&id, "--key", "ada.key"]);
    assert!(again.contains("already approved by this signer") && again.contains("--- exit 9 ---"), "{again}");
    assert!(output(&governed, &["--list"]).contains(&id), "one is not enough");
    assert!(output(&governed, &[&id, "--key", "bob.key"]).contains("--- exit 0 ---"));
    assert_eq!(outcome(stdio), "allowed");
    governed.actions();
    let kept = std::fs::read_dir(governed.root().join("signatures")).expect("signatures").count();
    assert_eq!(kept, 2, "of what did not count nothing is kept");
}

#[test]
fn an_unlisted_key_does_not_count() {
    let governed = Governed::bridge(&asks("delete"));
    governed.with_lead_quorum(1);
    governed.keys(&["eve"]);
    std::fs::rename(governed.dir.path().join("eve.key"), governed.dir.path().join("old.key"))
        .expect("the file can be renamed");
    std::fs::remove_file(governed.dir.path().join("eve.key.pub")).ok();
    governed.keys(&["ada"]);
    let (stdio, id) = waiting(&governed);
    let said = output(&governed, &[&id, "--key", "old.key"]);
    assert!(said.contains("unknown key") && said.contains("--- exit 9 ---"), "{said}");
    let said = output(&governed, &["nothing", "--key", "ada.key"]);
    assert!(said.contains("no pending approval \"nothing\"") && said.contains("--- exit 2 ---"), "{said}");
    output(&governed, &[&id, "--reject", "enough", "--key", "ada.key"]);
    assert_eq!(outcome(stdio), "rejected");
}

#[test]
fn without_keys_no_signature_counts() {
    let governed = Governed::bridge(&asks("delete"));
    governed.with_lead_quorum(1);
    let (stdio, id) = waiting(&governed);
    let other = Governed::bridge("");
    other.keys(&["ada"]);
    let key = other.dir.path().join("ada.key");
    let said = output(&governed, &[&id, "--key", key.to_str().expect("UTF-8")]);
    assert!(said.contains("no signing keys") && said.contains("--- exit 9 ---"), "{said}");
    stdio.end();
    governed.actions();
}

#[test]
fn a_gate_that_does_not_answer_is_named() {
    let governed = Governed::bridge(&asks("delete"));
    governed.with_lead_quorum(1);
    governed.keys(&["ada"]);
    let (stdio, id) = waiting(&governed);
    let directory = governed.dir.path().join("narrows");
    // A socket whose process has ended.
    drop(
        std::os::unix::net::UnixListener::bind(directory.join("serve-gone.sock")).expect("the path is free"),
    );
    let said = output(&governed, &["--list"]);
    assert!(said.contains(&id) && said.contains("--- exit 0 ---"), "{said}");
    let said = output(&governed, &[&id, "--show"]);
    assert!(said.contains("kind:delete") && said.contains("--- exit 0 ---"), "{said}");
    let mute =
        std::os::unix::net::UnixListener::bind(directory.join("serve-mute.sock")).expect("the path is free");
    std::thread::spawn(move || mute.incoming().for_each(drop));
    let said = output(&governed, &["--list"]);
    assert!(said.contains(&id) && said.contains("serve-mute.sock"), "{said}");
    assert!(!said.contains("--- exit 0 ---"), "{said}");
    let said = output(&governed, &["nothing", "--key", "ada.key"]);
    assert!(said.contains("serve-mute.sock") && !said.contains("--- exit 0 ---"), "{said}");
    assert!(output(&governed, &[&id, "--key", "ada.key"]).contains("--- exit 0 ---"));
    assert_eq!(outcome(stdio), "allowed");
}

#[test]
fn keys_are_trusted_with_the_manifest() {
    let governed = Governed::bridge("[[turn]]\nsteps = []\n");
    governed.keys(&["ada"]);
    assert!(governed.dir.output_of(governed.serve(&[])).contains("--- exit 0 ---"));
    governed.keys(&["eve"]);
    let said = governed.dir.output_of(governed.serve(&[]));
    assert!(said.contains("governance-keys.json changed") && said.contains("--- exit 2 ---"), "{said}");
}

/// The private key of the first test vector of RFC 8032.
const PRIVATE: &str = "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g";
const PUBLIC: &str = "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

#[test]
fn a_revoked_key_does_not_count_in_any_form() {
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{PUBLIC}\n-----END PUBLIC KEY-----\n");
    let did = PUBLIC.parse::<PublicKey>().expect("a key").to_string();
    let multibase = did.trim_start_matches("did:key:");
    let escaped = format!("{{\"revoked\": [\"{}\"]}}", did.replacen(":z", ":\\u007a", 1));
    for (id, revoked) in [
        (&pem, json!({"revoked": [pem]}).to_string()),
        (&pem, json!({"revoked": [did]}).to_string()),
        (&did, json!([{"id": pem}]).to_string()),
        (&did, json!({"revoked": [multibase]}).to_string()),
        (&did, escaped),
    ] {
        let governed = Governed::bridge(&asks("delete"));
        governed.with_lead_quorum(1);
        governed.keys(&["bob"]);
        let text = format!("-----BEGIN PRIVATE KEY-----\n{PRIVATE}\n-----END PRIVATE KEY-----\n");
        let ada = SigningKey::from_pem(&Secret::new(text)).expect("a key");
        key::write_new(&governed.dir.path().join("ada.key"), &ada).expect("a file");
        let path = governed.root().join(".well-known/governance-keys.json");
        let mut ring: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
        let entry = json!({"id": id, "subject": {"id": "ada", "role": "lead"}});
        ring["keys"].as_array_mut().expect("a list").push(entry);
        governed.file(".well-known/governance-keys.json", &ring.to_string());
        governed.file(".well-known/governance-revoked.json", &revoked);
        let (stdio, waiting) = waiting(&governed);
        let said = output(&governed, &[&waiting, "--key", "ada.key"]);
        assert!(said.contains("unknown key") && said.contains("--- exit 9 ---"), "{revoked}: {said}");
        assert!(output(&governed, &[&waiting, "--key", "bob.key"]).contains("--- exit 0 ---"), "{revoked}");
        assert_eq!(outcome(stdio), "allowed");
    }
}

#[test]
fn a_running_gate_counts_no_key_that_was_revoked_since() {
    let governed = Governed::bridge(&asks("delete"));
    governed.with_lead_quorum(2);
    governed.keys(&["ada", "bob", "cem"]);
    let (stdio, id) = waiting(&governed);
    let path = governed.root().join(".well-known/governance-keys.json");
    let trusted = std::fs::read(&path).expect("a file");
    let mut ring: Value = serde_json::from_slice(&trusted).expect("JSON");
    ring["keys"][0]["revokedAt"] = json!("2026-11-18T00:00:00Z");
    governed.file(".well-known/governance-keys.json", &ring.to_string());
    let said = output(&governed, &[&id, "--key", "ada.key"]);
    assert!(said.contains("unknown key") && said.contains("--- exit 9 ---"), "{said}");
    assert!(output(&governed, &[&id, "--key", "bob.key"]).contains("--- exit 0 ---"));
    // An approval cannot complete a quorum if its key was revoked after it was counted.
    governed.file(".well-known/governance-revoked.json", &json!([ring["keys"][1]["id"]]).to_string());
    let said = output(&governed, &[&id, "--key", "cem.key"]);
    assert!(said.contains("was revoked") && said.contains("--- exit 9 ---"), "{said}");
    // After any change other than a revocation, all signatures are refused.
    std::fs::write(&path, &trusted).expect("a file");
    for _ in 0..2 {
        let said = output(&governed, &[&id, "--reject", "no", "--key", "cem.key"]);
        assert!(said.contains("changed by more than a revocation"), "{said}");
    }
    governed.file(".well-known/governance-keys.json", &ring.to_string());
    assert!(output(&governed, &[&id, "--reject", "no", "--key", "cem.key"]).contains("--- exit 0 ---"));
    let mut stdio = stdio;
    let answer = stdio
        .wait_for_response(|request| json!({"outcome": {"outcome": "cancelled", "asked": request["id"]}}));
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert_eq!(stdio.agent_text(), "rejected");
    let stderr = stdio.end().stderr;
    assert_eq!(stderr.matches("signatures refused").count(), 1, "{stderr}");
}

#[test]
fn an_approval_with_a_key_revoked_later_completes_no_quorum() {
    for (revoked, expected) in [("nobody", "allowed"), ("ada", "rejected"), ("unreadable", "rejected")] {
        let governed = Governed::bridge(&asks("delete"));
        let id = std::process::Command::new("id").arg("-un").output().expect("there is a user");
        let client = String::from_utf8(id.stdout).expect("a name");
        let signers = format!(
            "decision: require-approval\nautonomy: 4\nquorum: 2\nsigners: [{{userId: {}}}, {{userId: ada}}]",
            client.trim()
        );
        governed.file("policies/removing/POLICY.md", &policy("removing", "kind:delete", &signers));
        governed.keys(&["ada"]);
        let (mut stdio, id) = waiting(&governed);
        assert!(output(&governed, &[&id, "--key", "ada.key"]).contains("--- exit 0 ---"), "{revoked}");
        let path = governed.root().join(".well-known/governance-keys.json");
        let ring: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
        let list = ".well-known/governance-revoked.json";
        match revoked {
            "ada" => governed.file(list, &json!([ring["keys"][0]["id"]]).to_string()),
            "unreadable" => governed.file(list, "{"),
            _ => {}
        }
        let mut asked = 0;
        let answer = stdio.wait_for_response(|_| {
            asked += 1;
            json!({"outcome": {"outcome": "selected", "optionId": "allow_once"}})
        });
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
        // Notes about approvals by other processes are not part of the agent's text.
        assert!(stdio.agent_text().ends_with(expected), "{revoked}: {}", stdio.agent_text());
        assert_eq!((asked, stdio.end().status.code()), (1, Some(0)), "{revoked}");
        governed.actions();
    }
}
