//! Commands the agent runs here, contained and within bounds.
