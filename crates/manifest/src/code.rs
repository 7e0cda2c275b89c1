//! The kinds of mistakes. Their names are for programs and stay as they are.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// What kind of mistake a finding is about.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Code {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

codes! {
    /// The file cannot be read.
    Unreadable = "unreadable",
    /// The file is longer than any manifest.
    TooLong = "too-long",
    /// The file is not UTF-8.
    Encoding = "not-utf8",
    /// Nothing lies where a reference points.
    NotFound = "not-found",
    /// A reference leads out of the workspace.
    Outside = "outside-workspace",
    /// There is no front matter, or it has no end.
    FrontMatter = "front-matter",
    /// The front matter is not YAML.
    Syntax = "yaml-syntax",
    /// Values are nested too deeply.
    TooDeep = "yaml-depth",
    /// A reference to another value.
    Alias = "yaml-alias",
    /// A tag.
    Tag = "yaml-tag",
    /// A key that is not a word.
    Key = "yaml-key",
    /// A key comes twice.
    Duplicate = "duplicate-key",
    /// A key that must be there is not.
    Missing = "missing-key",
    /// A key that nobody knows, where nobody else's are allowed.
    Unknown = "unknown-key",
    /// A text that YAML takes for something else.
    QuoteIt = "quote-it",
    /// A value of another type.
    Type = "type",
    /// A value that is none of those allowed.
    Enum = "enum",
    /// A text of another form.
    Pattern = "pattern",
    /// A text that is too short or too long.
    Length = "length",
    /// A number that is too small or too large.
    Range = "range",
    /// A list with too few values.
    Few = "too-few",
    /// A list in which a value comes twice.
    Twice = "not-unique",
    /// A value that has none of the forms allowed, or several.
    Form = "form",
    /// The name is not that of the directory.
    Name = "name-mismatch",
    /// A key below `aip44` that nobody knows.
    UnknownAip44 = "unknown-aip44-key",
    /// A revision of the protocol that is not in our table.
    UnknownRevision = "unknown-acp-rev",
    /// Two keys contradict each other.
    Contradiction = "contradiction",
    /// A server or bridge without what it needs to run.
    Unbound = "unbound",
    /// An audit that is off where it must not be.
    AuditOff = "audit-off",
    /// An audit that is kept elsewhere, and nobody says where.
    AuditRef = "audit-ref",
    /// A key that looks like a slip of the finger, where others' keys are allowed.
    Misspelt = "misspelt-key",
    /// An approval that nobody can give.
    Signers = "no-signers",
    /// A key that has no effect here.
    Ignored = "ignored-key",
    /// A word that was used earlier for the same.
    Legacy = "legacy-key",
    /// A policy that permits at no autonomy at all.
    AllowWithoutAutonomy = "policy-allow-at-0",
    /// An address, pattern or range that cannot be read.
    Unusable = "unusable-value",
    /// A parent of a governance that is missing, comes twice, or is too far up.
    Extends = "governance-extends",
    /// A descendant that loosens an append-only log.
    AppendOnly = "governance_append_only_relaxation",
    /// A descendant that does without signatures.
    Signing = "governance_signing_downgrade",
    /// A governance whose addressee does not exist, or is somebody else.
    AppliesTo = "governance_appliesto_unresolvable",
    /// A governance that is not valid itself.
    Workspace = "governance_workspace_invalid",
    /// A hash algorithm that is not ours.
    Hash = "unsupported-hash",
    /// A signing algorithm that is not ours.
    Algorithm = "unsupported-signing",
    /// A policy that cannot be found.
    Policy = "policy-unresolvable",
    /// A policy about an action that is never asked for.
    Action = "action-unmatched",
    /// A policy about a tool that there is not.
    Subject = "subject-unmatched",
    /// A skill that cannot be found.
    Skill = "skill-load-failed",
    /// A tool that cannot be found.
    Tool = "tool-resolution-failed",
    /// A sandbox that cannot be found.
    Sandbox = "sandbox_ref_unresolvable",
    /// A provider of sandboxes that is not ours.
    Provider = "sandbox_provider_unknown",
    /// A runner that cannot be found.
    Runner = "runner-unresolvable",
    /// A runner that gets more distance than it asks for.
    Downgraded = "runner-downgraded",
    /// An agent that cannot be found.
    AgentCli = "agent-cli-unresolvable",
    /// An agent that speaks MCP and not ACP.
    ProtocolMcp = "agent_cli_protocol_mcp",
    /// An agent that speaks a language of its own.
    ProtocolProprietary = "agent_cli_protocol_proprietary",
    /// Keys that cannot be read, or one of them that does not count.
    Keyring = "keyring",
    /// An approval that takes more people than there are.
    Quorum = "quorum-unreachable",
    /// A sandbox in which nothing may be run, where something has to be.
    ReadOnly = "sandbox_read_only",
    /// Something about a sandbox that nobody can enforce.
    Unenforceable = "sandbox_unenforceable",
    /// A program that is not there.
    Program = "program-not-found",
    /// A mode, option or continuation that the agent does not declare.
    Config = "agent-cli-config",
}

impl fmt::Display for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_of_its_own() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
    }
}
