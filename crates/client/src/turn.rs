//! Detects the end of a turn: in version 1 by the answer to the prompt, in version 2 by a state of the
//! session.

use narrows_acp::Version;
use narrows_acp::stop::StopReason;

#[derive(Debug)]
pub(crate) struct Turn {
    version: Version,
    pub(crate) prompt: u64,
    answered: bool,
    /// `true` once the agent has reported that the prompt is part of the session (version 2).
    inserted: bool,
    /// `true` once the agent has reported that it works on the prompt (version 2).
    worked: bool,
    /// Stop reason of a turn that ended before the prompt was answered (version 2).
    end: Option<Option<StopReason>>,
}

impl Turn {
    /// Creates a turn whose prompt was sent as request `prompt`.
    pub(crate) fn new(version: Version, prompt: u64) -> Self {
        Self { version, prompt, answered: false, inserted: false, worked: false, end: None }
    }

    /// Records the answer to the prompt, with a stop reason in version 1. Returns the stop reason if the turn
    /// has ended.
    pub(crate) fn answered(&mut self, reason: Option<StopReason>) -> Option<Option<StopReason>> {
        self.answered = true;
        match self.version {
            Version::V1 => Some(reason),
            // In version 2, the turn may end before the prompt is answered.
            Version::V2 => self.end.take(),
        }
    }

    pub(crate) fn inserted(&mut self) {
        self.inserted = true;
    }

    pub(crate) fn running(&mut self) {
        self.worked = true;
    }

    /// Records that the agent is idle. Ends the turn only if the agent has begun to work on it: an idle state
    /// may also be left from before the turn.
    pub(crate) fn idle(&mut self, reason: Option<StopReason>) -> Option<Option<StopReason>> {
        if self.version == Version::V1 {
            return None;
        }
        let ours = self.worked || reason.is_some() && (self.answered || self.inserted);
        if ours && self.answered {
            return Some(reason);
        }
        if ours {
            self.end = Some(reason);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays the steps of a turn: `a`nswered, i`n`serted, `w`orking, `i`dle, `s`topped (idle with a reason).
    /// Returns the index of the step that ended the turn.
    fn over_after(version: Version, steps: &str) -> Option<usize> {
        let mut turn = Turn::new(version, 1);
        steps.chars().position(|step| {
            let end = match step {
                'a' => turn.answered(Some(StopReason::EndTurn)),
                'n' => {
                    return {
                        turn.inserted();
                        false
                    };
                }
                'w' => {
                    return {
                        turn.running();
                        false
                    };
                }
                'i' => turn.idle(None),
                _ => turn.idle(Some(StopReason::EndTurn)),
            };
            end.is_some()
        })
    }

    #[test]
    fn a_turn_ends_only_after_it_began() {
        for (version, steps, over) in [
            (Version::V1, "a", Some(0)),
            (Version::V1, "wisa", Some(3)),
            (Version::V2, "awi", Some(2)),
            (Version::V2, "naws", Some(3)),
            (Version::V2, "as", Some(1)),
            // The idle state is from before the turn.
            (Version::V2, "ia", None),
            (Version::V2, "ai", None),
            (Version::V2, "s", None),
            // The turn ends before the prompt is answered.
            (Version::V2, "wia", Some(2)),
            (Version::V2, "nsa", Some(2)),
        ] {
            assert_eq!(over_after(version, steps), over, "{version} {steps}");
        }
    }
}
