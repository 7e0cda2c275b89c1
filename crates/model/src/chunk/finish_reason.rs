//! Parses finish reasons under the names of all known endpoints.

use crate::chat::Finish;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Finished(Finish),
    /// An empty finish reason. Some servers send it with every chunk, others only with the last.
    Blank,
    Failed,
}

impl Reason {
    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "" => Self::Blank,
            "stop" | "eos" | "end_turn" | "stop_sequence" => Self::Finished(Finish::Stop),
            "tool_calls" | "function_call" | "tool_use" => Self::Finished(Finish::Calls),
            "length" | "max_tokens" | "model_length" => Self::Finished(Finish::Length),
            "content_filter" | "refusal" | "safety" | "sensitive" => Self::Finished(Finish::Refusal),
            "error" | "error_finish" | "abort" | "insufficient_system_resource" => Self::Failed,
            _ => {
                let lower = name.to_ascii_lowercase();
                if lower != name {
                    return Self::from_name(&lower);
                }
                // The provider wrote the reason, so its text must not be logged.
                tracing::warn!(bytes = name.len(), "unknown finish reason treated as stop");
                Self::Finished(Finish::Stop)
            }
        }
    }
}

/// Returns the more specific of two finish reasons, because some servers send two.
pub(super) fn stronger(first: Finish, second: Finish) -> Finish {
    let strength = |finish| match finish {
        Finish::Stop => 0,
        Finish::Calls => 1,
        Finish::Length => 2,
        Finish::Refusal => 3,
    };
    if strength(second) > strength(first) { second } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason() {
        #[track_caller]
        fn check(names: &[&str], expected: Reason) {
            for name in names {
                assert_eq!(Reason::from_name(name), expected, "{name}");
            }
        }
        check(&["stop", "eos", "end_turn", "STOP", "whatever"], Reason::Finished(Finish::Stop));
        check(&["tool_calls", "function_call"], Reason::Finished(Finish::Calls));
        check(&["length", "max_tokens", "MAX_TOKENS"], Reason::Finished(Finish::Length));
        check(&["content_filter"], Reason::Finished(Finish::Refusal));
        check(&["error", "error_finish"], Reason::Failed);
        check(&[""], Reason::Blank);
    }

    #[test]
    fn the_stronger_reason_wins_in_either_order() {
        let all = [Finish::Stop, Finish::Calls, Finish::Length, Finish::Refusal];
        for (weak, first) in all.iter().enumerate() {
            for second in &all[weak..] {
                assert_eq!(stronger(*first, *second), *second);
                assert_eq!(stronger(*second, *first), *second);
            }
        }
    }
}
