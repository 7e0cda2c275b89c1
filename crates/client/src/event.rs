//! One event model, whatever the agent and its version.
