//! Checks a SANDBOX.md or RUNNER.md for unsupported features, also if it is written into another manifest.

use crate::code::Code;
use crate::finding::Draft;
use crate::yaml::{Content, Node};

/// Sandbox providers that Narrows does not support, and other programs do.
const REMOTE_PROVIDERS: &[&str] =
    &["mastra-e2b", "mastra-modal", "mastra-daytona", "mastra-blaxel", "node-permission"];

fn below(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
}

pub(super) fn lint(node: &Node, prefix: &str, found: &mut Vec<Draft>) {
    if let Some(provider) = node.get("provider")
        && let Some(name) = provider.text().filter(|name| *name != "local")
    {
        let message = match REMOTE_PROVIDERS.contains(&name) {
            true => "this provider creates remote sandboxes, and only local ones are supported",
            false => "unknown sandbox provider",
        };
        let draft = Draft::blocking(Code::Provider, provider.at, message).key(below(prefix, "provider"));
        found.push(draft.value(name).hint("write provider: local"));
    }
    for host in node.find(&["network", "egress"]).map(Node::items).unwrap_or_default() {
        if let Some(text) = host.text().filter(|text| !is_host(text)) {
            let draft = Draft::blocking(Code::UnusableValue, host.at, "invalid host name");
            let draft = draft.key(below(prefix, "network.egress")).value(text);
            found.push(
                draft.hint("write a name such as api.example.com, *.example.com or api.example.com:8443"),
            );
        }
    }
    let names = ["env.passthrough", "env.auth.state.env"];
    for key in names {
        let path: Vec<&str> = key.split('.').collect();
        for name in node.find(&path).map(Node::items).unwrap_or_default() {
            if let Some(text) = name.text().filter(|text| !is_variable(text)) {
                let message = "invalid variable name";
                let draft = Draft::blocking(Code::UnusableValue, name.at, message).key(below(prefix, key));
                found.push(
                    draft.value(text).hint("write names only; values come from the environment of narrows"),
                );
            }
        }
    }
    if let Some((key, _)) = node.entry("policy") {
        let message = "access to a sandbox is not enforced";
        let draft = Draft::blocking(Code::UnusableValue, key.at, message).key(below(prefix, "policy"));
        found.push(draft.hint("remove it, and use a POLICY.md of the governance"));
    }
    if let Some((key, _)) = node.entry("lifecycle") {
        let message = "a local sandbox ends with its session; this setting has no effect";
        let draft = Draft::warning(Code::Ignored, key.at, message).key(below(prefix, "lifecycle"));
        found.push(draft.hint("remove it"));
    }
    if let Some(cwd) = node.find(&["config", "cwd"])
        && cwd.text().is_none()
    {
        let draft = Draft::blocking(Code::UnusableValue, cwd.at, "a directory must be a string");
        found.push(draft.key(below(prefix, "config.cwd")).hint("write a path"));
    }
}

pub(super) fn runner(node: &Node, prefix: &str, found: &mut Vec<Draft>) {
    if let Some(engine) = node.get("engine").filter(|engine| engine.text() == Some("in-process")) {
        let message = "this engine is not supported; the agent runs in a process of its own";
        let draft = Draft::warning(Code::Downgraded, engine.at, message).key(below(prefix, "engine"));
        found.push(draft.value("in-process").hint("write engine: subprocess"));
    }
    if let Some((key, image)) = node.entry("image")
        && !matches!(image.content, Content::Null(_))
    {
        let message = "images are not supported: a local sandbox shows the files of this machine";
        let draft = Draft::blocking(Code::UnusableValue, key.at, message).key(below(prefix, "image"));
        found.push(draft.value(image.raw().unwrap_or_default()).hint("leave it out"));
    }
}

/// Returns `true` for a valid host name. The name may begin with `*.` and end with a port.
pub(crate) fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let (name, is_pattern) = match name.strip_prefix("*.") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // Some programs read a name that ends with a number as an IP address. A pattern with `*` cannot match
    // addresses.
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    let is_address = !is_pattern && name.parse::<std::net::Ipv4Addr>().is_ok();
    name.len() <= 253
        && name.split('.').all(label)
        && (!is_number || is_address)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn is_variable(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_with_optional_ports() {
        for host in ["api.openai.com", "*.example.com", "localhost", "10.0.0.1", "a.b:443"] {
            assert!(is_host(host), "{host}");
        }
        for other in [
            "",
            "*",
            "https://a.b",
            "a b",
            "a.b:0",
            "a.b:x",
            "-a.b",
            "a..b",
            "a.b/c",
            "**.a",
            "*.0.0.1",
            "127.1",
            "0x7f",
        ] {
            assert!(!is_host(other), "{other}");
        }
    }

    #[test]
    fn variables_are_names_and_never_values() {
        assert!(is_variable("OPENAI_API_KEY") && is_variable("_x1"));
        for other in ["", "A=B", "1A", "A-B", "A B", "É"] {
            assert!(!is_variable(other), "{other}");
        }
    }
}
