//! One agent through one turn: start, handshake, session, prompt, end. Nothing here prints.

mod agent;
mod error;
mod outside;
mod permission;
mod surrogate;
mod turn;
mod v1;
mod v2;

pub(crate) use agent::{Agent, Info, Launch, Login, Opening};
pub(crate) use error::{DriveError, Fault, Problem, Stage};
pub(crate) use turn::{Event, Losses, Step, Turn};
