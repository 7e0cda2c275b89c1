//! Private keys in other forms than PEM: in base64, in Kubernetes configuration, and by name.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::*;

/// Returns a key file with this title. Its base64 form contains [`ENCODED_BODY`].
fn file(title: &str) -> String {
    format!("-----BEGIN {title}-----\n{}\n-----END {title}-----\n", "MIICdgIBADANBgkqhkiG9w0B".repeat(20))
}

/// A part of the base64 of every key file that [`file`] returns.
const ENCODED_BODY: &str = "lDZGdJQkFEQU5CZ2txaGtpRzl3MEJ";

fn wrapped(encoded: &str, line_break: &str) -> String {
    let lines: Vec<&str> = encoded.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect();
    lines.join(line_break)
}

#[track_caller]
fn shown(value: Value) -> String {
    let mut event = Event { input: Some(value), ..Event::default() };
    Redaction::default().clean(&mut event);
    let once = event.input.clone();
    Redaction::default().clean(&mut event);
    assert_eq!(event.input, once);
    event.input.unwrap().to_string()
}

fn has_body(text: &str) -> bool {
    // The same part of a key in each of the three alignments of base64.
    let parts = ["SUNkZ0lCQURBTkJna3Foa2lHOXcw", "JQ2RnSUJBREFOQmdrcWhraUc5dz", ENCODED_BODY];
    parts.iter().any(|part| text.replace("\\n", "").replace([' ', '\\'], "").contains(part))
}

#[test]
fn private_keys_in_base64_are_recognized() {
    for title in ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"] {
        let key = file(title);
        let encoded = STANDARD.encode(&key);
        assert!(has_body(&encoded), "{title}");
        let mut forms = vec![encoded.clone(), STANDARD_NO_PAD.encode(&key), URL_SAFE_NO_PAD.encode(&key)];
        forms.push(STANDARD.encode(format!("{}{key}", file("CERTIFICATE"))));
        forms.push(encoded[..encoded.len() / 2].to_owned());
        for line_break in ["\n", "\r\n", "\n    ", "\\n", " \\\n"] {
            forms.push(wrapped(&encoded, line_break.trim_start_matches(' ')));
        }
        for form in forms {
            for text in [
                form.clone(),
                format!("users:\n- name: a\n  user:\n    client-key-data: {form}\ncontexts:\n- name: b\n"),
                format!("tls.key: |\n    {form}\nnext\n"),
                format!("write_files:\n- encoding: b64\n  path: /etc/key.pem\n  content: {form}\n"),
                format!("kubectl config set users.x.client-key-data {form} --kubeconfig=a"),
                format!("echo {form} | base64 -d > key.pem"),
                format!("{{\"key\":\"{form}\",\"name\":\"b\"}}"),
                format!("KEY={form}\nOTHER=b"),
            ] {
                let shown = shown(json!({"t": text}));
                assert!(!has_body(&shown), "{text}\n{shown}");
                for stays in ["contexts:\\n- name: b", "path: /etc/key.pem", "base64 -d", "OTHER=b"] {
                    assert_eq!(shown.contains(stays), text.contains(&stays.replace("\\n", "\n")), "{shown}");
                }
            }
        }
    }
}

#[test]
fn certificates_in_base64_stay_as_they_are() {
    for title in ["CERTIFICATE", "PUBLIC KEY", "CERTIFICATE REQUEST"] {
        let encoded = STANDARD.encode(file(title));
        for text in [
            encoded.clone(),
            wrapped(&encoded, "\n"),
            format!("client-certificate-data: {encoded}\n"),
            format!("certificate-authority-data: {encoded}\nserver: https://h.example\n"),
            format!("{{\"tls.crt\":\"{encoded}\"}}"),
        ] {
            assert_eq!(Redaction::default().hide(&text).map(|hidden| hidden.text), None, "{text}");
        }
    }
}

#[test]
fn key_data_of_kubernetes_is_recognized_by_its_name() {
    check_hidden(&json!({"users": [{"user": {"client-key-data": S}}], "clientKeyData": S, "tls.key": S}));
    for text in
        ["client-key-data: SECRET", "tls.key: SECRET", "\"tls.key\": \"SECRET\"", "x --tls-key SECRET"]
    {
        check_hidden(&json!(text.replace("SECRET", S)));
    }
    check_hidden(&json!(["kubectl", "config", "set", "users.x.client-key-data", S]));
    for value in [
        json!({"tls_key": "/etc/tls/server1.key", "tlsKey": "server.key", "ssh_key": "~/.ssh/id_rsa"}),
        json!({"ssh_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA me@h", "public_key_data": "AAAAB3NzaC1yc2E1"}),
    ] {
        check(value.clone(), &value);
    }
}

#[test]
fn the_values_of_kubernetes_secrets_are_recognized() {
    let hidden = mark(reason::KEY);
    check(
        json!({"kind": "Secret", "metadata": {"name": "a"}, "data": {"user": "Ym9i", "x": null}, "stringData": {"conf": "a b"}}),
        &json!({"kind": "Secret", "metadata": {"name": "a"}, "data": {"user": hidden, "x": null}, "stringData": {"conf": hidden}}),
    );
    let config = json!({"kind": "ConfigMap", "data": {"conf": "abcdefgh12"}});
    check(config.clone(), &config);
    for text in [
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: a\nstringData:\n  conf: SECRET\n  more: |\n    SECRET\n",
        "apiVersion: v1\ndata:\n  conf: SECRET\nkind: Secret\n",
        "kubectl apply -f - <<EOF\nkind: \"Secret\"\ndata:\n  conf: SECRET\nEOF",
        "{\"kind\":\"Secret\",\"data\":{\"conf\":\"SECRET\"}}",
        "{\"apiVersion\":\"v1\",\"data\":{\"conf\":\"SECRET\",\"x\":\"y\"},\"kind\": \"Secret\"}",
    ] {
        check_hidden(&json!(text.replace("SECRET", S)));
    }
    let documents = "kind: ConfigMap\ndata:\n  conf: plain12345\n---\nkind: Secret\nmetadata:\n  name: a\ndata:\n  conf: eA==\ntype: Opaque";
    let shown = Redaction::default().hide(documents).map(|hidden| hidden.text);
    assert_eq!(
        shown.as_deref(),
        Some(
            "kind: ConfigMap\ndata:\n  conf: plain12345\n---\nkind: Secret\nmetadata:\n  name: a\ndata:\n  [redacted]\ntype: Opaque"
        )
    );
    for text in ["kind: SecretStore\ndata:\n  conf: plain12345\n", "a kind of Secret data: plain"] {
        assert_eq!(Redaction::default().hide(text).map(|hidden| hidden.text), None, "{text}");
    }
}
