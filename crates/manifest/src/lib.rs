//! ACP.md and the files it leads to: read, checked, resolved.
