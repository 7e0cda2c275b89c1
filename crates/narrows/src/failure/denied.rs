//! Denied requests of an agent: the decider, and settings that would allow them.

use serde_json::Value;

use super::{ExitStatus, Failure};
use crate::render::{BY_ANSWER, BY_GATE, Refusal};
use crate::terminal::line;

/// Maximum number of hints. An agent may be denied any number of requests.
const MAX_HINTS: usize = 3;

/// The name of the rule that asks on behalf of a gate, as recorded in decisions.
pub(crate) const GATE_RULES: &str = "the gate";

const HOW_TO_ANSWER: &str = "run narrows in a terminal, or answer with --input events";

impl Failure {
    /// Fails if requests of a finished agent were denied.
    pub(crate) fn denied(refused: &[Refusal]) -> Result<(), Self> {
        let Some(first) = refused.first() else { return Ok(()) };
        let wanted = line(&first.wanted);
        let is_unapproved = refused.iter().all(|refusal| refusal.by == BY_GATE);
        let is_answered = refused.iter().any(|refusal| refusal.by == BY_ANSWER);
        let message = match refused.len() {
            1 if is_answered => format!("denied: {wanted} ({})", first.words),
            count if is_answered => {
                format!("{count} requests of the agent were denied, the first: {wanted} ({})", first.words)
            }
            1 if is_unapproved => {
                format!("not approved: {wanted} ({})", first.words)
            }
            count if is_unapproved => {
                format!(
                    "{count} requests of the agent were not approved, the first: {wanted} ({})",
                    first.words
                )
            }
            1 => format!("denied by the policy: {wanted}"),
            count => format!("{count} requests of the agent were denied by the policy, the first: {wanted}"),
        };
        let mut remedies: Vec<String> = Vec::new();
        for remedy in refused.iter().map(denial_hint) {
            if !remedies.contains(&remedy) && remedies.len() < MAX_HINTS {
                remedies.push(remedy);
            }
        }
        Err(remedies.into_iter().fold(Self::new(ExitStatus::Denied, message), Self::with_hint))
    }
}

/// Returns the hint for a denied request: the decider, and settings that would allow the request.
fn denial_hint(refusal: &Refusal) -> String {
    let because = &refusal.because;
    let text = |key: &str| line(because[key].as_str().unwrap_or_default());
    let is_asked = refusal.by != "policy";
    match text("by").as_str() {
        _ if refusal.by == BY_GATE => {
            "the request needs an approval of the governance's signers, who can see pending requests with \
             `narrows approve --list`".to_owned()
        }
        "rule" if refusal.by == BY_ANSWER && text("file") == GATE_RULES => {
            "a policy of the governance asked for permission, and you denied the request".to_owned()
        }
        _ if refusal.by == BY_ANSWER => {
            "you denied the request, and the agent continued without it; to decide without a prompt, add a rule to a \
             --policy file"
                .to_owned()
        }
        _ if refusal.by == "timed out" => {
            "no answer in time; allow more time with --permission-timeout".to_owned()
        }
        "network" => "network access is off, because of --no-network or `network = false` in the rules".to_owned(),
        "web_search" => {
            "web search is off, because of --no-web-search or `web_search = false` in the rules".to_owned()
        }
        "rule" if is_asked && text("file") == GATE_RULES => {
            "a policy of the governance asks for permission: run narrows in a terminal, or let signers approve it with \
             `narrows approve`"
                .to_owned()
        }
        // No access preset replaces an approval of a gate.
        "approval" => format!(
            "the governance of the agent asks for permission, whatever --access is: {HOW_TO_ANSWER}, or answer with \
             a --policy rule that has `effect = \"allow\"`"
        ),
        "rule" if is_asked => format!("{} asks for permission: {HOW_TO_ANSWER}", rule_name(because)),
        "rule" => format!("{} denies the request; only a change of that rule can allow it", rule_name(because)),
        "protected" => {
            format!("{} is protected; to allow it, add a rule with its `path` and `effect = \"allow\"`", text("what"))
        }
        "preset" => {
            let (access, kind) = (text("access"), text("kind"));
            let about = match &refusal.mcp {
                // A rule for the kind alone would allow far more.
                Some((server, tool)) => format!(", `server = {server:?}` and `tool = {tool:?}`"),
                None => format!(" and `kind = \"{kind}\"`"),
            };
            let allow = format!("allow the request in a --policy file with `effect = \"allow\"`{about}");
            match (access.as_str(), is_asked) {
                (_, true) if kind == "execute" && refusal.is_asked_first => format!(
                    "the agent may run this command itself, outside of the sandbox, so medium access asks for \
                     permission: {HOW_TO_ANSWER}; or {allow}; --access high also allows it"
                ),
                (_, true) => {
                    format!("{access} access asks for permission: {HOW_TO_ANSWER}; or {allow}; --access high also \
                             allows it")
                }
                ("low", _) => format!("low access denies the request: use --access medium, or {allow}"),
                _ => format!(
                    "{access} access denies the request: add the directory with --add-dir DIR, or {allow}"
                ),
            }
        }
        "unreadable" => {
            "the command is too long or too deeply nested to be judged; use a simpler one"
                .to_owned()
        }
        _ if refusal.words.contains("outside the directories") => {
            "the agent may only use its own directory; add another with --add-dir DIR".to_owned()
        }
        _ => "see the reason in the line `denied:`".to_owned(),
    }
}

/// Returns the name of a rule with its position.
fn rule_name(because: &Value) -> String {
    let text = |key: &str| line(because[key].as_str().unwrap_or_default());
    let place = format!("({}:{})", text("file"), because["line"]);
    match because["name"].as_str() {
        Some(name) => format!("rule `{}` {place}", line(name)),
        None => format!("rule {} {place}", because["number"]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(by: &str, because: Value) -> Refusal {
        let (wanted, words) = ("Do it".to_owned(), "no".to_owned());
        Refusal { wanted, words, by: by.to_owned(), because, ..Refusal::default() }
    }

    #[test]
    fn a_denial_hint_names_the_decider_and_what_would_allow_the_request() {
        #[track_caller]
        fn check(by: &str, because: &Value, expected: &str) {
            let hint = denial_hint(&refusal(by, because.clone()));
            assert!(hint.starts_with(expected), "{because}: {hint}");
        }
        let preset = |access: &str| json!({"by": "preset", "access": access, "kind": "edit", "why": "w"});
        let rule = json!({"by": "rule", "file": "r.toml", "line": 7, "number": 2});
        let named = json!({"by": "rule", "file": "r.toml", "line": 7, "number": 2, "name": "mine"});
        check("policy", &rule, "rule 2 (r.toml:7) denies the request");
        check("policy", &named, "rule `mine` (r.toml:7) denies the request");
        check("nobody to ask", &rule, "rule 2 (r.toml:7) asks for permission: run narrows in a terminal");
        check("timed out", &rule, "no answer in time; allow more time with --permission-timeout");
        check("policy", &preset("low"), "low access denies the request: use --access medium");
        check(
            "policy",
            &preset("medium"),
            "medium access denies the request: add the directory with --add-dir DIR",
        );
        check(
            "nobody to ask",
            &preset("medium"),
            "medium access asks for permission: run narrows in a terminal",
        );
        let approval = json!({"by": "approval", "reason": "require-approval: no policy matches"});
        check("nobody to ask", &approval, "the governance of the agent asks for permission, whatever");
        assert!(!denial_hint(&refusal("nobody to ask", approval)).contains("--access high"));
        check("policy", &json!({"by": "network"}), "network access is off, because of --no-network");
        check("policy", &json!({"by": "web_search"}), "web search is off, because of --no-web-search");
        let protected = json!({"by": "protected", "what": "a key", "secret": true});
        check("policy", &protected, "a key is protected; to allow it, add a rule with its `path`");
        check("policy", &json!({"by": "unreadable"}), "the command is too long");
        check("policy", &Value::Null, "see the reason in the line `denied:`");
        check(BY_GATE, &Value::Null, "the request needs an approval of the governance's signers");
        check(BY_ANSWER, &preset("medium"), "you denied the request, and the agent continued without it");
        let gate = json!({"by": "rule", "file": GATE_RULES, "line": 1, "number": 1, "name": "the gate asks"});
        check("nobody to ask", &gate, "a policy of the governance asks for permission: run narrows");
        check(
            BY_ANSWER,
            &gate,
            "a policy of the governance asked for permission, and you denied the request",
        );
    }

    #[test]
    fn the_hint_for_an_mcp_tool_names_the_tool_and_not_its_kind() {
        let because = json!({"by": "preset", "access": "medium", "kind": "other", "why": "w"});
        let mcp = Some(("files".to_owned(), "write_file".to_owned()));
        let hint = denial_hint(&Refusal { mcp, ..refusal("nobody to ask", because) });
        assert!(hint.contains("`server = \"files\"` and `tool = \"write_file\"`"), "{hint}");
        assert!(!hint.contains("kind"), "{hint}");
    }

    #[test]
    fn the_hint_for_a_command_says_that_the_agent_may_run_it_without_a_sandbox() {
        let because = json!({"by": "preset", "access": "medium", "kind": "execute", "why": "w"});
        let asked = refusal("nobody to ask", because);
        let hint = denial_hint(&Refusal { is_asked_first: true, ..asked.clone() });
        assert!(hint.starts_with("the agent may run this command itself, outside of the sandbox"), "{hint}");
        let (rule, access) = (hint.find("`kind = \"execute\"`"), hint.find("--access high"));
        assert!(rule.is_some() && rule < access, "{hint}");
        assert!(denial_hint(&asked).starts_with("medium access asks for permission: "));
    }

    #[test]
    fn a_missing_approval_is_not_reported_as_denied_by_rules() {
        let unapproved = refusal(BY_GATE, Value::Null);
        let told = |refused: &[Refusal]| Failure::denied(refused).unwrap_err().message();
        assert_eq!(told(std::slice::from_ref(&unapproved)), "not approved: Do it (no)");
        let both = [unapproved.clone(), unapproved.clone()];
        assert_eq!(told(&both), "2 requests of the agent were not approved, the first: Do it (no)");
        let mixed = [unapproved, refusal("policy", Value::Null)];
        assert!(told(&mixed).starts_with("2 requests of the agent were denied by the policy"));
        let own = [refusal(BY_ANSWER, Value::Null), refusal("policy", Value::Null)];
        assert_eq!(told(&own[..1]), "denied: Do it (no)");
        assert!(told(&own).starts_with("2 requests of the agent were denied, the first: Do it"));
    }

    #[test]
    fn hints_are_bounded_and_unique() {
        let many: Vec<Refusal> = (0..9)
            .map(|number| {
                let because = json!({"by": "rule", "file": "r", "line": number / 2, "number": number / 2});
                refusal("policy", because)
            })
            .collect();
        let failure = Failure::denied(&many).unwrap_err();
        assert_eq!(failure.hints().len(), MAX_HINTS);
        assert!(failure.hints()[1].starts_with("rule 1 (r:1)"), "{:?}", failure.hints());
        assert!(Failure::denied(&[]).is_ok());
    }
}
