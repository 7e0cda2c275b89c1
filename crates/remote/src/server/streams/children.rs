//! Child sessions of subagents, and the streams for their messages.
//!
//! A client does not open a child session: the agent announces it in another session (`subagent_update`), and its
//! events are delivered unasked. So they go to the stream of the topmost session. A child whose own stream is open
//! before its first message uses that one. The choice is made once: a change would let messages overtake each other.

use std::collections::{HashMap, VecDeque};

/// Limit of child sessions remembered per connection. The oldest ones are forgotten first.
const MAX_CHILDREN: usize = 4096;

#[derive(Debug)]
struct Child {
    root: String,
    /// `true` if messages of the child go to its own stream. `None` before the first message of the child.
    on_own_stream: Option<bool>,
}

#[derive(Debug, Default)]
pub(super) struct Children {
    known: HashMap<String, Child>,
    /// The child sessions in the order of their announcements.
    order: VecDeque<String>,
}

impl Children {
    /// Records a child session that was announced in `session`, unless the child is already known.
    pub(super) fn record(&mut self, session: &str, child: String) {
        let root = self.known.get(session).map_or(session, |parent| &parent.root).to_owned();
        if child == session || child == root || self.known.contains_key(&child) {
            return;
        }
        if self.known.len() >= MAX_CHILDREN
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(child.clone());
        self.known.insert(child, Child { root, on_own_stream: None });
    }

    /// Returns the session whose stream gets the messages of the child `session`, or `None` if it is not a child.
    pub(super) fn stream_of(&mut self, session: &str, is_open: impl Fn(&str) -> bool) -> Option<String> {
        let child = self.known.get_mut(session)?;
        let own = *child.on_own_stream.get_or_insert_with(|| is_open(session));
        Some(if own { session.to_owned() } else { child.root.clone() })
    }
}
