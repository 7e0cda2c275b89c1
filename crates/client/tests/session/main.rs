//! Sessions with the scripted agent, over a pair of links in memory.

mod before_prompt;
mod bounded;
mod cancelling;
mod commands_run_by;
mod common;
mod created;
mod files;
mod judged;
mod low_access;
mod mcp;
mod message_loss;
mod pairs;
mod permission;
mod runs;
mod sdk;
mod subjects;
mod unknown;
mod unreadable;
mod usage;
mod waiting;
