//! Kinds of tools.

use std::fmt;

use serde::{Deserialize, Serialize};

use narrows_base::suggest::nearest;

/// The tool kinds of the protocol. Any other name of a kind is [`Kind::Other`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", from = "String")]
pub enum Kind {
    Think,
    Read,
    /// A search on disk or on the web.
    Search,
    Fetch,
    Edit,
    Move,
    Delete,
    Execute,
    SwitchMode,
    #[default]
    Other,
}

impl Kind {
    pub const ALL: [Self; 10] = [
        Self::Think,
        Self::Read,
        Self::Search,
        Self::Fetch,
        Self::Edit,
        Self::Move,
        Self::Delete,
        Self::Execute,
        Self::SwitchMode,
        Self::Other,
    ];

    /// Returns the name of the kind in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Think => "think",
            Self::Read => "read",
            Self::Search => "search",
            Self::Fetch => "fetch",
            Self::Edit => "edit",
            Self::Move => "move",
            Self::Delete => "delete",
            Self::Execute => "execute",
            Self::SwitchMode => "switch_mode",
            Self::Other => "other",
        }
    }

    /// Returns the kind with this name in the protocol.
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or_default()
    }

    /// Returns a hint for an unknown kind. `None` if the kind is known, or begins with an underscore, as
    /// custom kinds of agents do.
    pub fn correction(name: &str) -> Option<String> {
        if name.starts_with('_') || Self::ALL.into_iter().any(|kind| kind.name() == name) {
            return None;
        }
        let names = Self::ALL.map(Self::name);
        let begun = || names.into_iter().find(|known| !name.is_empty() && known.starts_with(name));
        Some(match nearest(name, names.iter().copied()).or_else(begun) {
            Some(near) => format!("did you mean kind:{near}?"),
            None => format!("write kind: and one of {}", names.join(", ")),
        })
    }

    /// Returns the risk of the kind: 0 changes nothing, 1 is reversible, 2 is unknown, 3 is irreversible.
    pub fn risk(self) -> u8 {
        match self {
            Self::Think | Self::Read | Self::Search => 0,
            Self::Edit | Self::Move | Self::Fetch => 1,
            Self::Execute | Self::SwitchMode | Self::Other => 2,
            Self::Delete => 3,
        }
    }

    pub(crate) fn only_reads(self) -> bool {
        matches!(self, Self::Think | Self::Read | Self::Search)
    }
}

impl From<String> for Kind {
    fn from(name: String) -> Self {
        Self::named(&name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_risk() {
        let risks = Kind::ALL.map(|kind| (kind.name(), kind.risk()));
        let expected = [
            ("think", 0),
            ("read", 0),
            ("search", 0),
            ("fetch", 1),
            ("edit", 1),
            ("move", 1),
            ("delete", 3),
            ("execute", 2),
            ("switch_mode", 2),
            ("other", 2),
        ];
        assert_eq!(risks, expected);
    }

    #[test]
    fn names_are_those_of_the_protocol() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.name()), kind);
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        for unknown in ["", "Read", "levitate", "_custom"] {
            assert_eq!(Kind::named(unknown), Kind::Other);
        }
    }
}
