//! The kinds of manifest.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::Serialize;

/// A kind of manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ManifestKind {
    Acp,
    Operator,
    Governance,
    Policy,
    Sandbox,
    Runner,
    AgentCli,
}

/// Error: the kind of manifest is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a kind of manifest; kinds are {list}", list = ManifestKind::names())]
pub struct UnknownKind(pub String);

impl ManifestKind {
    pub const ALL: [Self; 7] = [
        Self::Acp,
        Self::Operator,
        Self::Governance,
        Self::Policy,
        Self::Sandbox,
        Self::Runner,
        Self::AgentCli,
    ];

    /// Returns the name of the kind on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acp => "acp",
            Self::Operator => "operator",
            Self::Governance => "governance",
            Self::Policy => "policy",
            Self::Sandbox => "sandbox",
            Self::Runner => "runner",
            Self::AgentCli => "agent-cli",
        }
    }

    /// Returns the name of the files of this kind.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Acp => "ACP.md",
            Self::Operator => "OPERATOR.md",
            Self::Governance => "GOVERNANCE.md",
            Self::Policy => "POLICY.md",
            Self::Sandbox => "SANDBOX.md",
            Self::Runner => "RUNNER.md",
            Self::AgentCli => "AGENT-CLI.md",
        }
    }

    /// Returns the kind of a file by the file name, such as `ACP.md` or `anything.ACP.md`.
    pub fn from_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let is = |kind: &Self| {
            name.strip_suffix(kind.file_name()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        Self::ALL.into_iter().find(is)
    }

    fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for ManifestKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for ManifestKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let is = |kind: &Self| {
            text.eq_ignore_ascii_case(kind.name()) || text.eq_ignore_ascii_case(kind.file_name())
        };
        Self::ALL.into_iter().find(is).ok_or_else(|| UnknownKind(narrows_base::text::quoted(text, 40)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_file_follows_from_its_name() {
        for kind in ManifestKind::ALL {
            assert_eq!(ManifestKind::from_path(&Path::new("a").join(kind.file_name())), Some(kind));
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(kind.file_name().parse(), Ok(kind));
        }
        assert_eq!(ManifestKind::from_path(Path::new("hermes.ACP.md")), Some(ManifestKind::Acp));
        for other in ["XACP.md", "acp.md", "README.md", "ACP.md.bak", ".."] {
            assert_eq!(ManifestKind::from_path(Path::new(other)), None, "{other}");
        }
        assert!("acpx".parse::<ManifestKind>().is_err());
    }
}
