//! Codes of findings. Their names are for programs and stay stable.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// The kind of problem that a finding reports.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the stable name.
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
    /// The file is too large.
    TooLong = "too-long",
    /// The file is not UTF-8.
    Encoding = "not-utf8",
    /// The target of a reference does not exist.
    NotFound = "not-found",
    /// A reference leads out of the workspace.
    Outside = "outside-workspace",
    /// The front matter is missing or unterminated.
    FrontMatter = "front-matter",
    /// The front matter is not YAML.
    Syntax = "yaml-syntax",
    /// Values are nested too deeply.
    TooDeep = "yaml-depth",
    /// A YAML alias.
    Alias = "yaml-alias",
    /// A YAML tag.
    Tag = "yaml-tag",
    /// A key that is not a string.
    Key = "yaml-key",
    /// A duplicate key.
    Duplicate = "duplicate-key",
    /// A required key is missing.
    Missing = "missing-key",
    /// An unknown key in a map that allows no other keys.
    Unknown = "unknown-key",
    /// An unquoted text that YAML reads as another type.
    QuoteIt = "quote-it",
    /// A value of the wrong type.
    Type = "type",
    /// A value that is not one of the allowed ones.
    Enum = "enum",
    /// A text that does not match the pattern.
    Pattern = "pattern",
    /// A text that is too short or too long.
    Length = "length",
    /// A number that is too small or too large.
    Range = "range",
    /// A list with too few values.
    TooFew = "too-few",
    /// A list with duplicate values.
    NotUnique = "not-unique",
    /// A value that matches no allowed form, or more than one.
    Form = "form",
    /// The name differs from that of the directory.
    Name = "name-mismatch",
    /// An unknown key below `aip44`.
    UnknownAip44 = "unknown-aip44-key",
    /// An unknown revision of the protocol.
    UnknownRevision = "unknown-acp-rev",
    /// Two keys contradict each other.
    Contradiction = "contradiction",
    /// A server or bridge that does not name what it needs to run.
    Unbound = "unbound",
    /// An audit log that is off although the tier requires it.
    AuditOff = "audit-off",
    /// An external audit log without a location.
    AuditRef = "audit-ref",
    /// A key that looks misspelled, in a map that allows other keys.
    MisspelledKey = "misspelt-key",
    /// An approval without an eligible approver.
    Signers = "no-signers",
    /// A key that has no effect here.
    Ignored = "ignored-key",
    /// A former name of a key or value.
    Legacy = "legacy-key",
    /// A policy with `decision: allow` and autonomy 0, which allows nothing.
    AllowWithoutAutonomy = "policy-allow-at-0",
    /// An address, pattern or range that cannot be read.
    UnusableValue = "unusable-value",
    /// A parent of a governance that is missing, duplicated or nested too deeply.
    Extends = "governance-extends",
    /// A descendant that loosens an append-only log.
    AppendOnly = "governance_append_only_relaxation",
    /// A descendant that drops signatures.
    Signing = "governance_signing_downgrade",
    /// A governance whose `appliesTo` does not exist, or names another operator.
    AppliesTo = "governance_appliesto_unresolvable",
    /// An invalid governance.
    Workspace = "governance_workspace_invalid",
    /// An unsupported hash algorithm.
    Hash = "unsupported-hash",
    /// An unsupported signing algorithm.
    Algorithm = "unsupported-signing",
    /// A policy that cannot be found.
    Policy = "policy-unresolvable",
    /// A policy about an action that is never judged.
    Action = "action-unmatched",
    /// A policy about a tool that does not exist.
    Subject = "subject-unmatched",
    /// A skill that cannot be found.
    Skill = "skill-load-failed",
    /// A tool that cannot be found.
    Tool = "tool-resolution-failed",
    /// A sandbox that cannot be found.
    Sandbox = "sandbox_ref_unresolvable",
    /// An unsupported sandbox provider.
    Provider = "sandbox_provider_unknown",
    /// A runner that cannot be found.
    Runner = "runner-unresolvable",
    /// A runner that is isolated more strictly than requested.
    Downgraded = "runner-downgraded",
    /// An agent that cannot be found.
    AgentCli = "agent-cli-unresolvable",
    /// An agent that speaks MCP and not ACP.
    ProtocolMcp = "agent_cli_protocol_mcp",
    /// An agent with a proprietary protocol.
    ProtocolProprietary = "agent_cli_protocol_proprietary",
    /// Unreadable keys, or an invalid key.
    Keyring = "keyring",
    /// A quorum larger than the number of approvers.
    Quorum = "quorum-unreachable",
    /// A read-only sandbox for an agent, which has to be run.
    ReadOnly = "sandbox_read_only",
    /// A sandbox setting that cannot be enforced.
    Unenforceable = "sandbox_unenforceable",
    /// A program that is not found.
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
    fn every_code_has_a_unique_name() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
    }
}
