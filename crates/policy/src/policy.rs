//! Evaluates disabled permissions, rules, protected paths and the preset.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::access::{Access, Narrowing};
use crate::action::{Action, Command};
use crate::command::{self, Linked, Script, depends_on_directory, is_read_only, uses_network};
use crate::decision::{Decision, DecisionReason, RuleName, Verdict};
use crate::governance::{
    BudgetUsage, Class, ConsideredRule, GovernanceDecision, GovernanceReason, GovernanceRuleset,
};
use crate::kind::Kind;
use crate::path::{PatternBase, is_within, resolve};
use crate::preset::{self, Running};
use crate::protect;
use crate::request_context::RequestContext;
use crate::rules::{Fit, Rule, Rules};
use crate::secret_reads::may_read_secrets;
use crate::target::{Target, runs_in_a_root, runs_within_roots, targets, targets as targets_of};

/// The permissions of an agent. A decision checks, in this order: cancellation, governance, disabled
/// permissions, rules, preset.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    access: Access,
    narrowing: Narrowing,
    rules: Vec<Rule>,
    home: Option<PathBuf>,
    ruleset: Option<GovernanceRuleset>,
}

/// A decision together with everything that led to it.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    pub decision: Decision,
    /// Decisions about the parts of the request, if the parts were judged. The strictest one is `decision`.
    pub parts: Vec<Decision>,
    /// All rules in the order of their files.
    pub rules: Vec<RuleMatch>,
}

/// A rule, and how it relates to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleMatch {
    pub rule: RuleName,
    pub effect: Verdict,
    /// `true` if the rule matches the request or a part of it.
    pub matched: bool,
    pub why: String,
}

/// Capabilities that a client may offer to an agent, because this policy may allow their use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Offers {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
}

impl Policy {
    /// Creates a policy with a preset and with permissions that are removed from the preset.
    pub fn new(access: Access, narrowing: Narrowing) -> Self {
        Self { access, narrowing, ..Self::default() }
    }

    /// Adds rules to the policy.
    #[must_use]
    pub fn with_rules(mut self, rules: Rules) -> Self {
        self.rules.extend(rules.list);
        self
    }

    /// Sets the home directory that `~/` stands for in rules and commands.
    #[must_use]
    pub fn with_home(mut self, home: impl Into<PathBuf>) -> Self {
        self.home = Some(home.into());
        self
    }

    /// Sets the ruleset of a governance. [`decide_governed`](Self::decide_governed) uses it, and
    /// [`decide`](Self::decide) does not.
    #[must_use]
    pub fn with_ruleset(mut self, ruleset: GovernanceRuleset) -> Self {
        self.ruleset = Some(ruleset);
        self
    }

    /// Returns the ruleset of a governance, if there is one.
    pub fn ruleset(&self) -> Option<&GovernanceRuleset> {
        self.ruleset.as_ref()
    }

    /// Returns the home directory that `~/` stands for, if it is known.
    pub fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Returns the preset.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the permissions that are removed from the preset.
    pub fn narrowing(&self) -> Narrowing {
        self.narrowing
    }

    /// Decides about `action`.
    pub fn decide(&self, action: &Action, context: &RequestContext<'_>) -> Decision {
        let script = action.command.as_ref().map(command::read);
        let script = script.as_ref();
        let targets = || targets(action, script, context, self.home.as_deref());
        self.refused(action, script, context)
            .unwrap_or_else(|| strictest(self.all_parts(action, script, &targets(), context)))
    }

    /// Returns the stricter of the decisions of this policy and of its governance ruleset about `action`.
    pub fn decide_governed(
        &self,
        action: &Action,
        context: &RequestContext<'_>,
        budget_usage: &BudgetUsage<'_>,
    ) -> GovernanceDecision {
        let script = action.command.as_ref().map(command::read);
        let targets = targets(action, script.as_ref(), context, self.home.as_deref());
        let decision = self
            .refused(action, script.as_ref(), context)
            .unwrap_or_else(|| strictest(self.all_parts(action, script.as_ref(), &targets, context)));
        let by_policy = GovernanceDecision::new(
            Class::from_verdict(decision.verdict),
            GovernanceReason::Policy(decision),
            action,
        );
        let Some(ruleset) = &self.ruleset else { return by_policy };
        let pattern_base = PatternBase { roots: context.roots, home: self.home.as_deref() };
        let linked =
            script.as_ref().and_then(|script| script.with_links(&action.word_links, Linked::Programs));
        let more =
            linked.iter().flat_map(|script| targets_of(action, Some(script), context, self.home.as_deref()));
        let more: Vec<GovernanceDecision> =
            more.map(|target| ruleset.judge(&target, pattern_base, budget_usage)).collect();
        let parts = targets.iter().map(|target| ruleset.judge(target, pattern_base, budget_usage));
        GovernanceDecision::strictest(parts.chain(more).chain([by_policy]), action)
    }

    /// Returns what each rule of the governance decides about `action`.
    pub fn explain_governance(
        &self,
        action: &Action,
        context: &RequestContext<'_>,
        budget_usage: &BudgetUsage<'_>,
    ) -> Vec<ConsideredRule> {
        let Some(ruleset) = &self.ruleset else { return Vec::new() };
        let script = action.command.as_ref().map(command::read);
        let targets = targets(action, script.as_ref(), context, self.home.as_deref());
        let pattern_base = PatternBase { roots: context.roots, home: self.home.as_deref() };
        ruleset.explain_governance(&targets, pattern_base, budget_usage)
    }

    /// Decides about `action`. Returns the decision with everything that led to it.
    pub fn explain(&self, action: &Action, context: &RequestContext<'_>) -> Explanation {
        let script = action.command.as_ref().map(command::read);
        let targets = targets(action, script.as_ref(), context, self.home.as_deref());
        let rules = self.rules.iter().map(|rule| self.looked(rule, &targets, context)).collect();
        let refused = self.refused(action, script.as_ref(), context);
        let parts = match &refused {
            Some(_) => Vec::new(),
            None => self.all_parts(action, script.as_ref(), &targets, context),
        };
        let decision = refused.unwrap_or_else(|| strictest(parts.clone()));
        Explanation { decision, parts, rules }
    }

    /// Returns the capabilities that a client may offer, because the preset or a rule may allow their use.
    pub fn offers(&self) -> Offers {
        let is_for = |rule: &Rule, kind: Kind| rule.kinds.is_empty() || rule.kinds.contains(&kind);
        let denied = |kind: Kind| {
            self.rules
                .iter()
                .any(|rule| rule.effect == Verdict::Deny && rule.kinds.contains(&kind) && rule.is_general())
        };
        let permitted = |kind: Kind| {
            self.rules.iter().any(|rule| {
                let command =
                    kind != Kind::Execute || !rule.commands.is_empty() || rule.kinds.contains(&kind);
                rule.effect != Verdict::Deny && is_for(rule, kind) && command
            })
        };
        let more = self.access > Access::Low;
        Offers {
            read: !denied(Kind::Read),
            write: (more || permitted(Kind::Edit)) && !denied(Kind::Edit),
            execute: (more || permitted(Kind::Execute)) && !denied(Kind::Execute),
        }
    }

    /// Returns `true` if a sandbox must protect the path `inside` of `root`: the path is protected by its own
    /// name, and no rule allows to change it. The caller checks the directories above. A `.git` that is not a
    /// `directory` is protected itself, because the file names the directory of git.
    pub fn protects(&self, root: &Path, inside: &Path, directory: bool) -> bool {
        protect::guards_last(inside, directory) && self.protects_change(root, inside)
    }

    /// Returns `true` if the path `inside` of `root` must not be changed, because of its own name or of a
    /// directory above.
    pub fn protects_change(&self, root: &Path, inside: &Path) -> bool {
        let context = RequestContext { roots: &[root.to_owned()], ..RequestContext::default() };
        self.decide(&Action::file(Kind::Edit, root.join(inside)), &context).verdict > Verdict::Allow
    }

    fn refused(
        &self,
        action: &Action,
        script: Option<&Script>,
        context: &RequestContext<'_>,
    ) -> Option<Decision> {
        let because = self.refusal(action, script, context)?;
        Some(Decision { verdict: Verdict::Deny, because, about: None })
    }

    /// Returns the reason for a denial that no rule can override.
    fn refusal(
        &self,
        action: &Action,
        script: Option<&Script>,
        context: &RequestContext<'_>,
    ) -> Option<DecisionReason> {
        if context.cancelling {
            return Some(DecisionReason::Cancelling);
        }
        if let Some(reason) = context.refused {
            return Some(DecisionReason::Governance { reason: reason.to_owned() });
        }
        if script.is_some_and(|script| script.lost) {
            return Some(DecisionReason::Unreadable);
        }
        let kinds = action.kinds();
        let is = |kind: Kind| kinds.contains(&kind);
        let searches_web = is(Kind::Search) && !self.searches_disk(action, context);
        if !self.narrowing.network {
            let unconfined = self.access == Access::Medium && !context.confined.network;
            let runs = is(Kind::Execute) && (unconfined || script.is_none_or(uses_network));
            if is(Kind::Fetch) || searches_web || runs {
                return Some(DecisionReason::Network);
            }
        }
        if self.narrowing.web_search {
            return None;
        }
        let finds = || action.query && action.urls.is_empty() || tool_name(action).contains("websearch");
        (searches_web || is(Kind::Fetch) && finds()).then_some(DecisionReason::WebSearch)
    }

    /// Returns `true` if a search certainly does not use the network.
    fn searches_disk(&self, action: &Action, context: &RequestContext<'_>) -> bool {
        let cwd = context.roots.first().map(PathBuf::as_path);
        let inside = |path: &PathBuf| is_within(&resolve(path, cwd, self.home.as_deref()), context.roots);
        let placed = !action.paths.is_empty() && action.paths.iter().all(inside);
        action.urls.is_empty() && !tool_name(action).contains("web") && (placed || action.local)
    }

    /// Decides about every part, with its words as written and with link targets. A program needs permission
    /// under both names. For another word, the link target can only forbid.
    fn all_parts(
        &self,
        action: &Action,
        script: Option<&Script>,
        targets: &[Target<'_>],
        context: &RequestContext<'_>,
    ) -> Vec<Decision> {
        let mut parts = self.parts(action, script, targets, context);
        let Some(script) = script.filter(|_| !action.word_links.is_empty()) else { return parts };
        for linked in [Linked::Programs, Linked::Words] {
            let Some(script) = script.with_links(&action.word_links, linked) else { continue };
            let targets = targets_of(action, Some(&script), context, self.home.as_deref());
            let forbids = |decision: &Decision| {
                let is_own =
                    matches!(decision.because, DecisionReason::Rule(_) | DecisionReason::Protected { .. });
                is_own && decision.verdict > Verdict::Allow
            };
            let decisions = self.parts(action, Some(&script), &targets, context).into_iter();
            parts.extend(decisions.filter(|decision| linked == Linked::Programs || forbids(decision)));
        }
        parts
    }

    fn parts(
        &self,
        action: &Action,
        script: Option<&Script>,
        targets: &[Target<'_>],
        context: &RequestContext<'_>,
    ) -> Vec<Decision> {
        let home = self.home.as_deref();
        let running = Running {
            looks: script.is_some_and(|script| {
                is_read_only(script)
                    && action.reads_beside_command()
                    && !uses_network(script)
                    && (!depends_on_directory(script)
                        || runs_in_a_root(action, context, home) && !action.unusual_repository)
                    && !may_read_secrets(script, action, context, home)
            }) && !action.is_steered(),
            confined: context.confined.files
                && (self.narrowing.network || context.confined.network)
                && runs_within_roots(action, context, home),
            protection: context.confined.protected,
        };
        let decided = targets.iter().map(|target| (target, self.judge(target, running, context)));
        // A shell that only runs other parts counts if a rule forbids the shell.
        let counts = |target: &Target<'_>, decision: &Decision| {
            let by_rule =
                matches!(decision.because, DecisionReason::Rule(_)) && decision.verdict > Verdict::Allow;
            by_rule || target.part.is_none_or(|part| !part.wraps)
        };
        decided.filter(|(target, decision)| counts(target, decision)).map(|(_, decision)| decision).collect()
    }

    fn judge(&self, target: &Target<'_>, running: Running, context: &RequestContext<'_>) -> Decision {
        let pattern_base = PatternBase { roots: context.roots, home: self.home.as_deref() };
        let decision = |verdict, because| Decision { verdict, because, about: target.about.clone() };
        if target.lost {
            return decision(Verdict::Deny, DecisionReason::Unreadable);
        }
        let fits: Vec<(&Rule, Fit)> = self
            .rules
            .iter()
            .map(|rule| (rule, rule.fit(target, pattern_base)))
            .filter(|(rule, fit)| match fit {
                Fit::Firm => true,
                Fit::Loose(_) => rule.effect != Verdict::Allow,
                Fit::No(_) => false,
            })
            .collect();
        let first = |effect: Verdict| fits.iter().find(|(rule, _)| rule.effect == effect);
        if let Some((rule, _)) = first(Verdict::Deny) {
            return decision(Verdict::Deny, DecisionReason::Rule(rule.name.clone()));
        }
        for touch in target.touches.iter().filter(|touch| touch.guarded) {
            let Some(guard) = touch.guard() else { continue };
            if !self.rules.iter().any(|rule| rule.lifts(target, touch, pattern_base)) {
                let because = DecisionReason::Protected { what: guard.what, secret: guard.secret };
                return Decision {
                    about: Some(crate::decision::shown(&touch.written)),
                    ..decision(Verdict::Deny, because)
                };
            }
        }
        let (verdict, kind, why) = preset::judge(self.access, target, running, context);
        let by_preset = decision(verdict, DecisionReason::Preset { access: self.access, kind, why });
        let firm =
            |effect: Verdict| fits.iter().find(|(rule, fit)| rule.effect == effect && *fit == Fit::Firm);
        if let Some((rule, _)) = firm(Verdict::Ask) {
            return decision(Verdict::Ask, DecisionReason::Rule(rule.name.clone()));
        }
        let by_rule = first(Verdict::Allow)
            .map(|(rule, _)| decision(Verdict::Allow, DecisionReason::Rule(rule.name.clone())));
        let milder = by_rule.unwrap_or(by_preset);
        match first(Verdict::Ask) {
            // A rule that asks may have matched only by possibility, so it cannot make a denial milder.
            Some((rule, _)) if milder.verdict < Verdict::Ask => {
                decision(Verdict::Ask, DecisionReason::Rule(rule.name.clone()))
            }
            _ => milder,
        }
    }

    fn looked(&self, rule: &Rule, targets: &[Target<'_>], context: &RequestContext<'_>) -> RuleMatch {
        let pattern_base = PatternBase { roots: context.roots, home: self.home.as_deref() };
        let fits: Vec<(&Target<'_>, Fit)> =
            targets.iter().map(|target| (target, rule.fit(target, pattern_base))).collect();
        let matched = fits.iter().find(|(target, _)| rule.is_about(target, pattern_base));
        let near = fits.iter().find(|(_, fit)| matches!(fit, Fit::Loose(_))).or(fits.first());
        let about =
            |target: &Target<'_>| target.about.as_ref().map_or(String::new(), |about| format!(" `{about}`"));
        let why = match (matched, near) {
            (Some((target, Fit::Firm)), _) => format!("matches{}", about(target)),
            (Some((target, Fit::Loose(field) | Fit::No(field))), _) => {
                format!("may match{}, because of its `{field}`", about(target))
            }
            (None, Some((target, Fit::Loose(field)))) => {
                format!(
                    "may match{}, but not certainly or not completely, because of its `{field}`",
                    about(target)
                )
            }
            (None, Some((target, Fit::No(field)))) => {
                format!("its `{field}` does not match{}", about(target))
            }
            (None, Some((_, Fit::Firm)) | None) => "matches nothing".to_owned(),
        };
        RuleMatch { rule: rule.name.clone(), effect: rule.effect, matched: matched.is_some(), why }
    }
}

impl Rule {
    /// Returns `true` if the rule has no conditions other than kinds.
    fn is_general(&self) -> bool {
        self.tools.is_empty()
            && self.servers.is_empty()
            && self.paths.is_empty()
            && self.commands.is_empty()
            && self.urls.is_empty()
    }
}

impl Command {
    /// Returns `true` if the command is one program that certainly only reads. For git, the repository of the
    /// directory must also be trusted.
    pub fn is_read_only(&self) -> bool {
        is_read_only(&command::read(self))
    }

    /// Returns `true` if the command is, or may be, a program that uses the network. Only the name of the
    /// program counts.
    pub fn uses_network(&self) -> bool {
        uses_network(&command::read(self))
    }
}

fn strictest(decisions: Vec<Decision>) -> Decision {
    let mut decisions = decisions.into_iter();
    let nothing = Decision { verdict: Verdict::Deny, because: DecisionReason::Unreadable, about: None };
    let Some(first) = decisions.next() else { return nothing };
    decisions.fold(first, |so_far, next| if next.verdict > so_far.verdict { next } else { so_far })
}

/// Returns the name of the tool in lower case, without separators.
fn tool_name(action: &Action) -> String {
    let name = action.tool.as_deref().unwrap_or_default();
    name.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

impl fmt::Display for Explanation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.decision)?;
        if self.parts.len() > 1 {
            writeln!(out, "parts:")?;
            self.parts.iter().try_for_each(|part| writeln!(out, "  {part}"))?;
        }
        if !self.rules.is_empty() {
            writeln!(out, "rules:")?;
        }
        for looked in &self.rules {
            let mark = if looked.matched { '+' } else { '-' };
            writeln!(out, "  {mark} {} {}: {}", looked.effect, looked.rule, looked.why)?;
        }
        Ok(())
    }
}
