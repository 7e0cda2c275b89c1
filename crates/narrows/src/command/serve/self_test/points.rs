//! The thirty points of AIP-44, each judged by the observations.

use narrows_govern::GateConfig;
use narrows_manifest::AuditTarget;
use serde_json::Value;

use super::broken_manifests::BrokenManifests;
use super::client::Step;
use super::foreign_user::ForeignUserResult;
use super::harness::Observations;
use super::live_agent::LiveAgent;
use super::point::{POINT_TITLES, Point, PointResult, fails, not_applicable, passes, passes_if};
use super::sample_calls::SampleCalls;
use super::script::{self, RAN_TEXT, STOPPED_TEXT};
use crate::command::serve::manifest::LoadedManifest;

pub(super) struct Evidence<'a> {
    pub(super) manifest: &'a LoadedManifest,
    pub(super) mandate: &'a GateConfig,
    pub(super) samples: &'a SampleCalls,
    pub(super) observed: &'a Observations,
    pub(super) agent: &'a LiveAgent,
    /// Files of the real log, pins and memory that the test has changed.
    pub(super) changed_files: &'a [String],
    pub(super) deadlines: PointResult,
    pub(super) foreign_user: &'a ForeignUserResult,
    /// The name of the MCP server that the client provides.
    pub(super) client_server: Option<&'a str>,
    pub(super) who: &'a str,
}

/// Returns the name of a log line in a report.
fn entry_name(entry: Option<&Value>) -> String {
    let Some(entry) = entry else { return "no line".to_owned() };
    let decision = entry["policy"]["decision"].as_str().map(|it| format!(" {it}")).unwrap_or_default();
    let by = entry["policy"]["ref"].as_str().map(|it| format!(" by `{it}`")).unwrap_or_default();
    format!("line {} {}{decision}{by}", entry["seq"], entry["action"].as_str().unwrap_or("?"))
}

impl Evidence<'_> {
    pub(super) fn points(&self) -> Vec<Point> {
        let broken = BrokenManifests::from_manifest(self.manifest);
        let with_broken = |look: &dyn Fn(&BrokenManifests) -> PointResult| match &broken {
            Ok(broken) => look(broken),
            Err(why) => not_applicable(why.clone()),
        };
        let known = self.manifest.bundle.protocol_version;
        let outcomes = [
            self.agent.conformance(&self.manifest.bundle.capabilities),
            self.plain_peers(),
            with_broken(&BrokenManifests::front_matter),
            with_broken(&BrokenManifests::fields),
            with_broken(&BrokenManifests::traps),
            with_broken(&BrokenManifests::name),
            with_broken(&BrokenManifests::binding),
            with_broken(&|broken| broken.revision(known)),
            self.role(),
            self.stdio(),
            self.undeclared(),
            self.tier(),
            with_broken(&BrokenManifests::contradiction),
            self.meta(),
            self.operator(),
            self.states(),
            self.cancel_and_close(),
            self.agent.ending(),
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
        let numbered = outcomes.into_iter().zip(POINT_TITLES).zip(1..);
        numbered.map(|((outcome, about), point)| Point { point, about, outcome }).collect()
    }

    fn stop(&self, step: &str) -> &str {
        self.observed.step(step).map_or("not tested", Step::stop_reason)
    }

    fn count(&self, action: &str) -> usize {
        self.observed.entries.iter().filter(|entry| entry["action"] == action).count()
    }

    fn plain_peers(&self) -> PointResult {
        let said = self.observed.step("silence").map(Step::agent_text).unwrap_or_default();
        let evidence = format!("a client and an agent without extensions talked: {:?}", self.stop("silence"));
        passes_if(said == RAN_TEXT, evidence)
    }

    fn role(&self) -> PointResult {
        let updates: usize = self.observed.steps.values().map(|step| step.updates.len()).sum();
        let prompts = self.observed.steps.values().filter(|step| step.stop_reason() != "no answer").count();
        let kind = self.manifest.bundle.role.name();
        passes_if(
            updates > 0 && prompts > 0,
            format!("{kind}: {prompts} prompts answered, {updates} updates forwarded"),
        )
    }

    fn stdio(&self) -> PointResult {
        let Observations { received_lines, invalid_lines, .. } = self.observed;
        passes_if(
            *invalid_lines == 0 && *received_lines > 0,
            format!("{received_lines} lines to the client, {invalid_lines} of them invalid"),
        )
    }

    fn undeclared(&self) -> PointResult {
        let Some(method) = script::undeclared(&self.manifest.bundle.capabilities) else {
            return not_applicable("the manifest declares all client capabilities");
        };
        let Some(step) = self.observed.step("undeclared") else { return fails("nothing could be tested") };
        let reached = step.requests.iter().any(|asked| asked["method"] == method);
        let said = step.agent_text();
        let refused = said.contains("-32601") || said.contains("does not declare");
        passes_if(!reached && refused, format!("{method}: the agent got {said:?}, the client got nothing"))
    }

    fn tier(&self) -> PointResult {
        let answer = self.observed.step("initialize").map(|step| step.answer.clone()).unwrap_or_default();
        let shown = &answer["result"]["agentCapabilities"];
        let declared = self.manifest.bundle.capabilities;
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
            return fails(format!("offered and declared capabilities differ: {}", wrong.join(", ")));
        }
        let on = flags.iter().filter(|(_, is_declared)| *is_declared).map(|(place, _)| &place[1..]);
        let on: Vec<&str> = on.collect();
        let on = if on.is_empty() { "nothing".to_owned() } else { on.join(", ") };
        passes(format!("{}: offers exactly {on}", self.mandate.tier))
    }

    fn meta(&self) -> PointResult {
        let of =
            |name: &str| self.observed.step(name).map(|step| step.answer["result"]["_meta"]["aip44"].clone());
        let mark = |value: &Value| {
            value["operator"] == *self.mandate.operator && value["tier"] == *self.mandate.tier
        };
        let answers = ["initialize", "new"].iter().all(|name| of(name).is_some_and(|it| mark(&it)));
        let updates = self.observed.step("meta").map(|step| step.updates.as_slice()).unwrap_or_default();
        let theirs = updates.iter().find(|update| update["_meta"]["theirs"]["kept"] == 1);
        let marked = theirs.is_some_and(|update| mark(&update["_mark"]));
        let all = answers && marked;
        passes_if(all, "on initialize, session/new and session/update; other `_meta` members are unchanged")
    }

    fn operator(&self) -> PointResult {
        let Some(operator) = &self.manifest.bundle.operator else {
            return not_applicable("the manifest has no operator");
        };
        let actor = format!("operator:{}", operator.front.id);
        let foreign = self.observed.entries.iter().filter(|entry| entry["actor"]["id"] != *actor).count();
        let (lines, tools) = (self.observed.entries.len(), self.manifest.bundle.tools.names.len());
        let mut evidence = format!(
            "{lines} lines of {actor}, {tools} tools, {} policies",
            self.manifest.bundle.policies.len()
        );
        let SampleCalls { unknown_tool_policies, unrequested_action_policies, unmatched_policies, .. } =
            self.samples;
        for (slugs, why) in [
            (unknown_tool_policies, "matches no tool"),
            (unrequested_action_policies, "is about an action that is never requested"),
            (unmatched_policies, "matched none of the sample calls"),
        ] {
            slugs.iter().for_each(|slug| evidence.push_str(&format!("; `{slug}` {why}")));
        }
        passes_if(foreign == 0 && lines > 0, evidence)
    }

    fn states(&self) -> PointResult {
        let mut wanted =
            vec!["operator.invoked", "operator.running", "operator.completed", "operator.interrupted"];
        if self.samples.approved.is_some() {
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

    fn cancel_and_close(&self) -> PointResult {
        let reason = |entry: &&Value| entry["metadata"]["aip44"]["reason"] == "cancelled";
        let line = self.observed.step("cancel").and_then(|step| {
            self.observed
                .lines(step)
                .iter()
                .find(|entry| entry["action"] == "operator.interrupted")
                .filter(reason)
        });
        let closed = self.observed.entries.iter().find(|entry| entry["action"] == "session.closed");
        let evidence = format!(
            "session/cancel ends with {:?} ({}), session/close with {}",
            self.stop("cancel"),
            entry_name(line),
            entry_name(closed)
        );
        passes_if(self.stop("cancel") == "cancelled" && line.is_some() && closed.is_some(), evidence)
    }

    fn seven_facts(&self) -> PointResult {
        let calls: Vec<&Value> =
            self.observed.entries.iter().filter(|entry| entry["action"] == "tool.call").collect();
        if calls.is_empty() {
            return match self.samples.allowed.as_ref().or(self.samples.approved.as_ref()) {
                Some(_) => fails("calls were made, but none was recorded"),
                None => not_applicable("no tool may ever be called"),
            };
        }
        let facts = |entry: &&&Value| {
            let about = &entry["metadata"]["aip44"];
            let texts = ["operator", "session", "tool", "kind"].iter().all(|key| about[key].is_string());
            texts && !about["approval"].is_null() && entry["input"].is_object() && entry["output"].is_object()
        };
        let whole = calls.iter().filter(facts).count();
        let evidence = format!(
            "{whole} of {} `tool.call` lines have all seven, such as {}",
            calls.len(),
            entry_name(calls.first().copied())
        );
        passes_if(whole == calls.len(), evidence)
    }

    fn recorded_first(&self) -> PointResult {
        let early: Vec<&String> = self.observed.steps.values().flat_map(|step| &step.early).collect();
        if let Some(call) = early.first() {
            return fails(format!("the call {call:?} was shown before its decision was in the log"));
        }
        if self.samples.allowed.is_none() {
            return not_applicable("no tool is allowed, so nothing is shown");
        }
        let (decided, made) =
            (self.observed.line("policy.resolved", "allowed"), self.observed.line("tool.call", "allowed"));
        let number = |entry: Option<&Value>| entry.and_then(|entry| entry["seq"].as_u64());
        let in_order = matches!((number(decided), number(made)), (Some(first), Some(then)) if first < then);
        let left = self.observed.line("tool.call", "left");
        let is_left = left.is_some_and(|entry| entry["output"]["error"] == "interrupted");
        let evidence = format!(
            "{}, then {}; the pending call is {}",
            entry_name(decided),
            entry_name(made),
            entry_name(left)
        );
        passes_if(in_order && is_left, evidence)
    }

    fn place(&self) -> PointResult {
        if !self.changed_files.is_empty() {
            return fails(format!("changed by this test: {}", self.changed_files.join(", ")));
        }
        match &self.manifest.bundle.audit {
            AuditTarget::Log(path) => passes(format!("{}; this test used another directory", path.display())),
            AuditTarget::Off => not_applicable("an ungoverned manifest of tier basic has no log"),
        }
    }

    fn four_calls(&self) -> PointResult {
        if let Some(bad) = &self.observed.chain.bad {
            return fails(format!("the log does not verify: {bad}"));
        }
        let SampleCalls { allowed, denied, approved, .. } = self.samples;
        let decision = |call: &str, wanted: &str| {
            let line = self.observed.line("policy.resolved", call);
            (line.is_some_and(|line| line["policy"]["decision"] == wanted), entry_name(line))
        };
        let made = |call: &str| self.observed.line("tool.call", call);
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
            None => say(true, "allowed: not applicable, no tool is allowed".to_owned()),
        }
        match denied {
            Some(_) => {
                let (is_so, words) = decision("denied", "deny");
                say(is_so, format!("denied {words}"));
            }
            None => say(true, "denied: not applicable, no tool is denied".to_owned()),
        }
        match approved {
            Some(sample) => {
                let (is_so, words) = decision("approved", sample.ruling.class.name());
                let by = made("approved").map(|line| line["metadata"]["aip44"]["approval"].clone());
                let is_given = by.as_ref().is_some_and(|by| by.is_string() && by != "auto");
                say(is_so && is_given, format!("approved {words}, by {}", by.unwrap_or_default()));
            }
            None => say(true, "approved: not applicable, no tool needs an approval".to_owned()),
        }
        match allowed.as_ref().or(approved.as_ref()) {
            Some(_) => {
                let line = made("failed");
                let is_so = line.is_some_and(|line| !line["output"]["error"].is_null());
                say(is_so, format!("failed {}", entry_name(line)));
            }
            None => say(true, "failed: not applicable".to_owned()),
        }
        say(self.observed.chain.entries > 0, format!("{} lines verify", self.observed.chain.entries));
        passes_if(all, told.join("; "))
    }

    /// Passes if a denied call was neither shown, nor asked for, nor run.
    fn is_hidden(&self, id: &str) -> Result<String, String> {
        let Some(step) = self.observed.step(id) else { return Err(format!("{id} was not tested")) };
        let asked = step.requests.iter().any(|asked| asked["params"]["toolCall"]["toolCallId"] == id);
        let line = self.observed.line("policy.resolved", id);
        let is_denied = line.is_some_and(|line| line["policy"]["decision"] == "deny");
        let tool = line.map(|line| line["subject"]["ref"].to_string()).unwrap_or_default();
        let words = format!("{tool}: {}", entry_name(line));
        match (step.shows_call(id), asked, step.agent_text().contains(STOPPED_TEXT), is_denied) {
            (false, false, true, true) => Ok(format!("{words}, neither shown nor run")),
            (true, ..) => Err(format!("{words}, but shown")),
            (_, true, ..) => Err(format!("{words}, but the client was asked")),
            (_, _, false, _) => Err(format!("{words}, but run")),
            (.., false) => Err(format!("{words}, but not recorded as denied")),
        }
    }

    fn unauthorised(&self) -> PointResult {
        let tried: Vec<&str> = [("denied", &self.samples.denied), ("stranger", &self.samples.unknown)]
            .into_iter()
            .filter(|(_, sample)| sample.is_some())
            .map(|(name, _)| name)
            .collect();
        let outcomes: Result<Vec<String>, String> = tried.iter().map(|name| self.is_hidden(name)).collect();
        match outcomes {
            Ok(told) if told.is_empty() => not_applicable("no tool is denied, and any tool may be used"),
            Ok(told) => passes(told.join("; ")),
            Err(why) => fails(why),
        }
    }

    fn permissions(&self) -> PointResult {
        let Some(sample) = &self.samples.approved else {
            return not_applicable("no tool needs an approval");
        };
        let (Some(yes), Some(no)) = (self.observed.step("approved"), self.observed.step("rejected")) else {
            return fails("nothing could be tested");
        };
        let was_asked = !yes.requests.is_empty() || yes.approvals > 0;
        let words = format!(
            "{} asks because of `{}`: client asked {} times, other processes {} times; once approved {:?}, once \
             rejected {:?}",
            sample.tool(),
            sample.decided_by(),
            yes.requests.len(),
            yes.approvals,
            yes.agent_text(),
            no.agent_text()
        );
        passes_if(
            was_asked
                && yes.agent_text().contains(RAN_TEXT)
                && no.agent_text().contains(STOPPED_TEXT)
                && !no.agent_text().contains(RAN_TEXT),
            words,
        )
    }

    fn by_title(&self) -> PointResult {
        if self.samples.denied.is_none() {
            return not_applicable("no tool is denied");
        }
        let Some(step) = self.observed.step("unruly") else { return fails("nothing could be tested") };
        let interrupted =
            self.observed.lines(step).iter().find(|entry| entry["action"] == "operator.interrupted");
        let poisoned = self.check_injection();
        let evidence = format!(
            "a denied tool with a harmless title that was run anyway: {}, the turn ended with {:?}; {}",
            entry_name(interrupted),
            step.stop_reason(),
            poisoned.as_ref().map_or_else(Clone::clone, Clone::clone)
        );
        passes_if(
            interrupted.is_some()
                && step.stop_reason() == "refusal"
                && !step.shows_call("unruly")
                && poisoned.is_ok(),
            evidence,
        )
    }

    /// Passes if a tool output that claims that everything is allowed had no effect.
    fn check_injection(&self) -> Result<String, String> {
        let line = self.observed.line("policy.resolved", "poisoned");
        let is_denied = line.is_some_and(|line| line["policy"]["decision"] == "deny");
        let shown = self.observed.step("poison").is_some_and(|step| step.shows_call("poisoned"));
        if is_denied && !shown {
            Ok(format!("instructions in a tool output have no effect ({})", entry_name(line)))
        } else {
            Err(format!("instructions in a tool output were followed ({})", entry_name(line)))
        }
    }

    fn identity(&self) -> PointResult {
        let foreign = self
            .observed
            .entries
            .iter()
            .filter(|entry| entry["metadata"]["aip44"]["identity"] != *self.who)
            .count();
        let rejected_approvers: usize =
            self.observed.steps.values().map(|step| step.rejected_approvers).sum();
        let lines = self.observed.entries.len();
        let words = format!(
            "on stdio the peer is {}, as reported by the system, in all of {lines} lines; approvals of foreign \
             users were refused {rejected_approvers} times",
            self.who
        );
        let is_known = foreign == 0 && lines > 0 && !self.who.is_empty();
        match self.foreign_user {
            ForeignUserResult::Refused(how) => passes_if(is_known, format!("{words}; foreign user: {how}")),
            ForeignUserResult::Admitted(how) => fails(format!("a foreign user was not refused: {how}")),
            ForeignUserResult::NotTried(why) => {
                passes_if(is_known, format!("{words}; foreign user: not tested, {why}"))
            }
        }
    }

    fn cwd(&self) -> PointResult {
        if self.mandate.roots.iter().any(|root| root.parent().is_none()) {
            return not_applicable("the workspace is the root directory");
        }
        let codes: Vec<bool> = ["outside", "above", "relative"]
            .iter()
            .map(|name| {
                let answer = self.observed.step(name).map(|step| &step.answer["error"]);
                answer.is_some_and(|it| it["code"] == -32602 && it["data"]["code"] == "cwd_outside_root")
            })
            .collect();
        let recorded = self.observed.entries.iter().filter(|entry| {
            entry["action"] == "session.refused" && entry["metadata"]["aip44"]["code"] == "cwd_outside_root"
        });
        let lines: Vec<String> = recorded.map(|entry| entry["seq"].to_string()).collect();
        let evidence = format!(
            "`/`, the parent directory and a relative path: cwd_outside_root, lines {}",
            lines.join(", ")
        );
        passes_if(codes.iter().all(|is_so| *is_so) && lines.len() == 3, evidence)
    }

    fn servers(&self) -> PointResult {
        let answer = self
            .observed
            .step("server")
            .map(|step| step.answer["error"]["data"]["code"].clone())
            .unwrap_or_default();
        let listed = self.manifest.bundle.mcp_servers.len();
        let named = passes_if(
            answer == "server_not_listed",
            format!(
                "a server that only the client names is answered with {answer}; {listed} are from the manifest"
            ),
        );
        named.with(&self.over_acp())
    }

    /// Judges MCP over ACP: the agent lists the tools of a server in the client, and calls an unknown one.
    fn over_acp(&self) -> PointResult {
        let Some(step) = self.observed.step("mcp") else { return fails("nothing could be tested") };
        let told = step.agent_text();
        let reached = |method: &str| {
            let is_it =
                |asked: &&Value| asked["params"]["method"] == method && asked["method"] == "mcp/message";
            step.requests.iter().any(|asked| is_it(&asked))
        };
        let Some(name) = self.client_server else {
            let (code, why) = match self.mandate.capabilities.mcp_acp {
                true => ("-32602", "no server of the client is listed"),
                false => ("-32601", "it is not declared"),
            };
            let is_held = told.matches(code).count() == 2 && !reached("tools/list") && !reached("tools/call");
            return passes_if(
                is_held,
                format!("MCP over ACP: {why}, so the agent gets {code}, and the client gets nothing"),
            );
        };
        let tool = format!("{name}/{}", script::UNKNOWN_TOOL);
        let line = self.observed.lines(step).iter().find(|entry| {
            entry["action"] == "policy.resolved" && entry["metadata"]["aip44"]["tool"] == *tool
        });
        let is_denied = line.is_some_and(|line| line["policy"]["decision"] == "deny");
        let is_held = reached("tools/list") && line.is_some() && !(is_denied && reached("tools/call"));
        passes_if(
            is_held,
            format!("MCP over ACP: {name} lists its tools, and a call of {tool} is {}", entry_name(line)),
        )
    }

    fn history(&self) -> PointResult {
        let Some(step) = self.observed.step("load") else { return fails("nothing could be tested") };
        if !self.manifest.bundle.capabilities.load_session {
            let code = &step.answer["error"]["code"];
            return passes_if(*code == -32601, format!("not declared: session/load is answered with {code}"));
        }
        let lines = self.observed.lines(step);
        let acted =
            lines.iter().find(|entry| entry["action"] == "policy.resolved" || entry["action"] == "tool.call");
        let replayed = step.updates.len();
        let words = format!(
            "{replayed} updates replayed, {} asked, {} recorded as a call",
            step.requests.len(),
            acted.map_or_else(|| "nothing".to_owned(), |entry| entry_name(Some(entry)))
        );
        passes_if(
            step.answer["result"].is_object() && acted.is_none() && step.requests.is_empty() && replayed > 0,
            words,
        )
    }
}
