//! The capabilities of an agent, by name.

use narrows_acp::capability::AgentCan;

/// Name in JSON, description, and `true` if the agent has the capability.
pub(super) type Row = (&'static str, &'static str, bool);

pub(super) fn rows(can: &AgentCan) -> [Row; 15] {
    [
        ("resume", "resume sessions", can.resume),
        ("load", "load sessions", can.load),
        ("list", "list sessions", can.list),
        ("fork", "fork sessions", can.fork),
        ("close", "close sessions", can.close),
        ("delete", "delete sessions", can.delete),
        ("additionalDirectories", "work in several directories", can.additional_directories),
        ("image", "see images", can.image),
        ("audio", "hear audio", can.audio),
        ("embeddedContext", "accept files with the prompt", can.embedded_context),
        ("mcpStdio", "start MCP servers", can.mcp_stdio),
        ("mcpHttp", "use MCP servers over HTTP", can.mcp_http),
        ("mcpSse", "use MCP servers over SSE", can.mcp_sse),
        ("mcpAcp", "use MCP servers of the client", can.mcp_acp),
        ("logout", "log out", can.logout),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_capability_has_one_name() {
        let all = rows(&AgentCan::default());
        let mut names: Vec<_> = all.iter().map(|row| row.0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|row| !row.2));
        let can = AgentCan { list: true, mcp_sse: true, ..AgentCan::default() };
        let known: Vec<_> = rows(&can).into_iter().filter(|row| row.2).map(|row| row.0).collect();
        assert_eq!(known, ["list", "mcpSse"]);
    }
}
