//! The two protocol versions, and non-empty sets of them.

use std::fmt;

use agent_client_protocol_schema::ProtocolVersion;

/// A protocol version with types in this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    V1,
    /// Version 2, which is a draft in the pinned schema crate.
    V2,
}

impl Version {
    /// Returns the number that stands for the version in the protocol.
    pub const fn number(self) -> u16 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    /// Returns the version with this number, if there is one.
    pub const fn from_number(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::V1),
            2 => Some(Self::V2),
            _ => None,
        }
    }
}

impl From<Version> for ProtocolVersion {
    fn from(version: Version) -> Self {
        version.number().into()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

/// A non-empty set of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Versions {
    OnlyV1,
    OnlyV2,
    Both,
}

impl Versions {
    /// Returns the members, lowest first.
    pub const fn all(self) -> &'static [Version] {
        match self {
            Self::OnlyV1 => &[Version::V1],
            Self::OnlyV2 => &[Version::V2],
            Self::Both => &[Version::V1, Version::V2],
        }
    }

    /// Returns `true` if `version` is a member.
    pub fn contains(self, version: Version) -> bool {
        self.all().contains(&version)
    }

    /// Returns the highest member, which a client offers first.
    pub const fn highest(self) -> Version {
        match self {
            Self::OnlyV1 => Version::V1,
            Self::OnlyV2 | Self::Both => Version::V2,
        }
    }

    /// Returns the version with which an agent answers a client that requests `requested`.
    ///
    /// An agent that supports v2 answers with the highest member that is not above the request, or refuses
    /// (`None`). A pure v1 agent follows the older rule, which has no refusal: it always answers 1.
    pub fn answer_to(self, requested: u16) -> Option<Version> {
        match self {
            Self::OnlyV1 => Some(Version::V1),
            Self::OnlyV2 | Self::Both => {
                self.all().iter().rev().copied().find(|version| version.number() <= requested)
            }
        }
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnlyV1 => "1",
            Self::OnlyV2 => "2",
            Self::Both => "1 and 2",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_schema() {
        assert_eq!(ProtocolVersion::from(Version::V1), ProtocolVersion::V1);
        assert_eq!(ProtocolVersion::from(Version::V2), ProtocolVersion::V2);
        for version in Versions::Both.all() {
            assert_eq!(Version::from_number(version.number()), Some(*version));
        }
        assert_eq!(Version::from_number(0), None);
        assert_eq!(Version::from_number(3), None);
    }

    #[test]
    fn an_agent_answers_the_highest_version_not_above_the_request() {
        #[track_caller]
        fn check(supported: Versions, requested: u16, expected: Option<Version>) {
            assert_eq!(supported.answer_to(requested), expected, "{supported:?} asked for {requested}");
        }
        check(Versions::Both, 0, None);
        check(Versions::Both, 1, Some(Version::V1));
        check(Versions::Both, 2, Some(Version::V2));
        check(Versions::Both, 65535, Some(Version::V2));
        check(Versions::OnlyV2, 1, None);
        check(Versions::OnlyV2, 3, Some(Version::V2));
        check(Versions::OnlyV1, 0, Some(Version::V1));
        check(Versions::OnlyV1, 1, Some(Version::V1));
        check(Versions::OnlyV1, 2, Some(Version::V1));
    }
}
