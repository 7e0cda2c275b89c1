//! The life of an operator in one session, and which of its steps is recorded.

/// Where an operator is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OperatorState {
    /// Its session is open.
    #[default]
    Invoked,
    /// It works.
    Running,
    /// It waits for an approval.
    Suspended,
    /// It has got one, or a refusal.
    Resumed,
    /// Its turn has ended.
    Completed,
    /// Its turn was cut short.
    Interrupted,
}

impl OperatorState {
    /// The action by which having come here is recorded.
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

    /// Goes on to `next`. Tells whether that is a step: one that works goes on working.
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
