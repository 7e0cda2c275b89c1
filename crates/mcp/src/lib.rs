//! The MCP servers of a session: started, listed, called, and gone with it.
