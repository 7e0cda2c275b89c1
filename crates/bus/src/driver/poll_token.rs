//! Tokens by which the event loop knows the source of an event.

use mio::Token;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollToken {
    Waker,
    Listener(u32),
    /// A client, or the input of a client with two descriptors.
    Client(u32),
    /// The output of a client with two descriptors.
    ClientOutput(u32),
    Stdin(u32),
    Stdout(u32),
}

impl PollToken {
    pub(super) fn token(self) -> Token {
        let (kind, slot) = match self {
            Self::Waker => (0, 0),
            Self::Listener(slot) => (1, slot),
            Self::Client(slot) => (2, slot),
            Self::ClientOutput(slot) => (3, slot),
            Self::Stdin(slot) => (4, slot),
            Self::Stdout(slot) => (5, slot),
        };
        Token((slot as usize) << 3 | kind)
    }

    #[inline]
    pub(super) fn from_token(token: Token) -> Self {
        // The slot has 32 bits. The lowest 3 bits of the token are the kind of source.
        let slot = (token.0 >> 3) as u32;
        match token.0 & 7 {
            1 => Self::Listener(slot),
            2 => Self::Client(slot),
            3 => Self::ClientOutput(slot),
            4 => Self::Stdin(slot),
            5 => Self::Stdout(slot),
            _ => Self::Waker,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_token_converts_back() {
        let slots = [0, 1, 77, u32::MAX];
        let kinds = [
            PollToken::Listener,
            PollToken::Client,
            PollToken::ClientOutput,
            PollToken::Stdin,
            PollToken::Stdout,
        ];
        for place in kinds.into_iter().flat_map(|kind| slots.map(kind)).chain([PollToken::Waker]) {
            assert_eq!(PollToken::from_token(place.token()), place);
        }
    }
}
