//! The sessions of the agent on disk: histories in SQLite, and a lock per open session that dies with its process.
