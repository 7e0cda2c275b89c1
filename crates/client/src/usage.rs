//! What a turn cost, by difference of what the agent counts.
