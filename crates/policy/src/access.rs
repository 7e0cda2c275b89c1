//! Access presets, and permissions that can be removed from them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An access preset: the decisions for actions that no rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Low,
    /// Also allows changes in the roots, and commands that a sandbox confines to the roots.
    #[default]
    Medium,
    /// Allows everything except protected paths and disabled permissions.
    High,
}

impl Access {
    /// Returns the name of the preset in files and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Access {
    type Err = UnknownAccess;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Low, Self::Medium, Self::High]
            .into_iter()
            .find(|access| access.name() == text)
            .ok_or(UnknownAccess)
    }
}

/// Error: the access preset is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("access is one of low, medium, high")]
pub struct UnknownAccess;

/// Permissions that can be removed from every preset. `true` grants nothing. `false` forbids, and no rule can
/// override that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Narrowing {
    pub network: bool,
    pub web_search: bool,
}

impl Default for Narrowing {
    fn default() -> Self {
        Self { network: true, web_search: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_as_displayed() {
        for access in [Access::Low, Access::Medium, Access::High] {
            assert_eq!(access.to_string().parse(), Ok(access));
        }
        assert_eq!("HIGH".parse::<Access>(), Err(UnknownAccess));
        assert_eq!(Access::default(), Access::Medium);
        assert!(Narrowing::default().network && Narrowing::default().web_search);
    }
}
