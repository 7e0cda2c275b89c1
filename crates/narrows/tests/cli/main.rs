//! The binary as a user meets it: real processes, their output and their exit codes.

mod acp;
mod agents;
mod builtin;
mod chat;
mod check;
mod client_page;
mod events;
mod failures;
mod fake_agent;
mod help;
mod leaving;
mod losses;
mod named;
mod papers;
mod person;
mod policy;
mod run;
mod sdk;
mod sessions;
mod signals;
mod support;
mod talk;
mod watched;
