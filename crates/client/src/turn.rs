//! When a turn is over: version 1 ends it with the answer to the prompt, version 2 with a state of the session.

use narrows_acp::Version;
use narrows_acp::stop::StopReason;

/// A turn from its prompt to its end.
#[derive(Debug)]
pub(crate) struct Turn {
    version: Version,
    /// The request with the prompt.
    pub(crate) prompt: u64,
    /// Whether the prompt has been answered.
    answered: bool,
    /// Whether the prompt is part of the session (version 2).
    inserted: bool,
    /// Whether the agent was seen to work on it (version 2).
    worked: bool,
    /// The end, if it came before the answer to the prompt (version 2).
    end: Option<Option<StopReason>>,
}

impl Turn {
    /// A turn whose prompt was sent with request `prompt`.
    pub(crate) fn new(version: Version, prompt: u64) -> Self {
        Self { version, prompt, answered: false, inserted: false, worked: false, end: None }
    }

    /// The prompt was answered, in version 1 with this reason. Returns the end of the turn, if it is.
    pub(crate) fn answered(&mut self, reason: Option<StopReason>) -> Option<Option<StopReason>> {
        self.answered = true;
        match self.version {
            Version::V1 => Some(reason),
            // Its end may have come already.
            Version::V2 => self.end.take(),
        }
    }

    /// The prompt is part of the session.
    pub(crate) fn inserted(&mut self) {
        self.inserted = true;
    }

    /// The agent works.
    pub(crate) fn running(&mut self) {
        self.worked = true;
    }

    /// The agent is idle. That is the end of the turn only if the turn has begun: before that it is the state the
    /// session was in anyway.
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

    /// Plays what happens: `a`nswered, i`n`serted, `w`orks, `i`dle, `s`topped (idle with a reason). Returns after which
    /// step the turn was over.
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
            // The state before the turn.
            (Version::V2, "ia", None),
            (Version::V2, "ai", None),
            (Version::V2, "s", None),
            // The end before the answer.
            (Version::V2, "wia", Some(2)),
            (Version::V2, "nsa", Some(2)),
        ] {
            assert_eq!(over_after(version, steps), over, "{version} {steps}");
        }
    }
}
