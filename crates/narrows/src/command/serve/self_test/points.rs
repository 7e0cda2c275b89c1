//! The thirty points of AIP-44, each with what was seen of it.

use narrows_govern::Mandate;
use narrows_manifest::AuditTarget;
use serde_json::Value;

use super::client::Act;
use super::live::Live;
use super::papers::Papers;
use super::point::{ABOUT, Outcome, Point, fails, holds, not_applicable, passes};
use super::script::{self, RAN, STOPPED};
use super::stage::Seen;
use super::stranger::Knock;
use super::wish::Wishes;
use crate::command::serve::charge::Charge;

/// Everything that points are judged by.
pub(super) struct Evidence<'a> {
    pub(super) charge: &'a Charge,
    pub(super) mandate: &'a Mandate,
    pub(super) wishes: &'a Wishes,
    pub(super) seen: &'a Seen,
    pub(super) live: &'a Live,
    /// What of the real log, the pins and the memory has changed meanwhile.
    pub(super) touched: &'a [String],
    pub(super) deadlines: Outcome,
    /// What came of a stranger who tried to come in.
    pub(super) knock: &'a Knock,
    /// The MCP server that the client has brought.
    pub(super) brought: Option<&'a str>,
    pub(super) who: &'a str,
}

/// What a line of the log is called in a report.
fn named(entry: Option<&Value>) -> String {
    let Some(entry) = entry else { return "no line".to_owned() };
    let decision = entry["policy"]["decision"].as_str().map(|it| format!(" {it}")).unwrap_or_default();
    let by = entry["policy"]["ref"].as_str().map(|it| format!(" by `{it}`")).unwrap_or_default();
    format!("line {} {}{decision}{by}", entry["seq"], entry["action"].as_str().unwrap_or("?"))
}

impl Evidence<'_> {
    /// All of them.
    pub(super) fn points(&self) -> Vec<Point> {
        let papers = Papers::of(self.charge);
        let on_paper = |look: &dyn Fn(&Papers) -> Outcome| match &papers {
            Ok(papers) => look(papers),
            Err(why) => not_applicable(why.clone()),
        };
        let known = self.charge.bundle.protocol_version;
        let outcomes = [
            self.live.conformance(&self.charge.bundle.capabilities),
            self.plain_peers(),
            on_paper(&Papers::front_matter),
            on_paper(&Papers::fields),
            on_paper(&Papers::traps),
            on_paper(&Papers::name),
            on_paper(&Papers::binding),
            on_paper(&|papers| papers.revision(known)),
            self.role(),
            self.stdio(),
            self.undeclared(),
            self.tier(),
            on_paper(&Papers::contradiction),
            self.meta(),
            self.operator(),
            self.states(),
            self.cancel_and_close(),
            self.live.ending(),
            self.seven_facts(),
            self.recorded_first(),
            self.place(),
            self.four_calls(),
            self.unauthorised(),
            self.permissions(),
            self.by_title(),
            self.identity(),
            self.cwd(),
            self.servers(),
            self.deadlines.clone(),
            self.history(),
        ];
        let numbered = outcomes.into_iter().zip(ABOUT).zip(1..);
        numbered.map(|((outcome, about), point)| Point { point, about, outcome }).collect()
    }

    fn stop(&self, act: &str) -> &str {
        self.seen.act(act).map_or("not tried", Act::stop)
    }

    fn count(&self, action: &str) -> usize {
        self.seen.entries.iter().filter(|entry| entry["action"] == action).count()
    }

    fn plain_peers(&self) -> Outcome {
        let said = self.seen.act("silence").map(Act::said).unwrap_or_default();
        let evidence =
            format!("a client and an agent that know nothing of it talked: {:?}", self.stop("silence"));
        holds(said == RAN, evidence)
    }

    fn role(&self) -> Outcome {
        let updates: usize = self.seen.acts.values().map(|act| act.updates.len()).sum();
        let prompts = self.seen.acts.values().filter(|act| act.stop() != "no answer").count();
        let kind = self.charge.bundle.role.name();
        holds(
            updates > 0 && prompts > 0,
            format!("{kind}: {prompts} prompts answered, {updates} updates shown"),
        )
    }

    fn stdio(&self) -> Outcome {
        let Seen { heard, garbled, .. } = self.seen;
        holds(
            *garbled == 0 && *heard > 0,
            format!("{heard} lines to the client, {garbled} of them no message"),
        )
    }

    fn undeclared(&self) -> Outcome {
        let Some(method) = script::undeclared(&self.charge.bundle.capabilities) else {
            return not_applicable("the manifest declares everything that a client can do");
        };
        let Some(act) = self.seen.act("undeclared") else { return fails("nothing could be tried") };
        let reached = act.asked.iter().any(|asked| asked["method"] == method);
        let said = act.said();
        let refused = said.contains("-32601") || said.contains("does not declare");
        holds(!reached && refused, format!("{method}: the agent was told {said:?}, the client nothing"))
    }

    fn tier(&self) -> Outcome {
        let answer = self.seen.act("initialize").map(|act| act.answer.clone()).unwrap_or_default();
        let shown = &answer["result"]["agentCapabilities"];
        let declared = self.charge.bundle.capabilities;
        let flags = [
            ("/loadSession", declared.load_session),
            ("/promptCapabilities/image", declared.image),
            ("/promptCapabilities/audio", declared.audio),
            ("/promptCapabilities/embeddedContext", declared.embedded_context),
            ("/mcpCapabilities/http", declared.mcp_http),
            ("/mcpCapabilities/sse", declared.mcp_sse),
            ("/mcpCapabilities/acp", declared.mcp_acp),
        ];
        let differs = |(place, is_declared): &&(&str, bool)| {
            (shown.pointer(place) == Some(&Value::Bool(true))) != *is_declared
        };
        let wrong: Vec<&str> = flags.iter().filter(differs).map(|(place, _)| &place[1..]).collect();
        if !answer["result"].is_object() || !wrong.is_empty() {
            return fails(format!("offered otherwise than declared: {}", wrong.join(", ")));
        }
        let on = flags.iter().filter(|(_, is_declared)| *is_declared).map(|(place, _)| &place[1..]);
        let on: Vec<&str> = on.collect();
        let on = if on.is_empty() { "nothing".to_owned() } else { on.join(", ") };
        passes(format!("{}: offers {on}, and nothing else", self.mandate.tier))
    }

    fn meta(&self) -> Outcome {
        let of = |name: &str| self.seen.act(name).map(|act| act.answer["result"]["_meta"]["aip44"].clone());
        let mark = |value: &Value| {
            value["operator"] == *self.mandate.operator && value["tier"] == *self.mandate.tier
        };
        let answers = ["initialize", "new"].iter().all(|name| of(name).is_some_and(|it| mark(&it)));
        let updates = self.seen.act("meta").map(|act| act.updates.as_slice()).unwrap_or_default();
        let theirs = updates.iter().find(|update| update["_meta"]["theirs"]["kept"] == 1);
        let marked = theirs.is_some_and(|update| mark(&update["_mark"]));
        let all = answers && marked;
        holds(
            all,
            "on initialize, session/new and session/update, beside the `_meta` of others, which is as it was",
        )
    }

    fn operator(&self) -> Outcome {
        let Some(operator) = &self.charge.bundle.operator else {
            return not_applicable("the manifest binds no operator");
        };
        let actor = format!("operator:{}", operator.front.id);
        let foreign = self.seen.entries.iter().filter(|entry| entry["actor"]["id"] != *actor).count();
        let (lines, tools) = (self.seen.entries.len(), self.charge.bundle.tools.names.len());
        let mut evidence = format!(
            "{lines} lines of {actor}, {tools} tools, {} policies",
            self.charge.bundle.policies.len()
        );
        let Wishes { missed, unasked, untried, .. } = self.wishes;
        for (slugs, why) in [
            (missed, "matches no tool"),
            (unasked, "is about an action that is never asked for"),
            (untried, "matched nothing that was tried"),
        ] {
            slugs.iter().for_each(|slug| evidence.push_str(&format!("; `{slug}` {why}")));
        }
        holds(foreign == 0 && lines > 0, evidence)
    }

    fn states(&self) -> Outcome {
        let mut wanted =
            vec!["operator.invoked", "operator.running", "operator.completed", "operator.interrupted"];
        if self.wishes.approved.is_some() {
            wanted.extend(["operator.suspended", "operator.resumed"]);
        }
        let missing: Vec<&str> = wanted.iter().copied().filter(|action| self.count(action) == 0).collect();
        if !missing.is_empty() {
            return fails(format!("never recorded: {}", missing.join(", ")));
        }
        let told: Vec<String> = wanted
            .iter()
            .map(|action| format!("{} {}", self.count(action), action.trim_start_matches("operator.")))
            .collect();
        passes(told.join(", "))
    }

    fn cancel_and_close(&self) -> Outcome {
        let reason = |entry: &&Value| entry["metadata"]["aip44"]["reason"] == "cancelled";
        let line = self.seen.act("cancel").and_then(|act| {
            self.seen.lines(act).iter().find(|entry| entry["action"] == "operator.interrupted").filter(reason)
        });
        let closed = self.seen.entries.iter().find(|entry| entry["action"] == "session.closed");
        let evidence = format!(
            "session/cancel ends with {:?} ({}), session/close with {}",
            self.stop("cancel"),
            named(line),
            named(closed)
        );
        holds(self.stop("cancel") == "cancelled" && line.is_some() && closed.is_some(), evidence)
    }

    fn seven_facts(&self) -> Outcome {
        let calls: Vec<&Value> =
            self.seen.entries.iter().filter(|entry| entry["action"] == "tool.call").collect();
        if calls.is_empty() {
            return match self.wishes.allowed.as_ref().or(self.wishes.approved.as_ref()) {
                Some(_) => fails("calls were made, and none is recorded"),
                None => not_applicable("nothing here may ever be called"),
            };
        }
        let facts = |entry: &&&Value| {
            let about = &entry["metadata"]["aip44"];
            let texts = ["operator", "session", "tool", "kind"].iter().all(|key| about[key].is_string());
            texts && !about["approval"].is_null() && entry["input"].is_object() && entry["output"].is_object()
        };
        let whole = calls.iter().filter(facts).count();
        let evidence = format!(
            "{whole} of {} `tool.call` lines tell all seven, such as {}",
            calls.len(),
            named(calls.first().copied())
        );
        holds(whole == calls.len(), evidence)
    }

    fn recorded_first(&self) -> Outcome {
        let early: Vec<&String> = self.seen.acts.values().flat_map(|act| &act.early).collect();
        if let Some(call) = early.first() {
            return fails(format!("the call {call:?} was shown before it was decided in the log"));
        }
        if self.wishes.allowed.is_none() {
            return not_applicable("nothing here is allowed, so nothing is shown");
        }
        let (decided, made) =
            (self.seen.line("policy.resolved", "allowed"), self.seen.line("tool.call", "allowed"));
        let number = |entry: Option<&Value>| entry.and_then(|entry| entry["seq"].as_u64());
        let in_order = matches!((number(decided), number(made)), (Some(first), Some(then)) if first < then);
        let left = self.seen.line("tool.call", "left");
        let is_left = left.is_some_and(|entry| entry["output"]["error"] == "interrupted");
        let evidence =
            format!("{}, then {}; what was left open is {}", named(decided), named(made), named(left));
        holds(in_order && is_left, evidence)
    }

    fn place(&self) -> Outcome {
        if !self.touched.is_empty() {
            return fails(format!("changed by this test: {}", self.touched.join(", ")));
        }
        match &self.charge.bundle.audit {
            AuditTarget::Log(path) => passes(format!("{}; this test wrote elsewhere", path.display())),
            AuditTarget::Off => not_applicable("an ungoverned manifest of tier basic keeps no log"),
        }
    }

    fn four_calls(&self) -> Outcome {
        if let Some(bad) = &self.seen.chain.bad {
            return fails(format!("the log does not verify: {bad}"));
        }
        let Wishes { allowed, denied, approved, .. } = self.wishes;
        let decision = |call: &str, wanted: &str| {
            let line = self.seen.line("policy.resolved", call);
            (line.is_some_and(|line| line["policy"]["decision"] == wanted), named(line))
        };
        let made = |call: &str| self.seen.line("tool.call", call);
        let mut told = Vec::new();
        let mut all = true;
        let mut say = |is_so: bool, words: String| {
            all &= is_so;
            told.push(words);
        };
        match allowed {
            Some(_) => {
                let (is_so, words) = decision("allowed", "allow");
                say(is_so && made("allowed").is_some(), format!("allowed {words}"));
            }
            None => say(true, "allowed: not applicable, no tool is".to_owned()),
        }
        match denied {
            Some(_) => {
                let (is_so, words) = decision("denied", "deny");
                say(is_so, format!("denied {words}"));
            }
            None => say(true, "denied: not applicable, none is".to_owned()),
        }
        match approved {
            Some(wish) => {
                let (is_so, words) = decision("approved", wish.ruling.class.name());
                let by = made("approved").map(|line| line["metadata"]["aip44"]["approval"].clone());
                let is_given = by.as_ref().is_some_and(|by| by.is_string() && by != "auto");
                say(is_so && is_given, format!("approved {words}, by {}", by.unwrap_or_default()));
            }
            None => say(true, "approved: not applicable, nothing needs it".to_owned()),
        }
        match allowed.as_ref().or(approved.as_ref()) {
            Some(_) => {
                let line = made("failed");
                let is_so = line.is_some_and(|line| !line["output"]["error"].is_null());
                say(is_so, format!("failed {}", named(line)));
            }
            None => say(true, "failed: not applicable".to_owned()),
        }
        say(self.seen.chain.entries > 0, format!("{} lines verify", self.seen.chain.entries));
        holds(all, told.join("; "))
    }

    /// A call that is denied is neither shown nor asked for nor made.
    fn is_hidden(&self, id: &str) -> Result<String, String> {
        let Some(act) = self.seen.act(id) else { return Err(format!("{id} was not tried")) };
        let asked = act.asked.iter().any(|asked| asked["params"]["toolCall"]["toolCallId"] == id);
        let line = self.seen.line("policy.resolved", id);
        let is_denied = line.is_some_and(|line| line["policy"]["decision"] == "deny");
        let tool = line.map(|line| line["subject"]["ref"].to_string()).unwrap_or_default();
        let words = format!("{tool}: {}", named(line));
        match (act.shows(id), asked, act.said().contains(STOPPED), is_denied) {
            (false, false, true, true) => Ok(format!("{words}, not shown, not run")),
            (true, ..) => Err(format!("{words}, and it was shown")),
            (_, true, ..) => Err(format!("{words}, and it was asked for")),
            (_, _, false, _) => Err(format!("{words}, and it ran")),
            (.., false) => Err(format!("{words}, and it is not recorded as denied")),
        }
    }

    fn unauthorised(&self) -> Outcome {
        let tried: Vec<&str> = [("denied", &self.wishes.denied), ("stranger", &self.wishes.stranger)]
            .into_iter()
            .filter(|(_, wish)| wish.is_some())
            .map(|(name, _)| name)
            .collect();
        let outcomes: Result<Vec<String>, String> = tried.iter().map(|name| self.is_hidden(name)).collect();
        match outcomes {
            Ok(told) if told.is_empty() => not_applicable("nothing here is denied, and any tool may be used"),
            Ok(told) => passes(told.join("; ")),
            Err(why) => fails(why),
        }
    }

    fn permissions(&self) -> Outcome {
        let Some(wish) = &self.wishes.approved else {
            return not_applicable("nothing here needs an approval");
        };
        let (Some(yes), Some(no)) = (self.seen.act("approved"), self.seen.act("rejected")) else {
            return fails("nothing could be tried");
        };
        let was_asked = !yes.asked.is_empty() || yes.ballots > 0;
        let words = format!(
            "{} asks because of `{}`: {} asked of the client, {} from elsewhere; once approved {:?}, once rejected {:?}",
            wish.tool(),
            wish.decided_by(),
            yes.asked.len(),
            yes.ballots,
            yes.said(),
            no.said()
        );
        holds(
            was_asked && yes.said().contains(RAN) && no.said().contains(STOPPED) && !no.said().contains(RAN),
            words,
        )
    }

    fn by_title(&self) -> Outcome {
        if self.wishes.denied.is_none() {
            return not_applicable("nothing here is denied");
        }
        let Some(act) = self.seen.act("unruly") else { return fails("nothing could be tried") };
        let interrupted = self.seen.lines(act).iter().find(|entry| entry["action"] == "operator.interrupted");
        let poisoned = self.is_hidden_after_poison();
        let evidence = format!(
            "a denied tool with a harmless title that ran all the same: {}, the turn ended with {:?}; {}",
            named(interrupted),
            act.stop(),
            poisoned.as_ref().map_or_else(Clone::clone, Clone::clone)
        );
        holds(
            interrupted.is_some() && act.stop() == "refusal" && !act.shows("unruly") && poisoned.is_ok(),
            evidence,
        )
    }

    /// A tool whose output says that everything is allowed changes nothing.
    fn is_hidden_after_poison(&self) -> Result<String, String> {
        let line = self.seen.line("policy.resolved", "poisoned");
        let is_denied = line.is_some_and(|line| line["policy"]["decision"] == "deny");
        let shown = self.seen.act("poison").is_some_and(|act| act.shows("poisoned"));
        if is_denied && !shown {
            Ok(format!("what a tool's output says changes nothing ({})", named(line)))
        } else {
            Err(format!("what a tool's output says was obeyed ({})", named(line)))
        }
    }

    fn identity(&self) -> Outcome {
        let foreign = self
            .seen
            .entries
            .iter()
            .filter(|entry| entry["metadata"]["aip44"]["identity"] != *self.who)
            .count();
        let strangers: usize = self.seen.acts.values().map(|act| act.strangers).sum();
        let lines = self.seen.entries.len();
        let words = format!(
            "on stdio the peer is {}, as the system says, in all of {lines} lines; strangers who approved were refused {strangers} times",
            self.who
        );
        let is_known = foreign == 0 && lines > 0 && !self.who.is_empty();
        match self.knock {
            Knock::TurnedAway(how) => holds(is_known, format!("{words}; at the door: {how}")),
            Knock::LetIn(how) => fails(format!("a stranger was not turned away: {how}")),
            Knock::NotTried(why) => holds(is_known, format!("{words}; at the door: not tried, {why}")),
        }
    }

    fn cwd(&self) -> Outcome {
        if self.mandate.roots.iter().any(|root| root.parent().is_none()) {
            return not_applicable("the workspace is the whole disk");
        }
        let codes: Vec<bool> = ["outside", "above", "relative"]
            .iter()
            .map(|name| {
                let answer = self.seen.act(name).map(|act| &act.answer["error"]);
                answer.is_some_and(|it| it["code"] == -32602 && it["data"]["code"] == "cwd_outside_root")
            })
            .collect();
        let recorded = self.seen.entries.iter().filter(|entry| {
            entry["action"] == "session.refused" && entry["metadata"]["aip44"]["code"] == "cwd_outside_root"
        });
        let lines: Vec<String> = recorded.map(|entry| entry["seq"].to_string()).collect();
        let evidence = format!(
            "`/`, the directory above and a relative one: cwd_outside_root, lines {}",
            lines.join(", ")
        );
        holds(codes.iter().all(|is_so| *is_so) && lines.len() == 3, evidence)
    }

    fn servers(&self) -> Outcome {
        let answer = self
            .seen
            .act("server")
            .map(|act| act.answer["error"]["data"]["code"].clone())
            .unwrap_or_default();
        let listed = self.charge.bundle.mcp_servers.len();
        let named = holds(
            answer == "server_not_listed",
            format!("one that only the client names is answered with {answer}; {listed} are the manifest's"),
        );
        named.with(&self.over_acp())
    }

    /// MCP over ACP, tried by an agent that lists the tools of a server in the client, and calls one that nobody knows.
    fn over_acp(&self) -> Outcome {
        let Some(act) = self.seen.act("mcp") else { return fails("nothing could be tried") };
        let told = act.said();
        let reached = |method: &str| {
            let is_it =
                |asked: &&Value| asked["params"]["method"] == method && asked["method"] == "mcp/message";
            act.asked.iter().any(|asked| is_it(&asked))
        };
        let Some(name) = self.brought else {
            let (code, why) = match self.mandate.capabilities.mcp_acp {
                true => ("-32602", "no server of the client is listed"),
                false => ("-32601", "it is not declared"),
            };
            let is_held = told.matches(code).count() == 2 && !reached("tools/list") && !reached("tools/call");
            return holds(
                is_held,
                format!("MCP over ACP: {why}, so an agent that tries is told {code}, and the client nothing"),
            );
        };
        let tool = format!("{name}/{}", script::TOOL);
        let line = self.seen.lines(act).iter().find(|entry| {
            entry["action"] == "policy.resolved" && entry["metadata"]["aip44"]["tool"] == *tool
        });
        let is_denied = line.is_some_and(|line| line["policy"]["decision"] == "deny");
        let is_held = reached("tools/list") && line.is_some() && !(is_denied && reached("tools/call"));
        holds(
            is_held,
            format!("MCP over ACP: {name} lists its tools, and a call of {tool} is {}", named(line)),
        )
    }

    fn history(&self) -> Outcome {
        let Some(act) = self.seen.act("load") else { return fails("nothing could be tried") };
        if !self.charge.bundle.capabilities.load_session {
            let code = &act.answer["error"]["code"];
            return holds(*code == -32601, format!("not declared: session/load is answered with {code}"));
        }
        let lines = self.seen.lines(act);
        let acted =
            lines.iter().find(|entry| entry["action"] == "policy.resolved" || entry["action"] == "tool.call");
        let replayed = act.updates.len();
        let words = format!(
            "{replayed} updates replayed, {} asked, {} recorded as a call",
            act.asked.len(),
            acted.map_or_else(|| "nothing".to_owned(), |entry| named(Some(entry)))
        );
        holds(
            act.answer["result"].is_object() && acted.is_none() && act.asked.is_empty() && replayed > 0,
            words,
        )
    }
}
