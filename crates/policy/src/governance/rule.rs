//! One rule of a governance: actions, subject, minimum risk, and decision.

use serde::Serialize;
use thiserror::Error;

use super::budget::Budget;
use super::class::{Class, Severity};
use super::risk;
use crate::action::Command;
use crate::decision::{RuleName, Verdict};
use crate::kind::Kind;
use crate::path::{PathPattern, PatternBase};
use crate::rules::{Field, Fit, Rule, fit_text};
use crate::target::Target;
use crate::text_pattern::{Case, TextPattern};

/// An identity or role that may approve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Signer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
}

/// Reason why a governance rule is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GovernanceRuleError {
    #[error("the subject cannot be matched: {0}")]
    Subject(&'static str),
}

/// One rule of a governance.
#[derive(Debug, Clone)]
pub struct GovernanceRule {
    pub(super) slug: String,
    actions: Vec<ActionPattern>,
    subject: Option<Rule>,
    risk: u8,
    pub(super) class: Class,
    pub(super) ceiling: u8,
    pub(super) severity: Severity,
    pub(super) signers: Vec<Signer>,
    pub(super) quorum: u32,
    pub(super) budget: Option<Budget>,
}

impl GovernanceRule {
    /// Creates a rule that decides `class` on actions such as `tool.call` or `workspace.*`.
    pub fn new(slug: impl Into<String>, action: impl Into<String>, class: Class) -> Self {
        Self {
            slug: slug.into(),
            actions: vec![ActionPattern::new(&action.into())],
            subject: None,
            risk: 0,
            class,
            ceiling: 2,
            severity: Severity::Error,
            signers: Vec::new(),
            quorum: 1,
            budget: None,
        }
    }

    /// Limits the rule to a subject: a tool name or a pattern of tool names. With the prefix `/` or
    /// `workspace:`, the subject is a path relative to a root.
    pub fn with_subject(mut self, subject: &str) -> Result<Self, GovernanceRuleError> {
        let path = subject.strip_prefix("workspace:").or_else(|| subject.starts_with('/').then_some(subject));
        let effect = if self.class == Class::Allow { Verdict::Allow } else { Verdict::Deny };
        let mut rule = Rule {
            name: RuleName { file: String::new(), line: 0, number: 0, name: None, reason: None },
            effect,
            kinds: Vec::new(),
            tools: Vec::new(),
            servers: Vec::new(),
            paths: Vec::new(),
            commands: Vec::new(),
            urls: Vec::new(),
            env: Vec::new(),
        };
        match path {
            Some(path) => {
                let relative = path.trim_start_matches('/');
                let relative = if relative.is_empty() { "**" } else { relative };
                rule.paths.push(PathPattern::parse(relative).map_err(GovernanceRuleError::Subject)?);
            }
            None => rule.tools.push(subject.to_owned()),
        }
        self.subject = Some(rule);
        Ok(self)
    }

    /// Adds a pattern that the action must match, too.
    #[must_use]
    pub fn with_action(mut self, action: impl Into<String>) -> Self {
        self.actions.push(ActionPattern::new(&action.into()));
        self
    }

    /// Sets the minimum risk of actions that the rule matches.
    #[must_use]
    pub fn with_min_risk(mut self, risk: u8) -> Self {
        self.risk = risk;
        self
    }

    /// Sets the maximum level of autonomy at which the stated decision counts. At a higher level the rule
    /// escalates.
    #[must_use]
    pub fn with_max_level(mut self, level: u8) -> Self {
        self.ceiling = level;
        self
    }

    /// Sets the severity.
    #[must_use]
    pub fn with_severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// Sets the approvers, and how many of them must approve.
    #[must_use]
    pub fn with_signers(mut self, signers: Vec<Signer>, quorum: u32) -> Self {
        (self.signers, self.quorum) = (signers, quorum.max(1));
        self
    }

    /// Sets the budget.
    #[must_use]
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Returns `true` if the rule has a budget.
    pub fn has_budget(&self) -> bool {
        self.budget.is_some()
    }

    /// Returns the slug of the rule.
    pub fn slug(&self) -> &str {
        &self.slug
    }

    /// Returns the decision.
    pub fn class(&self) -> Class {
        self.class
    }

    /// Returns the budget.
    pub fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    /// Returns the tool name, or the pattern of tool names, in the subject. `None` if the subject is a path,
    /// or if the rule has no subject.
    pub fn tool(&self) -> Option<&str> {
        self.subject.as_ref()?.tools.first().map(String::as_str)
    }

    /// Returns `true` if the rule may apply to a tool with this name.
    pub fn is_for(&self, tool: &str) -> bool {
        let Some(rule) = self.subject.as_ref().filter(|rule| !rule.tools.is_empty()) else { return true };
        match fit_text(Field::Tool, &rule.tools, Some(tool)) {
            Fit::Firm => true,
            Fit::Loose(_) => self.class != Class::Allow,
            Fit::No(_) => false,
        }
    }

    /// Returns `true` if Narrows decides about any of the rule's actions. Policy files may also contain rules
    /// for other programs.
    pub fn is_known(&self) -> bool {
        self.actions.iter().all(ActionPattern::is_known)
    }

    /// Returns `true` if the rule applies to a part of a request. A rule that permits must match with
    /// certainty; for a rule that forbids, a possible match is enough.
    pub(super) fn is_about(&self, named_target: &NamedTarget<'_>, pattern_base: PatternBase<'_>) -> bool {
        match self.fit(named_target, pattern_base) {
            Fit::Firm => true,
            Fit::Loose(_) => self.class != Class::Allow,
            Fit::No(_) => false,
        }
    }

    pub(super) fn why(&self, named_target: &NamedTarget<'_>, pattern_base: PatternBase<'_>) -> String {
        let what = |field: Field| match field {
            Field::Kind => "action",
            Field::Path | Field::Tool => "subject",
            _ => "risk",
        };
        match self.fit(named_target, pattern_base) {
            Fit::Firm => "matches".to_owned(),
            Fit::Loose(field) => format!("may match, because of its `{}`", what(field)),
            Fit::No(field) => format!("its `{}` does not match", what(field)),
        }
    }

    fn fit(&self, named_target: &NamedTarget<'_>, pattern_base: PatternBase<'_>) -> Fit {
        if named_target.risk < self.risk {
            return Fit::No(Field::Command);
        }
        let action = self.fit_action(named_target);
        if let Fit::No(_) = action {
            return action;
        }
        match (action, self.fit_subject(named_target.target, pattern_base)) {
            (_, Fit::No(field)) => Fit::No(field),
            (Fit::Loose(field), _) | (_, Fit::Loose(field)) => Fit::Loose(field),
            _ => Fit::Firm,
        }
    }

    fn fit_action(&self, named_target: &NamedTarget<'_>) -> Fit {
        let mut loose = false;
        for pattern in &self.actions {
            let matching = named_target.names.iter().filter(|(name, _)| pattern.is_about(name));
            let is_all = |name: &str| named_target.only_changes_files || !FILE_CHANGES.contains(&name);
            match matching.map(|(name, sure)| *sure && is_all(name)).max() {
                Some(true) => {}
                Some(false) => loose = true,
                None => return Fit::No(Field::Kind),
            }
        }
        if loose { Fit::Loose(Field::Kind) } else { Fit::Firm }
    }

    fn fit_subject(&self, target: &Target<'_>, pattern_base: PatternBase<'_>) -> Fit {
        let Some(rule) = &self.subject else { return Fit::Firm };
        if !rule.paths.is_empty() {
            return rule.fit_paths(target, pattern_base);
        }
        let action = target.action;
        let mut best = rule.fit_tool(action);
        let fit = |name: &str| fit_text(Field::Tool, &rule.tools, Some(name));
        let better = |best: Fit, fit: Fit| match (best, fit) {
            (Fit::Firm, _) | (_, Fit::No(_)) => best,
            _ => fit,
        };
        if let (Some(server), Some(tool)) = (&action.server, &action.tool) {
            best = better(best, fit(&format!("{server}/{tool}")));
        }
        if best == Fit::Firm || !rule.tools.iter().any(|pattern| pattern.starts_with(['k', '*'])) {
            return best;
        }
        let fit_kind = |kind: &Kind| fit(&format!("kind:{kind}"));
        best = target.kinds.iter().map(fit_kind).fold(best, better);
        let is_named = |kind: &Kind| fit_kind(kind) == Fit::Firm;
        if best == Fit::Firm && !is_no_more_than(target, is_named) {
            best = Fit::Loose(Field::Tool);
        }
        best
    }
}

/// One part of a request, with the names of its actions and with its risk.
pub(crate) struct NamedTarget<'a> {
    pub(super) target: &'a Target<'a>,
    pub(super) risk: u8,
    names: Vec<(&'static str, bool)>,
    /// `true` if the part only changes files, without running or fetching anything.
    only_changes_files: bool,
}

impl<'a> NamedTarget<'a> {
    pub(super) fn new(target: &'a Target<'a>) -> Self {
        let only_changes_files = is_no_more_than(target, is_file_change);
        Self { target, risk: risk(target), names: names(target), only_changes_files }
    }

    pub(super) fn actions(&self) -> impl Iterator<Item = &'static str> {
        self.names.iter().filter(|(_, sure)| *sure).map(|(name, _)| *name)
    }
}

/// Names of all actions that Narrows decides about. A rule about another action never applies.
pub const ACTIONS: [&str; 8] = [
    "tool.call",
    "workspace.read",
    "workspace.write",
    "workspace.delete",
    "network.fetch",
    "command.run",
    "mutates",
    "irreversible",
];

/// Names of actions that are only file changes. A part with other effects has other names.
const FILE_CHANGES: [&str; 2] = ["workspace.write", "workspace.delete"];

/// Returns `true` if an action, or a pattern of actions, matches an action that Narrows decides about.
pub fn is_known_action(action: &str) -> bool {
    ActionPattern::new(action).is_known()
}

/// Returns the names of the actions of one part. `true` marks a name that certainly applies.
fn names(target: &Target<'_>) -> Vec<(&'static str, bool)> {
    let is = |kind: Kind| target.kinds.contains(&kind);
    let mut names = vec![("tool.call", true)];
    let runs = is(Kind::Execute);
    // A command may do to its operands anything that a tool may do.
    let hidden = runs && !target.looks;
    let writes = is(Kind::Edit) || is(Kind::Move) || is(Kind::Delete);
    let reads = is(Kind::Read) || is(Kind::Search);
    let mut add = |name, sure: bool, perhaps: bool| {
        if sure || perhaps {
            names.push((name, sure));
        }
    };
    // A name must cover all effects of a part: an edit with the command `ls` or with a URL is not only a
    // command.
    let is_only = |kind: Kind| is_no_more_than(target, |other| *other == kind);
    add("workspace.read", reads && is_only(Kind::Read), reads || runs || is(Kind::Other));
    add("workspace.write", writes, hidden || is(Kind::Other));
    add("workspace.delete", is(Kind::Delete), hidden || is(Kind::Other));
    add(
        "network.fetch",
        is(Kind::Fetch) && is_only(Kind::Fetch),
        is(Kind::Fetch) || hidden || is(Kind::Other),
    );
    add("command.run", runs && is_only(Kind::Execute), runs || is(Kind::Other));
    let risk = risk(target);
    add("mutates", risk > 0 && !target.looks, false);
    add("irreversible", risk > 2, hidden || is(Kind::Other));
    names
}

/// Names of file changes that some editing tools send in a member `command`.
const OPERATIONS: [&str; 7] = ["view", "create", "str_replace", "insert", "undo_edit", "rename", "delete"];

/// Returns `true` if a command is only the name of an editing tool's operation.
fn is_operation(command: &Command) -> bool {
    match command {
        Command::Shell(text) => OPERATIONS.contains(&text.as_str()),
        Command::Argv(words) => words.first().is_some_and(|program| program == "apply_patch"),
        Command::Unknown(_) => false,
    }
}

/// Returns `true` if a part has no effects other than those that `is_named` accepts. [`Kind::Other`] with a
/// command or a URL comes from an agent that reports no kind.
fn is_no_more_than(target: &Target<'_>, is_named: impl Fn(&Kind) -> bool) -> bool {
    let is_change = target.kinds.iter().any(|kind| is_file_change(kind) && is_named(kind));
    let action = target.action;
    let is_harmless = target.looks || is_change && action.command.as_ref().is_some_and(is_operation);
    let runs_nothing = action.command.is_none() || is_harmless || is_named(&Kind::Execute);
    target.kinds.iter().all(|kind| match kind {
        kind if is_named(kind) || kind.only_reads() => true,
        Kind::Execute => is_harmless,
        Kind::Other => runs_nothing && (is_change || action.paths.is_empty()),
        _ => false,
    })
}

fn is_file_change(kind: &Kind) -> bool {
    matches!(kind, Kind::Edit | Kind::Move | Kind::Delete)
}

/// A pattern of an action name. `*` stands for any part between dots, and at the end for any number of parts.
#[derive(Debug, Clone)]
struct ActionPattern {
    parts: Vec<TextPattern>,
    rest: bool,
}

impl ActionPattern {
    fn new(text: &str) -> Self {
        let parts = text.split('.').map(|part| TextPattern::glob(part, false)).collect();
        Self { parts, rest: text == "*" || text.ends_with(".*") }
    }

    fn is_known(&self) -> bool {
        ACTIONS.iter().any(|name| self.is_about(name))
    }

    fn is_about(&self, name: &str) -> bool {
        let mut names = name.split('.');
        let fits =
            |pattern: &TextPattern| names.next().is_some_and(|name| pattern.describes(name, Case::Different));
        self.parts.iter().all(fits) && (self.rest || names.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, fits: &[&str], not: &[&str]) {
        for name in fits {
            assert!(ActionPattern::new(pattern).is_about(name), "{pattern} is about {name}");
        }
        for name in not {
            assert!(!ActionPattern::new(pattern).is_about(name), "{pattern} is not about {name}");
        }
    }

    #[test]
    fn stars_match_parts_of_a_name() {
        check("*", &["tool.call", "mutates"], &[]);
        check("tool.call", &["tool.call"], &["tool.called", "tool", "tool.call.x", "workspace.write"]);
        check("workspace.*", &["workspace.read", "workspace.write.x"], &["workspace", "tool.call"]);
        check("*.write", &["workspace.write"], &["workspace.read", "write"]);
        check("workspace.w*", &["workspace.write"], &["workspace.read"]);
    }

    #[test]
    fn a_rule_knows_to_which_tool_names_it_applies() {
        let rule = |action: &str, class| GovernanceRule::new("c", action, class);
        let check = |subject: &str, class, tool: &str, expected: bool| {
            let rule = rule("tool.call", class).with_subject(subject).unwrap();
            assert_eq!(rule.is_for(tool), expected, "{subject} {class:?} {tool}");
        };
        check("run_command", Class::Deny, "run_command", true);
        check("run_comand", Class::Deny, "run_command", false);
        check("run_*", Class::Allow, "run_command", true);
        // A rule that permits matches a tool name only in the same spelling, here and in a decision.
        check("Run_Command", Class::Deny, "run_command", true);
        check("Run_Command", Class::Allow, "run_command", false);
        check("workspace:/a/**", Class::Deny, "anything", true);
        assert!(rule("tool.call", Class::Deny).is_for("anything"));
        for (action, expected) in
            [("tool.call", true), ("workspace.*", true), ("*", true), ("payment.send", false)]
        {
            assert_eq!(rule(action, Class::Deny).is_known(), expected, "{action}");
            assert_eq!(is_known_action(action), expected, "{action}");
        }
        assert!(!rule("tool.call", Class::Deny).with_action("payment.*").is_known());
    }

    #[test]
    fn every_name_of_an_action_is_listed() {
        for kind in Kind::ALL {
            let action = crate::Action::new(kind);
            let context = crate::RequestContext::default();
            for target in crate::target::targets(&action, None, &context, None) {
                assert!(names(&target).iter().all(|(name, _)| ACTIONS.contains(name)), "{kind}");
            }
        }
    }
}
