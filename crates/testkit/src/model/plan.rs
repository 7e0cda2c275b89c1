//! Assigns replies to requests.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use serde_json::json;

use super::{Reply, Seen, event};

type Decide = Box<dyn Fn(&Seen) -> Option<Reply> + Send>;

/// The planned replies of a server.
pub struct Plan {
    decide: Option<Decide>,
    replies: VecDeque<Reply>,
    models: Reply,
    others: HashMap<String, Reply>,
}

impl Plan {
    /// Creates a plan that answers completion requests with these replies in order. The last one is
    /// repeated.
    #[must_use]
    pub fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self {
            decide: None,
            replies: replies.into_iter().collect(),
            models: Reply::models(&[event::MODEL]),
            others: HashMap::new(),
        }
    }

    /// Appends a reply.
    #[must_use]
    pub fn then(mut self, reply: Reply) -> Self {
        self.replies.push_back(reply);
        self
    }

    /// Sets the reply to requests for the list of models.
    #[must_use]
    pub fn models(mut self, reply: Reply) -> Self {
        self.models = reply;
        self
    }

    /// Sets the reply to requests for this path.
    #[must_use]
    pub fn at(mut self, path: &str, reply: Reply) -> Self {
        self.others.insert(path.to_owned(), reply);
        self
    }

    /// Calls `decide` first for every completion request. If `decide` returns `None`, the planned reply is
    /// used.
    #[must_use]
    pub fn unless(mut self, decide: impl Fn(&Seen) -> Option<Reply> + Send + 'static) -> Self {
        self.decide = Some(Box::new(decide));
        self
    }

    /// Returns the planned reply to a request. A path with an empty segment is unknown.
    pub(super) fn reply_to(&mut self, seen: &Seen) -> Reply {
        if let Some(reply) = self.others.get(&seen.path) {
            return reply.clone();
        }
        // A request to a proxy contains a whole URL.
        let path = seen.path.strip_prefix("http://").unwrap_or(&seen.path);
        let known = !path.contains("//");
        let reply = match seen.method.as_str() {
            "POST" if known && path.ends_with("/chat/completions") => self.next(seen),
            "GET" if known && path.ends_with("/models") => Some(self.models.clone()),
            _ => None,
        };
        reply.unwrap_or_else(|| {
            let message = format!("No reply is planned for {} {}.", seen.method, seen.path);
            Reply::error(404, &json!({"error": {"message": message}}))
        })
    }

    fn next(&mut self, seen: &Seen) -> Option<Reply> {
        let decided = self.decide.as_ref().and_then(|decide| decide(seen));
        decided.or_else(|| {
            if self.replies.len() > 1 { self.replies.pop_front() } else { self.replies.front().cloned() }
        })
    }
}

impl From<Reply> for Plan {
    fn from(reply: Reply) -> Self {
        Self::new([reply])
    }
}

impl<const N: usize> From<[Reply; N]> for Plan {
    fn from(replies: [Reply; N]) -> Self {
        Self::new(replies)
    }
}

impl From<Vec<Reply>> for Plan {
    fn from(replies: Vec<Reply>) -> Self {
        Self::new(replies)
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Plan").field("replies", &self.replies.len()).finish_non_exhaustive()
    }
}
