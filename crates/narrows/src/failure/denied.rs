//! What to say when the agent could not do all that it wanted: who refused it, and what would let it.

use serde_json::Value;

use super::{Code, Failure};
use crate::present::{ANSWER, GATE, Refusal};
use crate::terminal::line;

/// How many hints are given: an agent may be refused many things.
const HINTS: usize = 3;

/// Where the rule stands by which a governed turn asks.
pub(crate) const THE_GATE: &str = "the gate";

/// How a person can be asked.
const ASKED: &str = "in a terminal you are asked, with --input events a program is";

impl Failure {
    /// The agent has answered, but could not do all that it wanted.
    pub(crate) fn denied(refused: &[Refusal]) -> Result<(), Self> {
        let Some(first) = refused.first() else { return Ok(()) };
        let wanted = line(&first.wanted);
        let is_unapproved = refused.iter().all(|refusal| refusal.by == GATE);
        let is_answered = refused.iter().any(|refusal| refusal.by == ANSWER);
        let message = match refused.len() {
            1 if is_answered => format!("what the agent wanted was not allowed: {wanted} ({})", first.words),
            count if is_answered => {
                format!(
                    "{count} things that the agent wanted were not allowed, the first: {wanted} ({})",
                    first.words
                )
            }
            1 if is_unapproved => {
                format!("what the agent wanted was not approved: {wanted} ({})", first.words)
            }
            count if is_unapproved => {
                format!(
                    "{count} things that the agent wanted were not approved, the first: {wanted} ({})",
                    first.words
                )
            }
            1 => format!("the rules refused what the agent wanted: {wanted}"),
            count => format!("the rules refused {count} things that the agent wanted, the first: {wanted}"),
        };
        let mut remedies: Vec<String> = Vec::new();
        for remedy in refused.iter().map(remedy) {
            if !remedies.contains(&remedy) && remedies.len() < HINTS {
                remedies.push(remedy);
            }
        }
        Err(remedies.into_iter().fold(Self::new(Code::Denied, message), Self::hint))
    }
}

/// Who refused it, and what would let it.
fn remedy(refusal: &Refusal) -> String {
    let because = &refusal.because;
    let text = |key: &str| line(because[key].as_str().unwrap_or_default());
    let is_asked = refusal.by != "policy";
    match text("by").as_str() {
        _ if refusal.by == GATE => {
            "it is for the signers of its governance: `narrows approve --list` shows them what waits, while it waits".to_owned()
        }
        "rule" if refusal.by == ANSWER && text("file") == THE_GATE => {
            "a policy of the governance wants it to be asked, and you said no".to_owned()
        }
        _ if refusal.by == ANSWER => {
            "you said no, and the agent went on without it; a rule of --policy lets it, or refuses it, without a question"
                .to_owned()
        }
        _ if refusal.by == "timed out" => {
            "nobody answered the question in time; --permission-timeout gives more".to_owned()
        }
        "network" => "the network is off: by --no-network, or by `network = false` in the rules".to_owned(),
        "web_search" => {
            "searching the web is off: by --no-web-search, or by `web_search = false` in the rules".to_owned()
        }
        "rule" if is_asked && text("file") == THE_GATE => {
            "a policy of the governance wants somebody to be asked: run it in a terminal, or let signers approve it \
             with `narrows approve`"
                .to_owned()
        }
        // Whose question it is no preset answers.
        "approval" => format!(
            "the governance of the agent wants somebody to be asked, whatever --access says: {ASKED}, and a rule of --policy \
             with `effect = \"allow\"` answers for you"
        ),
        "rule" if is_asked => format!("{} wants somebody to be asked: {ASKED}", rule(because)),
        "rule" => format!("{} denies it, and only a change of that rule lets it", rule(because)),
        "protected" => {
            format!("{} is protected: a rule with its `path` and `effect = \"allow\"` lets it", text("what"))
        }
        "preset" => {
            let (access, kind) = (text("access"), text("kind"));
            let about = match &refusal.mcp {
                // The kind alone would allow far more.
                Some((server, tool)) => format!(", `server = {server:?}` and `tool = {tool:?}`"),
                None => format!(" and `kind = \"{kind}\"`"),
            };
            let allow = format!("a rule of --policy with `effect = \"allow\"`{about} lets it");
            match (access.as_str(), is_asked) {
                (_, true) if kind == "execute" && refusal.is_asked_first => format!(
                    "the agent asks before it runs a command, which it may run itself, in no sandbox: {ASKED}; {allow}, \
                     and so does --access high"
                ),
                (_, true) => {
                    format!("{access} access asks about it: {ASKED}; {allow}, and so does --access high")
                }
                ("low", _) => format!("low access refuses it: --access medium lets more, and {allow}"),
                _ => format!(
                    "{access} access refuses it: --add-dir DIR lets it into another directory, and {allow}"
                ),
            }
        }
        "unreadable" => {
            "the command is too long or too deep to be judged, and so is refused; a plainer one is not"
                .to_owned()
        }
        _ if refusal.words.contains("outside the directories") => {
            "the agent may use its own directory only; --add-dir DIR adds another".to_owned()
        }
        _ => "the line `refused:` says why".to_owned(),
    }
}

/// The name of a rule, and where it stands.
fn rule(because: &Value) -> String {
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
    fn a_refusal_says_who_and_what_would_let_it() {
        #[track_caller]
        fn check(by: &str, because: &Value, expected: &str) {
            let hint = remedy(&refusal(by, because.clone()));
            assert!(hint.starts_with(expected), "{because}: {hint}");
        }
        let preset = |access: &str| json!({"by": "preset", "access": access, "kind": "edit", "why": "w"});
        let rule = json!({"by": "rule", "file": "r.toml", "line": 7, "number": 2});
        let named = json!({"by": "rule", "file": "r.toml", "line": 7, "number": 2, "name": "mine"});
        check("policy", &rule, "rule 2 (r.toml:7) denies it");
        check("policy", &named, "rule `mine` (r.toml:7) denies it");
        check("nobody to ask", &rule, "rule 2 (r.toml:7) wants somebody to be asked: in a terminal");
        check("timed out", &rule, "nobody answered the question in time; --permission-timeout");
        check("policy", &preset("low"), "low access refuses it: --access medium");
        check("policy", &preset("medium"), "medium access refuses it: --add-dir DIR");
        check("nobody to ask", &preset("medium"), "medium access asks about it: in a terminal");
        let approval = json!({"by": "approval", "reason": "require-approval: no policy matches"});
        check("nobody to ask", &approval, "the governance of the agent wants somebody to be asked, whatever");
        assert!(!remedy(&refusal("nobody to ask", approval)).contains("--access high"));
        check("policy", &json!({"by": "network"}), "the network is off: by --no-network");
        check("policy", &json!({"by": "web_search"}), "searching the web is off: by --no-web-search");
        let protected = json!({"by": "protected", "what": "a key", "secret": true});
        check("policy", &protected, "a key is protected: a rule with its `path`");
        check("policy", &json!({"by": "unreadable"}), "the command is too long");
        check("policy", &Value::Null, "the line `refused:` says why");
        check(GATE, &Value::Null, "it is for the signers of its governance");
        check(ANSWER, &preset("medium"), "you said no, and the agent went on without it");
        let gate = json!({"by": "rule", "file": THE_GATE, "line": 1, "number": 1, "name": "the gate asks"});
        check("nobody to ask", &gate, "a policy of the governance wants somebody to be asked");
        check(ANSWER, &gate, "a policy of the governance wants it to be asked, and you said no");
    }

    #[test]
    fn the_hint_for_a_tool_of_an_mcp_server_names_it_and_not_its_kind() {
        let because = json!({"by": "preset", "access": "medium", "kind": "other", "why": "w"});
        let mcp = Some(("files".to_owned(), "write_file".to_owned()));
        let hint = remedy(&Refusal { mcp, ..refusal("nobody to ask", because) });
        assert!(hint.contains("`server = \"files\"` and `tool = \"write_file\"` lets it"), "{hint}");
        assert!(!hint.contains("kind"), "{hint}");
    }

    #[test]
    fn the_hint_for_a_command_that_an_agent_asks_about_says_where_it_may_run() {
        let because = json!({"by": "preset", "access": "medium", "kind": "execute", "why": "w"});
        let asked = refusal("nobody to ask", because);
        let hint = remedy(&Refusal { is_asked_first: true, ..asked.clone() });
        assert!(
            hint.starts_with("the agent asks before it runs a command, which it may run itself"),
            "{hint}"
        );
        let (rule, access) = (hint.find("`kind = \"execute\"`"), hint.find("--access high"));
        assert!(rule.is_some() && rule < access, "{hint}");
        assert!(remedy(&asked).starts_with("medium access asks about it: "));
    }

    #[test]
    fn what_was_not_approved_is_not_said_to_be_refused_by_rules() {
        let unapproved = refusal(GATE, Value::Null);
        let told = |refused: &[Refusal]| Failure::denied(refused).unwrap_err().message();
        assert_eq!(
            told(std::slice::from_ref(&unapproved)),
            "what the agent wanted was not approved: Do it (no)"
        );
        let both = [unapproved.clone(), unapproved.clone()];
        assert_eq!(told(&both), "2 things that the agent wanted were not approved, the first: Do it (no)");
        let mixed = [unapproved, refusal("policy", Value::Null)];
        assert!(told(&mixed).starts_with("the rules refused 2 things"));
        let own = [refusal(ANSWER, Value::Null), refusal("policy", Value::Null)];
        assert_eq!(told(&own[..1]), "what the agent wanted was not allowed: Do it (no)");
        assert!(told(&own).starts_with("2 things that the agent wanted were not allowed, the first: Do it"));
    }

    #[test]
    fn hints_are_few_and_none_twice() {
        let many: Vec<Refusal> = (0..9)
            .map(|number| {
                let because = json!({"by": "rule", "file": "r", "line": number / 2, "number": number / 2});
                refusal("policy", because)
            })
            .collect();
        let failure = Failure::denied(&many).unwrap_err();
        assert_eq!(failure.hints().len(), HINTS);
        assert!(failure.hints()[1].starts_with("rule 1 (r:1)"), "{:?}", failure.hints());
        assert!(Failure::denied(&[]).is_ok());
    }
}
