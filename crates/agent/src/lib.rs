//! The universal agent: sessions, the turn loop, and tools of MCP servers and of the client.
