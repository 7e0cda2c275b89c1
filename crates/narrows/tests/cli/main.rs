//! The binary as a user meets it: real processes, their output and their exit codes.

mod failures;
mod fake_agent;
mod help;
mod losses;
mod run;
mod sdk;
mod signals;
mod support;
