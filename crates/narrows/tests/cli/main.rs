//! The binary as a user meets it: real processes, their output and their exit codes.

mod acp;
mod builtin;
mod failures;
mod fake_agent;
mod help;
mod leaving;
mod losses;
mod papers;
mod run;
mod sdk;
mod signals;
mod support;
mod talk;
