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
    /// A YAML alias, which is not allowed.
    Alias = "yaml-alias",
    /// A YAML tag, which is not allowed.
    Tag = "yaml-tag",
    /// A key that is not a string.
    Key = "yaml-key",
    /// A duplicate key.
    Duplicate = "duplicate-key",
    /// A required key is missing.
    Missing = "missing-key",
    /// A key that the manifest does not have.
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
    /// A value that matches none of the allowed forms, or several.
    Form = "form",
    /// A file contains another name than its directory or file name suggests.
    Name = "name-mismatch",
    /// An unknown key below `aip44`.
    UnknownAip44 = "unknown-aip44-key",
    /// An unknown revision of the protocol.
    UnknownRevision = "unknown-acp-rev",
    /// Two keys contradict each other.
    Contradiction = "contradiction",
    /// A server or bridge that does not name everything that running it needs.
    Unbound = "unbound",
    /// An audit log that is switched off although the tier requires a log.
    AuditOff = "audit-off",
    /// An external audit log without a location.
    AuditRef = "audit-ref",
    /// A key that is almost equal to a known key, in a map that allows any keys.
    MisspelledKey = "misspelt-key",
    /// An approval without an eligible approver.
    Signers = "no-signers",
    /// A key that has no effect at its place.
    Ignored = "ignored-key",
    /// A former name of a key or value.
    Legacy = "legacy-key",
    /// A policy with `decision: allow` and autonomy 0, which allows nothing.
    AllowWithoutAutonomy = "policy-allow-at-0",
    /// An address, pattern or range with invalid syntax.
    UnusableValue = "unusable-value",
    /// A parent of a governance that is missing, duplicated or nested too deeply.
    Extends = "governance-extends",
    /// A governance that loosens the append-only log of its parent.
    AppendOnly = "governance_append_only_relaxation",
    /// A governance that drops the signatures which its parent requires.
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
    /// A policy about an action that Narrows never decides on.
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
    /// A runner that is isolated more strictly than the manifest asks for.
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
    /// A sandbox with `read_only` for an agent. A read-only sandbox cannot run programs, and the agent is a
    /// program.
    ReadOnly = "sandbox_read_only",
    /// A sandbox setting that Narrows cannot enforce on this machine.
    Unenforceable = "sandbox_unenforceable",
    /// A program that is not found on this machine.
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
