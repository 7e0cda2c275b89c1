//! The capabilities of a runtime: those of its tier, as changed by its manifest.

use serde::Serialize;

use crate::types::acp::{Aip44, Tier};

/// All capabilities that a manifest can declare. `true` means that the capability is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Capabilities {
    pub read_text_file: bool,
    pub write_text_file: bool,
    pub terminal: bool,
    pub load_session: bool,
    pub image: bool,
    pub audio: bool,
    /// The agent accepts embedded files.
    pub embedded_context: bool,
    pub mcp_http: bool,
    pub mcp_sse: bool,
    /// The agent supports MCP servers over ACP. A manifest cannot declare this capability. It is `true` if
    /// `mcp_http` or `mcp_sse` is.
    pub mcp_acp: bool,
    pub tool_calls: bool,
}

impl Capabilities {
    /// Returns the capabilities of a tier.
    pub fn from_tier(tier: Tier) -> Self {
        let governed = tier >= Tier::GovernanceAware;
        let sandboxed = tier == Tier::Sandboxed;
        Self {
            load_session: governed,
            tool_calls: governed,
            mcp_http: sandboxed,
            mcp_acp: sandboxed,
            ..Self::default()
        }
    }

    /// Returns the declared capabilities. A capability that the manifest does not mention is declared if the
    /// tier includes it.
    pub fn declared(aip44: &Aip44) -> Self {
        let implied = Self::from_tier(aip44.tier);
        let said = aip44.capabilities.unwrap_or_default();
        let (fs, agent) = (said.client.fs, said.agent);
        let (prompt, mcp) = (agent.prompt_capabilities, agent.mcp_capabilities);
        let mcp_http = mcp.http.unwrap_or(implied.mcp_http);
        let mcp_sse = mcp.sse.unwrap_or(implied.mcp_sse);
        Self {
            read_text_file: fs.read_text_file.unwrap_or(implied.read_text_file),
            write_text_file: fs.write_text_file.unwrap_or(implied.write_text_file),
            terminal: said.client.terminal.unwrap_or(implied.terminal),
            load_session: agent.load_session.unwrap_or(implied.load_session),
            image: prompt.image.unwrap_or(implied.image),
            audio: prompt.audio.unwrap_or(implied.audio),
            embedded_context: prompt.embedded_context.unwrap_or(implied.embedded_context),
            mcp_http,
            mcp_sse,
            mcp_acp: mcp_http || mcp_sse,
            tool_calls: implied.tool_calls,
        }
    }

    /// Returns the names of the declared capabilities that `live`, an offer of a peer, lacks.
    pub fn missing_in(&self, live: &Self) -> Vec<&'static str> {
        let pairs = self.named().into_iter().zip(live.named());
        pairs.filter(|((_, declared), (_, live))| *declared && !live).map(|((name, _), _)| name).collect()
    }

    /// Returns every capability with its name in a manifest.
    pub fn named(&self) -> [(&'static str, bool); 11] {
        [
            ("client.fs.readTextFile", self.read_text_file),
            ("client.fs.writeTextFile", self.write_text_file),
            ("client.terminal", self.terminal),
            ("agent.loadSession", self.load_session),
            ("agent.promptCapabilities.image", self.image),
            ("agent.promptCapabilities.audio", self.audio),
            ("agent.promptCapabilities.embeddedContext", self.embedded_context),
            ("agent.mcpCapabilities.http", self.mcp_http),
            ("agent.mcpCapabilities.sse", self.mcp_sse),
            ("agent.mcpCapabilities.acp", self.mcp_acp),
            ("agent.toolCalls", self.tool_calls),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(tier: &str, capabilities: &Value, expected: &[&str]) {
        let aip44 = json!({"acp_rev": "abc1234", "tier": tier, "capabilities": capabilities, "sandbox": "x"});
        let declared = Capabilities::declared(&serde_json::from_value(aip44).unwrap());
        let names: Vec<&str> =
            declared.named().into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn declared_values_override_those_of_the_tier() {
        check("basic", &json!({}), &[]);
        check("governance-aware", &json!({}), &["agent.loadSession", "agent.toolCalls"]);
        check(
            "sandboxed",
            &json!({}),
            &[
                "agent.loadSession",
                "agent.mcpCapabilities.http",
                "agent.mcpCapabilities.acp",
                "agent.toolCalls",
            ],
        );
        check("basic", &json!({"agent": {"loadSession": true}}), &["agent.loadSession"]);
        check(
            "sandboxed",
            &json!({"agent": {"mcpCapabilities": {"http": false, "sse": true}}, "client": {"terminal": true}}),
            &[
                "client.terminal",
                "agent.loadSession",
                "agent.mcpCapabilities.sse",
                "agent.mcpCapabilities.acp",
                "agent.toolCalls",
            ],
        );
    }

    #[test]
    fn missing_declared_capabilities_are_named() {
        let declared = Capabilities { load_session: true, image: true, ..Capabilities::default() };
        let live = Capabilities { image: true, audio: true, ..Capabilities::default() };
        assert_eq!(declared.missing_in(&live), ["agent.loadSession"]);
        assert!(live.missing_in(&live).is_empty());
    }
}
