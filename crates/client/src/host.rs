//! What an agent may use of this machine: files and terminals, within the roots.

#[cfg_attr(not(test), expect(dead_code, reason = "the session will use it"))]
pub(crate) mod files;
#[cfg_attr(not(test), expect(dead_code, reason = "the session will use it"))]
pub(crate) mod terminal;
