//! Checks OPERATOR.md, GOVERNANCE.md and POLICY.md for obstacles to running.

use std::path::Path;

use narrows_base::suggest::nearest;

use super::named;
use crate::code::Code;
use crate::finding::Draft;
use crate::kind::ManifestKind;
use crate::yaml::{Content, Node, SourcePos};

pub(super) fn operator(node: &Node, found: &mut Vec<Draft>) {
    for (number, tool) in node.get("tools").map(Node::items).unwrap_or_default().iter().enumerate() {
        kind_of_tool(tool.get("id").unwrap_or(tool), &format!("tools[{number}]"), found);
    }
    let kind = node.find(&["memory", "kind"]);
    if let Some(kind) = kind.filter(|kind| kind.text() == Some("external"))
        && node.find(&["memory", "external"]).is_none()
    {
        let message = "memory is external, but no reference to it is given";
        let draft =
            Draft::blocking(Code::Contradiction, kind.at, message).key("memory.kind").value("external");
        found.push(draft.hint("add external: {uri: …} below memory"));
    }
}

pub(super) fn lint(node: &Node, found: &mut Vec<Draft>) {
    if let Some(hash) = node.find(&["audit", "hashAlgo"]).filter(|hash| hash.text() == Some("blake3")) {
        let draft = Draft::blocking(Code::Hash, hash.at, "BLAKE3 is not supported for the audit log");
        found.push(draft.key("audit.hashAlgo").value("blake3").hint("write sha256"));
    }
    if let Some(hash) = node.find(&["audit", "hashAlgo"]).filter(|hash| hash.text() == Some("sha512")) {
        let draft = Draft::blocking(Code::Hash, hash.at, "SHA-512 is not supported for the audit log");
        found.push(draft.key("audit.hashAlgo").value("sha512").hint("write sha256"));
    }
    if let Some(algo) = node.find(&["signing", "algo"])
        && let Some(name @ ("ecdsa-p256" | "rsa-pss-sha256")) = algo.text()
    {
        let draft = Draft::blocking(Code::Algorithm, algo.at, "this signature algorithm is not supported");
        found.push(draft.key("signing.algo").value(name).hint("write ed25519"));
    }
    for (number, policy) in node.get("policies").map(Node::items).unwrap_or_default().iter().enumerate() {
        if let Some(action) = policy.get("appliesTo") {
            check_action(action, &format!("policies[{number}].appliesTo"), None, found);
        }
    }
    for list in ["policies", "approvers"] {
        duplicates(node.get(list), "id", list, found);
    }
}

/// Reports ids that occur twice in one file, because one of the two entries would be lost.
pub(super) fn duplicates(list: Option<&Node>, id: &str, key: &str, found: &mut Vec<Draft>) {
    let ids: Vec<&Node> =
        list.map(Node::items).unwrap_or_default().iter().filter_map(|item| item.get(id)).collect();
    for (number, node) in ids.iter().enumerate() {
        let Some(text) = node.text() else { continue };
        if ids[..number].iter().any(|earlier| earlier.text() == Some(text)) {
            let message = format!("`{}` is listed twice", narrows_base::text::quoted(text, 64));
            let draft = Draft::blocking(Code::Duplicate, node.at, message).key(key).value(text);
            found.push(draft.hint("give one of them a different id"));
        }
    }
}

/// Reports a tool kind that no tool has. A rule with such a kind never matches, so a denied action would be
/// allowed.
fn kind_of_tool(node: &Node, key: &str, found: &mut Vec<Draft>) {
    let Some(text) = node.text() else { return };
    let Some(kind) = text.strip_prefix("kind:") else { return };
    let Some(hint) = narrows_policy::Kind::correction(kind) else { return };
    let message = format!("no tool has the kind `{}`", narrows_base::text::quoted(kind, 64));
    found.push(Draft::blocking(Code::Enum, node.at, message).key(key).value(text).hint(hint));
}

/// Warns about a misspelled action. A policy with such an action never matches, so a denied action would be
/// allowed. Other programs may have further actions, so this is no error.
fn check_action(node: &Node, key: &str, decision: Option<&str>, found: &mut Vec<Draft>) {
    let Some(text) = node.text() else { return };
    found.extend(
        misspelled_action(node.at, text, decision == Some("deny")).map(|draft| draft.key(key).value(text)),
    );
}

fn misspelled_action(at: SourcePos, action: &str, denies: bool) -> Option<Draft> {
    let draft = unmatched_action(at, action, denies)?;
    nearest(action, narrows_policy::ACTIONS).map(|near| draft.hint(format!("did you mean {near}?")))
}

/// Warns that only other programs have this action. Reported only if the policy is run.
pub(crate) fn action_of_other_program(at: SourcePos, action: &str, denies: bool) -> Option<Draft> {
    if misspelled_action(at, action, denies).is_some() {
        return None;
    }
    let actions = narrows_policy::ACTIONS.join(", ");
    let hint = format!("write one of {actions}, or a pattern of them; keep it if it is for another program");
    unmatched_action(at, action, denies).map(|draft| draft.value(action).hint(hint))
}

fn unmatched_action(at: SourcePos, action: &str, denies: bool) -> Option<Draft> {
    if narrows_policy::is_known_action(action) {
        return None;
    }
    let effect = if denies { "denies nothing" } else { "decides nothing" };
    let shown = narrows_base::text::quoted(action, 64);
    let message = format!("no action matches `{shown}`, so this policy {effect}");
    Some(Draft::warning(Code::Action, at, message))
}

pub(super) fn policy(path: &Path, node: &Node, found: &mut Vec<Draft>) {
    named(path, ManifestKind::Policy, "slug", node, found);
    // A pattern may match several subjects, so it cannot be checked against one name.
    let is_plain = |subject: &&Node| subject.text().is_some_and(|text| !text.contains(['*', '?', '[', '{']));
    if let Some(subject) = node.find(&["match", "subject"]).filter(is_plain) {
        kind_of_tool(subject, "match.subject", found);
    }
    let decision = node.get("decision").and_then(Node::text);
    if let Some(action) = node.find(&["match", "action"]) {
        check_action(action, "match.action", decision, found);
    }
    if let Some(autonomy) = node.get("autonomy")
        && let (Some("allow"), Content::Number(Some(number), _)) = (decision, &autonomy.content)
        && number.as_u64() == Some(0)
    {
        let message = "with autonomy 0, this policy allows nothing";
        let draft =
            Draft::blocking(Code::AllowWithoutAutonomy, autonomy.at, message).key("autonomy").value("0");
        found.push(draft.hint("set a level from 1 to 4, or decision: require-approval"));
    }
    if let (Some("require-approval"), Some((key, signers))) = (decision, node.entry("signers"))
        && matches!(&signers.content, Content::List(list) if list.is_empty())
    {
        let draft =
            Draft::blocking(Code::Signers, key.at, "an approval is required, but there are no signers");
        found.push(draft.key("signers").hint("name a role or a userId, or write decision: deny"));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Code, ManifestKind, check};

    #[test]
    fn a_kind_that_no_tool_has_is_found() {
        let judge = |subject: &str, hint: Option<&str>| {
            let text = format!("---\nmatch: {{action: tool.call, subject: \"{subject}\"}}\n---\n");
            let findings = check(ManifestKind::Policy, Path::new("p/POLICY.md"), text.as_bytes());
            let found = findings.iter().find(|finding| finding.code == Code::Enum);
            assert_eq!(found.and_then(|finding| finding.hint.as_deref()), hint, "{subject}");
        };
        judge("kind:exec", Some("did you mean kind:execute?"));
        judge("kind:raed", Some("did you mean kind:read?"));
        judge(
            "kind:purchase",
            Some(
                "write kind: and one of think, read, search, fetch, edit, move, delete, execute, switch_mode, other",
            ),
        );
        for fine in
            ["kind:read", "kind:switch_mode", "kind:*", "kind:_levitate", "Bash", "workspace:/kind:exec"]
        {
            judge(fine, None);
        }
    }

    #[test]
    fn an_action_that_is_never_judged_is_found() {
        let judge = |action: &str, decision: &str, expected: Option<&str>| {
            let text = format!("---\nmatch:\n  action: \"{action}\"\ndecision: {decision}\n---\n");
            let findings = check(ManifestKind::Policy, Path::new("p/POLICY.md"), text.as_bytes());
            let found = findings.iter().find(|finding| finding.code == Code::Action);
            assert_eq!(found.map(ToString::to_string).as_deref(), expected, "{action}");
        };
        let finding_text = |action: &str, hint: &str| {
            format!(
                "p/POLICY.md:3:11: warning[action-unmatched]: match.action: no action matches `{action}`, so this policy \
                 denies nothing; {hint}"
            )
        };
        for (typo, near) in [
            ("tool.cal", "tool.call"),
            ("tool.calls", "tool.call"),
            ("tool_call", "tool.call"),
            ("Tool.call", "tool.call"),
            ("mutate", "mutates"),
            ("workspace.wirte", "workspace.write"),
            ("comand.run", "command.run"),
        ] {
            judge(typo, "deny", Some(&finding_text(typo, &format!("did you mean {near}?"))));
        }
        // An action of other programs is reported only when the policy is run.
        judge("payment.send", "deny", None);
        let mild =
            finding_text("tool.cal", "did you mean tool.call?").replace("denies nothing", "decides nothing");
        judge("tool.cal", "allow", Some(&mild));
        for fine in narrows_policy::ACTIONS.into_iter().chain(["*", "tool.*", "workspace.*", "*.write"]) {
            judge(fine, "deny", None);
        }
        let text = "---\npolicies: [{id: p, ref: ./P.md, appliesTo: tool.cal}]\n---\n";
        let findings = check(ManifestKind::Governance, Path::new("g/GOVERNANCE.md"), text.as_bytes());
        assert!(
            findings.iter().any(|it| it.code == Code::Action && it.key == "policies[0].appliesTo"),
            "{findings}"
        );
    }

    #[test]
    fn an_operator_is_granted_no_kind_that_no_tool_has() {
        let text = "---\ntools: [read_file, 'kind:read', 'kind:exec', {id: 'kind:serach', scope: {workspace: docs}}]\n---\n";
        let findings = check(ManifestKind::Operator, Path::new("o/OPERATOR.md"), text.as_bytes());
        let found = findings.iter().filter(|finding| finding.code == Code::Enum);
        let texts: Vec<String> =
            found.map(|it| format!("{}: {}", it.key, it.hint.as_deref().unwrap_or_default())).collect();
        assert_eq!(texts, ["tools[2]: did you mean kind:execute?", "tools[3]: did you mean kind:search?"]);
    }
}
