//! The input of a call in the log: parts that an earlier entry has are represented by their digest.
//!
//! A short message of an agent can cause an entry about a long input, as often as the agent likes. What an
//! agent sends is recorded once in full, so the log grows no faster than the agent sends.

use serde_json::{Map, Value, json};

use super::{Call, Digest, value_digest};
use crate::gate::value_bytes;

/// Shorter parts are recorded in full in each entry.
const MIN_PART_BYTES: usize = 2 << 10;

/// Bound for the digests of a call. The agent must send a new long part for each.
const MAX_PARTS: usize = 64;

/// Bound for entries with the full input of a call whose input has a secret. The input is needed to find the
/// secret elsewhere in the entry.
const MAX_SECRET_ENTRIES: usize = 16;

/// Depth of the parts of an input that an agent can change one by one.
const MAX_DEPTH: usize = 2;

/// The digests of the parts of an input that the log has.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordedParts {
    digests: Vec<Digest>,
    /// Number of entries since the first one.
    entries: usize,
    /// State of the call at the last entry, and the digest of its input. An agent may repeat a message about a
    /// large call very often; the input is hashed once.
    last: Option<(Digest, Digest)>,
}

impl RecordedParts {
    pub(super) fn retained_bytes(&self) -> usize {
        self.digests.len() * size_of::<Digest>()
    }

    fn add(&mut self, part: &Value, depth: usize) {
        if value_bytes(part) <= MIN_PART_BYTES {
            return;
        }
        let digest = value_digest(part);
        if !self.digests.contains(&digest) {
            if self.digests.len() == MAX_PARTS {
                self.digests.remove(0);
            }
            self.digests.push(digest);
        }
        if let Some(members) = part.as_object().filter(|_| depth < MAX_DEPTH) {
            members.values().for_each(|member| self.add(member, depth + 1));
        }
    }

    /// Replaces the parts that the log has. `has_secret` keeps their digests out of the log.
    fn shorten(&self, part: Value, has_secret: bool, depth: usize) -> Value {
        if value_bytes(&part) <= MIN_PART_BYTES {
            return part;
        }
        let digest = value_digest(&part);
        if self.digests.contains(&digest) {
            return reference(&digest, has_secret);
        }
        match part {
            Value::Object(members) if depth < MAX_DEPTH => {
                let shortened = |(name, member)| (name, self.shorten(member, has_secret, depth + 1));
                members.into_iter().map(shortened).collect::<Map<_, _>>().into()
            }
            part => part,
        }
    }
}

/// Returns what stands for a part in an entry. A digest of a secret would allow to verify guesses.
fn reference(digest: &Digest, has_secret: bool) -> Value {
    let hex = || digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    json!({"$unchanged": true, "sha256": (!has_secret).then(hex)})
}

/// Returns the input for an entry after one that has it in full.
pub(crate) fn repeated_input(input: &Value, has_secret: impl FnOnce(Value) -> bool) -> Value {
    if value_bytes(input) <= MIN_PART_BYTES {
        return input.clone();
    }
    reference(&value_digest(input), has_secret(input.clone()))
}

impl Call {
    /// Returns the input for the next entry.
    pub(crate) fn input_for_log(&self) -> Value {
        let parts = &self.recorded_parts;
        let is_whole = || parts.entries < MAX_SECRET_ENTRIES && self.has_secret();
        if let Some((state, digest)) = &parts.last
            && *state == self.input_state()
            && !is_whole()
        {
            return reference(digest, self.has_secret());
        }
        let input = self.approval_input().into_owned();
        if parts.digests.is_empty() || is_whole() {
            return input;
        }
        parts.shorten(input, self.has_secret(), 0)
    }

    /// Notes that an entry with the input was recorded.
    pub(crate) fn set_input_recorded(&mut self) {
        self.recorded_parts.entries += 1;
        if self.recorded_parts.digests.is_empty() && value_bytes(&self.approval_input()) <= MIN_PART_BYTES {
            return;
        }
        let state = self.input_state();
        if self.recorded_parts.last.is_some_and(|(last, _)| last == state) {
            return;
        }
        let mut parts = std::mem::take(&mut self.recorded_parts);
        let input = self.approval_input();
        let is_long = value_bytes(&input) > MIN_PART_BYTES;
        parts.last = is_long.then(|| (state, value_digest(&input)));
        parts.add(&input, 0);
        self.recorded_parts = parts;
    }

    /// Returns a digest of all that [`Self::approval_input`] consists of. The long parts are hashed once.
    fn input_state(&self) -> Digest {
        value_digest(&json!([
            self.kind,
            self.name,
            self.input_digest(),
            self.changes_digest(),
            self.locations,
            self.unusual_locations,
            self.asked_command,
            self.extra_members,
        ]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::CallUpdate;

    fn update(call: &mut Call, update: &Value) -> String {
        call.apply_update(serde_json::from_str::<CallUpdate<'_>>(&update.to_string()).unwrap());
        let entry = call.input_for_log().to_string();
        call.set_input_recorded();
        entry
    }

    #[test]
    fn what_an_agent_sends_once_is_recorded_once() {
        let long = "x".repeat(100_000);
        let mut call = Call::default();
        let input = json!({"path": "/w/a", "text": long});
        assert!(
            update(&mut call, &json!({"toolCallId": "1", "kind": "edit", "rawInput": input})).len() > 100_000
        );
        let again = update(&mut call, &json!({"toolCallId": "1"}));
        assert!(again.starts_with(r#"{"$unchanged":true,"sha256":""#) && again.len() < 200, "{again}");
        assert!(
            update(&mut call, &json!({"toolCallId": "1", "name": "Other", "kind": "delete"})).len() < 200
        );
        let moved = update(&mut call, &json!({"toolCallId": "1", "locations": [{"path": "/w/new"}]}));
        assert!(moved.contains("/w/new") && moved.len() < 300, "{moved}");
        let diff = json!([{"type": "diff", "path": "/w/b", "newText": "short"}]);
        let shown = update(&mut call, &json!({"toolCallId": "1", "content": diff}));
        assert!(shown.contains("/w/b") && shown.len() < 500, "{shown}");
        call.set_asked_command(json!({"command": "rm -r /w/c"}));
        let asked = update(&mut call, &json!({"toolCallId": "1"}));
        assert!(asked.contains("rm -r /w/c") && asked.len() < 600, "{asked}");
        // A further run has the same input.
        update(&mut call, &json!({"toolCallId": "1", "status": "completed"}));
        let run = json!({"toolCallId": "1", "status": "in_progress"}).to_string();
        let call = call.new_run(&serde_json::from_str::<CallUpdate<'_>>(&run).unwrap()).unwrap();
        assert!(call.input_for_log().to_string().len() < 600);
        // Another input is recorded.
        let mut call = call;
        assert!(
            update(&mut call, &json!({"toolCallId": "1", "rawInput": {"text": long.replace('x', "y")}}))
                .len()
                > 100_000
        );
    }

    #[test]
    fn the_digest_of_a_secret_is_not_recorded() {
        let mut call = Call::default();
        let input = json!({"password": "hunter2 or so", "text": "x".repeat(10_000)});
        let entry = update(&mut call, &json!({"toolCallId": "1", "kind": "edit", "rawInput": input}));
        assert!(entry.len() > 10_000);
        // The entry needs the secret, to remove it from other texts.
        assert!(update(&mut call, &json!({"toolCallId": "1"})).len() > 10_000);
        for _ in 0..MAX_SECRET_ENTRIES {
            update(&mut call, &json!({"toolCallId": "1"}));
        }
        assert_eq!(update(&mut call, &json!({"toolCallId": "1"})), r#"{"$unchanged":true,"sha256":null}"#);
    }

    #[test]
    fn short_inputs_are_recorded_in_each_entry() {
        let mut call = Call::default();
        let input = json!({"path": "/w/a"});
        for _ in 0..100 {
            let entry = update(&mut call, &json!({"toolCallId": "1", "kind": "edit", "rawInput": input}));
            assert_eq!(entry, input.to_string());
        }
    }
}
