//! What an agent says becomes events.
