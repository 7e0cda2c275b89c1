//! States of an operator in one session, and the transitions that are recorded.

/// State of an operator in one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OperatorState {
    /// The session is open.
    #[default]
    Invoked,
    /// A turn is active.
    Running,
    /// An approval is pending.
    Suspended,
    /// The pending approval was given or refused.
    Resumed,
    /// The turn has ended.
    Completed,
    /// The turn was cut short.
    Interrupted,
}

impl OperatorState {
    /// Returns the action of the audit entry about entering this state.
    pub(crate) fn action(self) -> &'static str {
        match self {
            Self::Invoked => "operator.invoked",
            Self::Running => "operator.running",
            Self::Suspended => "operator.suspended",
            Self::Resumed => "operator.resumed",
            Self::Completed => "operator.completed",
            Self::Interrupted => "operator.interrupted",
        }
    }

    /// Enters `next`. Returns `true` if this is a transition to record; an operator that resumed is running
    /// already.
    pub(crate) fn advance(&mut self, next: Self) -> bool {
        let is_step = *self != next && !(next == Self::Running && *self == Self::Resumed);
        if is_step {
            *self = next;
        }
        is_step
    }
}

#[cfg(test)]
mod tests {
    use super::OperatorState::{Completed, Interrupted, Invoked, Resumed, Running, Suspended};

    #[test]
    fn each_step_counts_once() {
        let mut life = Invoked;
        let steps = [
            Running,
            Running,
            Suspended,
            Resumed,
            Running,
            Suspended,
            Resumed,
            Completed,
            Running,
            Interrupted,
        ];
        let counted: Vec<bool> = steps.into_iter().map(|next| life.advance(next)).collect();
        assert_eq!(counted, [true, false, true, true, false, true, true, true, true, true]);
    }
}
