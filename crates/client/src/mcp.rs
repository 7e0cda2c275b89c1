//! MCP servers for an agent: handed over as it can take them, or run here and answered for.
