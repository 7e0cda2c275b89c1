//! What a governance adds to a policy: clauses, a level of autonomy, budgets, and what holds where no clause does.

mod budget;
mod class;
mod clause;
mod ruling;

#[cfg(test)]
mod tests;

pub use budget::{Budget, Excess, Exhausted, Ledger, Usage};
pub use class::{Class, Severity};
pub use clause::{ACTIONS, Clause, ClauseError, Signer, is_asked};
pub use ruling::{Approval, Considered, Note, Reason, Ruling};

use crate::path::Ground;
use crate::target::Target;
use clause::Deed;

/// The level of a governance that names none.
const DEFAULT_LEVEL: u8 = 2;

/// What holds where no clause matches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DefaultApproval {
    /// Everything is allowed.
    Auto,
    /// Everything needs an approval.
    Always,
    /// What may change something needs one.
    #[default]
    OnMutate,
    /// What this clause says.
    Clause(String),
}

/// The effective governance, as far as it decides.
#[derive(Debug, Clone, Default)]
pub struct Charter {
    clauses: Vec<Clause>,
    level: Option<u8>,
    default: DefaultApproval,
}

impl Charter {
    /// One with these clauses.
    pub fn new(clauses: Vec<Clause>) -> Self {
        Self { clauses, ..Self::default() }
    }

    /// At this level of autonomy: 0 only reads, 1 suggests, 2 acts within bounds, 3 also does what cannot be undone.
    #[must_use]
    pub fn with_level(mut self, level: Option<u8>) -> Self {
        self.level = level;
        self
    }

    /// With this where no clause matches.
    #[must_use]
    pub fn with_default(mut self, default: DefaultApproval) -> Self {
        self.default = default;
        self
    }

    /// Its clauses.
    pub fn clauses(&self) -> &[Clause] {
        &self.clauses
    }

    /// Its level of autonomy, if it names one.
    pub fn level(&self) -> Option<u8> {
        self.level
    }

    /// What holds where no clause matches.
    pub fn default_approval(&self) -> &DefaultApproval {
        &self.default
    }

    /// The verdict on one part of a request.
    pub(crate) fn judge(&self, target: &Target<'_>, ground: Ground<'_>, ledger: &Ledger<'_>) -> Ruling {
        let deed = Deed::new(target);
        let matching: Vec<&Clause> =
            self.clauses.iter().filter(|clause| clause.is_about(&deed, ground)).collect();
        let decides = |clause: &&Clause| clause.severity == Severity::Error;
        let deciding = matching.iter().copied().filter(decides);
        let mut said = deciding.map(|clause| self.said(clause, target, ledger)).peekable();
        let by_default = said.peek().is_none().then(|| self.by_default(target, ledger));
        let all = said.chain(by_default).chain(self.by_level(target));
        let mut ruling = Ruling::strictest(all, target.action);
        ruling.about.clone_from(&target.about);
        ruling.actions.extend(deed.actions());
        let notes = matching.iter().filter(|clause| !decides(clause));
        ruling.notes.extend(notes.map(|clause| Note {
            clause: clause.slug.clone(),
            severity: clause.severity,
            class: clause.class,
        }));
        ruling
    }

    /// What a clause that matches says: what stands in it, unless the level or its budget make that stricter.
    fn said(&self, clause: &Clause, target: &Target<'_>, ledger: &Ledger<'_>) -> Ruling {
        let (class, reason) = self.effective(clause, ledger);
        let mut ruling = Ruling::new(class, reason, target.action);
        ruling.clauses.push(clause.slug.clone());
        if matches!(class, Class::RequireApproval | Class::Escalate) {
            ruling.approvals.push(Approval {
                clause: clause.slug.clone(),
                signers: clause.signers.clone(),
                quorum: clause.quorum,
            });
        }
        ruling
    }

    fn effective(&self, clause: &Clause, ledger: &Ledger<'_>) -> (Class, Reason) {
        let slug = || clause.slug.clone();
        let level = self.level.unwrap_or(DEFAULT_LEVEL);
        if clause.class < Class::Escalate && level > clause.ceiling {
            let reason = Reason::Autonomy { clause: slug(), level, ceiling: clause.ceiling };
            return (Class::Escalate, reason);
        }
        let exhausted = clause.budget.as_ref().and_then(|budget| budget.exhausted(ledger, &clause.slug));
        match exhausted {
            Some(Excess { what, used, limit }) if clause.class < Class::RequireApproval => {
                (Class::RequireApproval, Reason::Budget { clause: slug(), what, used, limit })
            }
            _ => (clause.class, Reason::Clause { clause: slug() }),
        }
    }

    fn by_default(&self, target: &Target<'_>, ledger: &Ledger<'_>) -> Ruling {
        let named = match &self.default {
            DefaultApproval::Clause(slug) => self.clauses.iter().find(|clause| clause.slug == *slug),
            _ => None,
        };
        if let Some(clause) = named {
            return self.said(clause, target, ledger);
        }
        let class = match self.default {
            DefaultApproval::Auto => Class::Allow,
            DefaultApproval::OnMutate if risk(target) == 0 => Class::Allow,
            // A clause that is not there decides nothing, so somebody has to.
            DefaultApproval::OnMutate | DefaultApproval::Always | DefaultApproval::Clause(_) => {
                Class::RequireApproval
            }
        };
        Ruling::new(class, Reason::Default, target.action)
    }

    /// What the level alone forbids to do unasked, whatever a clause allows.
    fn by_level(&self, target: &Target<'_>) -> Option<Ruling> {
        let level = self.level?;
        let class = match (level, risk(target)) {
            (0, 1..) => Class::Escalate,
            (1, 1..) | (2, 3..) => Class::RequireApproval,
            _ => return None,
        };
        Some(Ruling::new(class, Reason::Level { level }, target.action))
    }

    pub(crate) fn consider(
        &self,
        targets: &[Target<'_>],
        ground: Ground<'_>,
        ledger: &Ledger<'_>,
    ) -> Vec<Considered> {
        let deeds: Vec<Deed<'_>> = targets.iter().map(Deed::new).collect();
        let considered = |clause: &Clause| {
            let about = deeds.iter().find(|deed| clause.is_about(deed, ground));
            let matched = about.is_some();
            let why = about.or(deeds.first()).map(|deed| clause.why(deed, ground)).unwrap_or_default();
            let (says, _) = self.effective(clause, ledger);
            Considered {
                clause: clause.slug.clone(),
                class: clause.class,
                says,
                severity: clause.severity,
                matched,
                why,
            }
        };
        self.clauses.iter().map(considered).collect()
    }
}

/// The risk of one part of a request.
pub(crate) fn risk(target: &Target<'_>) -> u8 {
    target.kinds.iter().map(|kind| kind.risk()).max().unwrap_or(2)
}
