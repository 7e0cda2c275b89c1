//! Decides whether a rule matches a part of a request: certainly, possibly, or not.

use std::fmt;

use super::Rule;
use crate::action::Action;
use crate::command::{Part, is_git_home, runs_git};
use crate::decision::Verdict;
use crate::kind::Kind;
use crate::path::PatternBase;
use crate::target::{Extent, Target, Touch};
use crate::text_pattern::{Case, is_like};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Kind,
    Tool,
    Server,
    Path,
    Command,
    Url,
    Env,
}

impl fmt::Display for Field {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Kind => "kind",
            Self::Tool => "tool",
            Self::Server => "server",
            Self::Path => "path",
            Self::Command => "command",
            Self::Url => "url",
            Self::Env => "env",
        })
    }
}

/// How certainly a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The rule does not match, because of this field.
    No(Field),
    /// The rule may match. This field is uncertain, or covers only a part of the request.
    Loose(Field),
    /// The rule certainly matches, and covers everything.
    Firm,
}

impl Rule {
    pub(crate) fn fit(&self, target: &Target<'_>, pattern_base: PatternBase<'_>) -> Fit {
        join([self.fit_but_path(target), self.fit_paths(target, pattern_base)])
    }

    /// Returns `true` if the rule applies. A rule that permits must match with certainty.
    pub(crate) fn is_about(&self, target: &Target<'_>, pattern_base: PatternBase<'_>) -> bool {
        match self.fit(target, pattern_base) {
            Fit::Firm => true,
            Fit::Loose(_) => self.effect != Verdict::Allow,
            Fit::No(_) => false,
        }
    }

    /// Returns `true` if the rule names the path of `touch`, and so lifts the protection of the path.
    pub(crate) fn lifts(&self, target: &Target<'_>, touch: &Touch, pattern_base: PatternBase<'_>) -> bool {
        let names = self.paths.iter().any(|pattern| pattern.covers(&touch.steps, pattern_base));
        let rest = self.fit_but_path(target);
        // Whether the command may run is judged elsewhere. Here only the file counts.
        let rest = rest == Fit::Firm || rest == Fit::Loose(Field::Command) && self.commands.is_empty();
        self.effect != Verdict::Deny && names && rest
    }

    fn fit_but_path(&self, target: &Target<'_>) -> Fit {
        let action = target.action;
        join([
            self.fit_kinds(target),
            self.fit_tool(action),
            fit_text(Field::Server, &self.servers, action.server.as_deref()),
            self.fit_command(target),
            self.fit_urls(target),
            self.fit_env(target),
        ])
    }

    /// Matches the name of the tool. The match is never certain if the agent only claims the name, or the
    /// name describes something else.
    pub(crate) fn fit_tool(&self, action: &Action) -> Fit {
        let (tool, kind) = match action.tool.as_deref() {
            Some(tool) if tool.starts_with("kind:") => (None, Some(tool)),
            tool => (tool, None),
        };
        let fit = |name: Option<&str>| fit_text(Field::Tool, &self.tools, name);
        let doubtful = action.claimed.iter().map(String::as_str).chain(kind);
        match fit(tool) {
            Fit::No(field) if doubtful.into_iter().any(|name| !matches!(fit(Some(name)), Fit::No(_))) => {
                Fit::Loose(field)
            }
            fit => fit,
        }
    }

    fn fit_kinds(&self, target: &Target<'_>) -> Fit {
        if self.kinds.is_empty() {
            return Fit::Firm;
        }
        let has = |kind: &Kind| self.kinds.contains(kind);
        if target.kinds.iter().all(has) {
            return Fit::Firm;
        }
        // A command may do to its paths anything that a tool may do.
        let by_command: &[Kind] = match (target.part, target.looks) {
            (Some(_), false) if !self.paths.is_empty() => &[Kind::Read, Kind::Edit, Kind::Move, Kind::Delete],
            (Some(_), true) if !self.paths.is_empty() => &[Kind::Read],
            _ => &[],
        };
        if target.kinds.iter().chain(by_command).any(has) {
            Fit::Loose(Field::Kind)
        } else {
            Fit::No(Field::Kind)
        }
    }

    fn fit_command(&self, target: &Target<'_>) -> Fit {
        let Some(part) = target.part else {
            // The command is unknown, so it may be any command.
            let hidden = target.kinds.contains(&Kind::Execute) && target.action.command.is_none();
            return match (self.commands.is_empty(), hidden) {
                (true, _) => Fit::Firm,
                (false, true) => Fit::Loose(Field::Command),
                (false, false) => Fit::No(Field::Command),
            };
        };
        let explicit = self.kinds.contains(&Kind::Execute);
        if self.commands.is_empty() {
            // A rule that names no command does not allow one.
            return if part.sure && explicit { Fit::Firm } else { Fit::Loose(Field::Command) };
        }
        let begins = self.effect != Verdict::Allow;
        if self.commands.iter().any(|pattern| pattern.covers(part, begins)) {
            // In such a repository, git runs programs that the agent may have chosen.
            if target.action.unusual_repository && runs_git(part) {
                return Fit::Loose(Field::Command);
            }
            if self.names_all_beside_command(target) { Fit::Firm } else { Fit::Loose(Field::Kind) }
        } else if self.commands.iter().any(|pattern| pattern.touches(part)) {
            Fit::Loose(Field::Command)
        } else if begins && self.may_be_run_by_env(target) {
            Fit::Loose(Field::Env)
        } else {
            Fit::No(Field::Command)
        }
    }

    /// Returns `true` if the rule names everything that the request does besides its command. A rule that
    /// allows `ls` must not allow an edit that also has the command `ls`.
    fn names_all_beside_command(&self, target: &Target<'_>) -> bool {
        let action = target.action;
        let is_named = |kind: &Kind| match kind {
            Kind::Execute => true,
            kind if kind.only_reads() || self.kinds.contains(kind) => true,
            // A fetch without a URL is performed by the command itself.
            Kind::Fetch => action.urls.is_empty() || !self.urls.is_empty(),
            // If an agent reports no kind, its command is all that the call shows. The tool of a server may
            // use the command for anything.
            Kind::Other => {
                let is_agents = action.server.is_none() || !self.servers.is_empty() || !self.tools.is_empty();
                is_agents && action.paths.is_empty() && action.urls.is_empty()
            }
            _ => false,
        };
        target.kinds.iter().all(is_named)
    }

    /// Returns `true` if a variable of the request may run one of the rule's commands. A variable counts like
    /// the same assignment in a command.
    fn may_be_run_by_env(&self, target: &Target<'_>) -> bool {
        let touched = |part: &Part| self.commands.iter().any(|pattern| pattern.touches(part));
        let moves_home =
            |part: &Part| target.action.env.iter().any(|variable| is_git_home(&variable.name, part));
        target.part.is_some_and(moves_home)
            || target.variable_parts().iter().any(|parts| match parts {
                Some(parts) => parts.iter().any(touched),
                None => true,
            })
    }

    /// Matches the variables of a command. A variable that the rule does not list may turn the command into
    /// another one.
    fn fit_env(&self, target: &Target<'_>) -> Fit {
        let listed = |name: &str| self.env.iter().any(|pattern| is_like(name, pattern, Case::Different));
        let runs = target.part.is_some() || target.kinds.contains(&Kind::Execute);
        let mut steering = target.action.env.iter().filter(|variable| runs && !variable.is_harmless());
        match steering.all(|variable| !variable.name.is_empty() && listed(&variable.name)) {
            true => Fit::Firm,
            false => Fit::Loose(Field::Env),
        }
    }

    fn fit_urls(&self, target: &Target<'_>) -> Fit {
        if self.urls.is_empty() {
            let unsaid =
                !target.urls.is_empty() && target.part.is_none() && !self.kinds.contains(&Kind::Fetch);
            return if unsaid { Fit::Loose(Field::Url) } else { Fit::Firm };
        }
        let covered = |url: &String| self.urls.iter().any(|pattern| pattern.covers(url));
        let touched = |url: &String| self.urls.iter().any(|pattern| pattern.touches(url));
        let hidden = target.urls.is_empty() && target.part.is_none() && target.kinds.contains(&Kind::Fetch);
        if !target.urls.is_empty() && target.urls.iter().all(covered) {
            Fit::Firm
        } else if hidden || target.urls.iter().any(touched) {
            Fit::Loose(Field::Url)
        } else {
            Fit::No(Field::Url)
        }
    }

    pub(crate) fn fit_paths(&self, target: &Target<'_>, pattern_base: PatternBase<'_>) -> Fit {
        if self.paths.is_empty() {
            return Fit::Firm;
        }
        let covered =
            |touch: &Touch| self.paths.iter().any(|pattern| pattern.covers(&touch.steps, pattern_base));
        let reads = self.kinds.is_empty() || self.kinds.contains(&Kind::Read);
        let touched = |touch: &Touch| {
            if touch.extent == Extent::OnlyReads && !reads {
                return false;
            }
            let changes_below = touch.extent == Extent::ChangesBelow || touch.itself && removes(target);
            let with_all_below = changes_below || touch.descends && reads;
            self.paths.iter().any(|pattern| {
                pattern.touches(&touch.steps, pattern_base)
                    || with_all_below && pattern.lies_below(&touch.steps, pattern_base)
            })
        };
        let changes = |kind: &Kind| matches!(kind, Kind::Edit | Kind::Move | Kind::Delete);
        let hidden = target.touches.is_empty() && target.part.is_none() && target.kinds.iter().any(changes);
        if !target.touches.is_empty() && target.touches.iter().all(covered) {
            Fit::Firm
        } else if hidden || target.touches.iter().any(touched) {
            Fit::Loose(Field::Path)
        } else {
            Fit::No(Field::Path)
        }
    }
}

/// Returns `true` if the request removes everything below its paths, too.
fn removes(target: &Target<'_>) -> bool {
    target.part.is_some() || target.kinds.iter().any(|kind| matches!(kind, Kind::Move | Kind::Delete))
}

pub(crate) fn fit_text(field: Field, patterns: &[String], text: Option<&str>) -> Fit {
    if patterns.is_empty() {
        return Fit::Firm;
    }
    let Some(text) = text else { return Fit::No(field) };
    let matches = |case| patterns.iter().any(|pattern| is_like(text, pattern, case));
    if matches(Case::Different) {
        Fit::Firm
    } else if matches(Case::Same) {
        Fit::Loose(field)
    } else {
        Fit::No(field)
    }
}

fn join<const N: usize>(fits: [Fit; N]) -> Fit {
    let no = fits.iter().find(|fit| matches!(fit, Fit::No(_)));
    let loose = fits.iter().find(|fit| matches!(fit, Fit::Loose(_)));
    no.or(loose).copied().unwrap_or(Fit::Firm)
}
