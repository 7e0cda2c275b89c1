//! States of an operator in one session, and the state changes that are recorded.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OperatorState {
    #[default]
    Invoked,
    Running,
    Suspended,
    Resumed,
    Completed,
    /// The turn ended before it was complete.
    Interrupted,
}

impl OperatorState {
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

    /// Changes to the state `next`. Returns `true` if the change must be recorded. The change from `Resumed`
    /// to `Running` is not recorded.
    pub(crate) fn advance(&mut self, next: Self) -> bool {
        let is_step = *self != next && !(next == Self::Running && *self == Self::Resumed);
        if is_step {
            *self = next;
        }
        is_step
    }

    /// Forgets the end of the previous turn, so that the end of the next one is recorded even if the agent
    /// is silent in it.
    pub(crate) fn begin_turn(&mut self) {
        if matches!(self, Self::Completed | Self::Interrupted) {
            *self = Self::Invoked;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OperatorState::{Completed, Interrupted, Invoked, Resumed, Running, Suspended};

    #[test]
    fn each_transition_is_recorded_once() {
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
        life.begin_turn();
        assert!(life.advance(Interrupted), "of another turn");
    }
}
