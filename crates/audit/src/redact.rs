//! Removes secrets from an event before any other code sees the event. Secrets are recognized by name, by
//! form, and by value.
//!
//! Only the secret part of a text is removed. The author of a text must not be able to hide the rest of the
//! text from readers of the log.

mod argument;
mod decode;
mod homoglyph;
mod layout;
mod line;
mod link;
mod markup;
mod name;
mod object;
mod pair;
mod private_key;
mod program;
mod removed;
mod token;
mod token_patterns;
mod value;
mod words;

use std::ops::Range;

use serde_json::{Map, Value};

use crate::event::Event;
use crate::facts::{AIP44, Fact, Facts};
use crate::secret::{Secret, mark, reason};

use argument::ArgumentReader;
use name::{MAX_NAME_BYTES, NamedValueKind, SecretNames};
use object::Label;
use program::SecretPart;
use token_patterns::{ByteClasses, Tokens};

const PLACEHOLDER: &str = "[redacted]";

/// Member that contains a digest of the members beside it.
const DIGEST_KEY: &str = "sha256";

/// Maximum number of further passes over a text that contains a secret.
const ROUNDS: usize = 8;

/// Rules that define secrets. The default knows common names and tokens; a caller can add others.
#[derive(Clone, Debug)]
pub struct Redaction {
    names: SecretNames,
    tokens: Tokens,
    known: Vec<Secret>,
    /// For each byte, which forms of secrets can contain the byte.
    byte_classes: ByteClasses,
    /// Length of the shortest text, in bytes, that can be a secret by its form.
    shortest: usize,
    /// Maximum number of further passes over a text that contains a secret. Removing one secret may make
    /// another part look like a secret, but rarely twice.
    rounds: usize,
}

impl Default for Redaction {
    fn default() -> Self {
        let mut redaction = Self {
            names: SecretNames::default(),
            tokens: Tokens::default(),
            known: Vec::new(),
            byte_classes: ByteClasses::default(),
            shortest: token_patterns::MIN_SECRET_TEXT_BYTES,
            rounds: ROUNDS,
        };
        for start in token_patterns::SCHEMES.iter().flat_map(|scheme| scheme.bytes().next()) {
            redaction.byte_classes.begin(start);
            redaction.byte_classes.begin(start.to_ascii_uppercase());
        }
        for start in token::SHAPE_STARTS.bytes().chain(private_key::ENCODED_FIRST.bytes()) {
            redaction.byte_classes.begin(start);
        }
        for (start, least) in token::TOKENS {
            redaction.begin(start, *least);
        }
        redaction
    }
}

impl Redaction {
    /// Adds the ending of a name: the value of every such name is a secret. Case and separators are ignored.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.names.add(name);
        self
    }

    /// Adds a token format: the prefix `start`, followed by at least `least` characters.
    #[must_use]
    pub fn token(mut self, start: &str, least: usize) -> Self {
        if self.begin(start, least) {
            self.tokens.add(start, least);
        }
        self
    }

    /// Makes the search look for tokens with this prefix. Returns `false` if the prefix is empty.
    fn begin(&mut self, start: &str, least: usize) -> bool {
        let first = start.bytes().next();
        if let Some(first) = first {
            self.byte_classes.begin(first);
            self.shortest = self.shortest.min(start.len() + least);
        }
        first.is_some()
    }

    /// Adds a known secret value.
    #[must_use]
    pub fn known(mut self, secret: Secret) -> Self {
        // An empty secret would match everywhere.
        if !secret.expose().is_empty() {
            self.known.push(secret);
        }
        self
    }

    /// Limits the search to one pass. That is enough for callers that only ask if a text contains a secret.
    #[must_use]
    pub fn for_search(mut self) -> Self {
        self.rounds = 0;
        self
    }

    /// Returns `true` if a text contains a secret.
    pub fn is_secret(&self, text: &str) -> bool {
        self.find(text).is_some()
    }

    /// Returns `true` if a value contains a secret: within a text, or as a member whose name marks a secret.
    pub fn is_in(&self, mut value: Value) -> bool {
        self.value(&mut value)
    }

    /// Redacts an event. The mark of a removed text is an object, and one level deeper than the text. So the
    /// values of the event may be nested one level less deeply than the format allows.
    #[cfg(test)]
    pub(crate) fn clean(&self, event: &mut Event) {
        self.clean_values(event);
        self.clean_texts(event);
    }

    pub(crate) fn clean_values(&self, event: &mut Event) {
        for value in [&mut event.input, &mut event.output].into_iter().flatten() {
            self.value(value);
        }
    }

    pub(crate) fn clean_texts(&self, event: &mut Event) {
        let subject = &mut event.subject;
        if self.is_secret(&event.action) {
            "redacted".clone_into(&mut event.action);
        }
        let texts = [&mut event.actor.id, &mut subject.kind];
        let optional = [&mut event.actor.role, &mut subject.reference, &mut subject.path];
        let texts = texts.into_iter().chain(optional.into_iter().filter_map(Option::as_mut));
        for text in texts.chain(&mut event.signatures) {
            if let Some(hidden) = self.hide(text) {
                *text = hidden.text;
            }
        }
        self.members(&mut event.metadata);
    }

    /// Returns `true` if all facts can be written without redaction.
    pub(crate) fn leaves(&self, facts: &Facts) -> bool {
        let leaves_name = |name: &str| !self.is_name(name) && !self.is_secret(name);
        let leaves = |(name, fact): (&str, &Fact)| {
            let leaves_fact = match fact {
                Fact::Text(text) => !self.is_secret(text),
                Fact::Number(_) => true,
                Fact::Peer(value) => value.as_str().is_some_and(|text| !self.is_secret(text)),
                // A value is redacted as a part of the metadata.
                Fact::Value(_) => false,
            };
            leaves_fact && leaves_name(name) && name != "$redacted" && !pair::is_manifest_data(name)
        };
        let has_labels = facts.iter().any(|(name, _)| object::is_label_key(name))
            && facts.iter().any(|(name, _)| object::is_value_key(name));
        !has_labels && leaves_name(AIP44) && facts.iter().all(leaves)
    }

    /// Redacts a value. Returns `true` if a part of the value is removed, by this call or an earlier one.
    fn value(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => {
                let Some(hidden) = self.hide(text) else { return false };
                *value = hidden.value();
                true
            }
            Value::Array(items) => self.items(items, ArgumentReader::default()),
            Value::Object(members) => self.members(members),
            _ => false,
        }
    }

    fn items(&self, items: &mut [Value], mut reader: ArgumentReader) -> bool {
        if self.pair(items) {
            return true;
        }
        reader.set_secret_flag(items.iter().any(|item| item == argument::SECRET_FLAG));
        let mut is_hidden = false;
        let mut is_header = false;
        for item in items {
            if !item.is_string() {
                (is_header, reader) = (false, reader.skip());
            }
            let hidden = item.as_str().filter(|text| !text.is_empty()).and_then(|text| {
                if std::mem::take(&mut is_header) {
                    return Some(mark(reason::KEY));
                }
                is_header = self.is_header(text);
                let (begin, takes) = reader.step(text, |name| self.names.classify(name))?;
                // The option before names a secret, and the whole argument is its value. So even an ordinary
                // word is removed.
                let takes = if takes == SecretPart::Named { SecretPart::Value } else { takes };
                let begin = begin + argument::secret_of(text.as_bytes().get(begin..)?, takes)?;
                let shown = text.get(..begin).filter(|_| begin < text.len())?;
                let is_gone = &text[begin..] == PLACEHOLDER;
                let partly = || Hidden::from(self, &format!("{shown}{PLACEHOLDER}"), reason::TOKEN).value();
                (!is_gone).then(|| if shown.is_empty() { mark(reason::KEY) } else { partly() })
            });
            is_hidden |= match hidden {
                Some(hidden) => {
                    *item = hidden;
                    true
                }
                None => self.value(item),
            };
        }
        is_hidden
    }

    /// Redacts a list of a name and its value: `["X-Api-Key", "…"]`.
    fn pair(&self, items: &mut [Value]) -> bool {
        let [Value::String(name), value] = items else { return false };
        let is_text = value.as_str().is_some_and(|text| {
            token_patterns::can_be_value(text.as_bytes(), token_patterns::MIN_OPTION_BYTES)
        });
        let is_secret = is_text && !name.starts_with('-') && self.is_name(name::end_of(name));
        if is_secret {
            *value = mark(reason::KEY);
        }
        is_secret
    }

    /// Returns `true` if this is the name of a header with a secret value: `X-Api-Key`.
    fn is_header(&self, text: &str) -> bool {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let is_one =
            text.contains('-') || matches!(text, "Authorization" | "Cookie" | "authorization" | "cookie");
        is_one
            && text.len() <= MAX_NAME_BYTES
            && !text.starts_with('-')
            && text.bytes().all(is_letter)
            && self.is_name(text)
    }

    /// Redacts the text in an existing mark again. The result is a text, so that marks are not nested.
    fn mark_text(&self, members: &mut Map<String, Value>) -> bool {
        let is_mark = member(members, "$redacted") == Some(&Value::Bool(true))
            && members.keys().all(|key| matches!(&**key, "$redacted" | "reason" | "text"));
        match members.get_mut("text").filter(|_| is_mark) {
            Some(Value::String(text)) => {
                if let Some(hidden) = self.hide(text) {
                    *text = hidden.text;
                }
                true
            }
            _ => false,
        }
    }

    /// Returns the strongest label among the members of an object. A label is a member that says that a value
    /// beside it is a secret.
    fn label(&self, members: &Map<String, Value>) -> Option<Label> {
        if !members.keys().any(|key| object::is_value_key(key)) {
            return None;
        }
        let label = |(key, value): (&String, &Value)| {
            Label::new(key, value.as_str()?, |name| self.names.classify(name))
        };
        members.iter().filter_map(label).max()
    }

    fn members(&self, members: &mut Map<String, Value>) -> bool {
        if self.mark_text(members) {
            return true;
        }
        let mut is_hidden = member(members, "$redacted") == Some(&Value::Bool(true));
        // Member names that contain a secret themselves. Usually there are none.
        let speaking: Vec<String> = members.keys().filter(|key| self.is_secret(key)).cloned().collect();
        for (index, key) in speaking.into_iter().enumerate() {
            if let (Some(value), Some(hidden)) = (members.remove(&key), self.hide(&key)) {
                members.insert(format!("{} {index}", hidden.text), value);
                is_hidden = true;
            }
        }
        // Lists of headers and variables have members of the form `{"name": "Authorization", "value": "…"}`.
        let label = self.label(members);
        let program =
            ["command", "program", "cmd", "bin"].iter().find_map(|key| member(members, key)?.as_str());
        let mut reader = program.map(ArgumentReader::new);
        let is_manifest = member(members, "kind").is_some_and(|kind| kind == "Secret");
        for (key, value) in members.iter_mut() {
            if is_manifest && pair::is_manifest_data(key) {
                is_hidden |= hide_all(value);
                continue;
            }
            let label = label
                .and_then(|label| object::label_of(key, label))
                .filter(|label| value.as_str().map_or(*label == Label::Secret, |text| label.accepts(text)));
            let named =
                if label.is_some() { Some(NamedValueKind::Secret) } else { self.names.classify_key(key) };
            is_hidden |= match (value, named) {
                (Value::Null | Value::Bool(_), _) => false,
                (Value::Object(members), _) if is_mark(members) => true,
                (value, Some(named)) if value.as_str().is_some_and(|text| !named.accepts(text)) => {
                    self.value(value)
                }
                (value, Some(NamedValueKind::TokenLike)) if !value.is_string() => self.value(value),
                (
                    value,
                    Some(
                        NamedValueKind::Secret
                        | NamedValueKind::UnlessPath
                        | NamedValueKind::UnlessPattern
                        | NamedValueKind::TokenLike,
                    ),
                ) => {
                    *value = mark(reason::KEY);
                    true
                }
                (value, Some(NamedValueKind::Texts)) => self.texts(value),
                (value @ Value::String(_), Some(NamedValueKind::Doubtful))
                    if value.as_str().is_some_and(|text| {
                        token_patterns::can_be_value(text.as_bytes(), token_patterns::MIN_OPTION_BYTES)
                    }) =>
                {
                    *value = mark(reason::KEY);
                    true
                }
                (value, Some(NamedValueKind::Doubtful)) => self.value(value),
                (Value::Array(items), None) if key.starts_with("arg") => {
                    self.items(items, reader.take().unwrap_or_default())
                }
                (value, None) => self.value(value),
            };
        }
        // A digest of the complete value would allow to verify guesses of the removed part.
        if is_hidden && let Some(digest) = members.get_mut(DIGEST_KEY).filter(|digest| digest.is_string()) {
            *digest = mark(reason::DIGEST);
        }
        is_hidden
    }

    /// Redacts all texts of a value that may be generated tokens. A number cannot be a token.
    fn texts(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) if text.len() >= 8 && !text.contains(char::is_whitespace) => {
                *value = mark(reason::KEY);
                true
            }
            Value::Array(items) => items.iter_mut().fold(false, |hidden, item| self.texts(item) | hidden),
            Value::Object(members) if is_mark(members) => true,
            Value::Object(members) => {
                members.values_mut().fold(false, |hidden, item| self.texts(item) | hidden)
            }
            other => self.value(other),
        }
    }

    fn is_name(&self, name: &str) -> bool {
        self.names.classify(name).is_some_and(NamedValueKind::is_secret)
    }

    fn hide(&self, text: &str) -> Option<Hidden> {
        self.find(text).map(|found| Hidden::from(self, &found.text(text), found.reason))
    }

    fn find(&self, text: &str) -> Option<Found> {
        let mut places = self.known_places(text);
        let reason = if places.is_empty() { reason::TOKEN } else { reason::KNOWN };
        if text.len() >= self.shortest {
            self.find_laid_out(text, &mut places);
            places.extend(decode::find_decoded(text, |decoded| {
                let mut places = self.known_places(decoded);
                self.find_laid_out(decoded, &mut places);
                places
            }));
        }
        // Placeholders of an earlier redaction are not secrets.
        places.retain(|place| &text[place.clone()] != PLACEHOLDER);
        places.sort_unstable_by_key(|place| place.start);
        (!places.is_empty()).then_some(Found { places, reason })
    }

    fn known_places(&self, text: &str) -> Vec<Range<usize>> {
        let known = self.known.iter().flat_map(|secret| text.match_indices(secret.expose()));
        known.map(|(at, known)| at..at + known.len()).collect()
    }

    /// Finds the secrets of a text, whether they are on one line or span several lines.
    fn find_laid_out(&self, text: &str, places: &mut Vec<Range<usize>>) {
        self.find_plain(text, places);
        places.extend(layout::find_joined(text, |joined, places| self.find_plain(joined, places)));
    }

    /// Finds the secrets of a text without joining its lines. Only searches for forms that the characters of
    /// the text allow.
    fn find_plain(&self, text: &str, places: &mut Vec<Range<usize>>) {
        let named = |name: &str| self.names.classify(name);
        let (signs, has_options) = token_patterns::tokens(text, &self.tokens, &self.byte_classes, places);
        token::azure_secrets(text, places);
        if token_patterns::may_have_private_keys(signs) {
            private_key::private_keys(text, places);
        }
        if token_patterns::may_have_logins(signs) {
            token_patterns::logins(text, places);
        }
        if token_patterns::may_have_paths(signs) {
            link::links(text, places);
        }
        if token_patterns::may_have_colons(signs) {
            link::bot_tokens(text, places);
            link::database_logins(text, places);
            link::pgpass_lines(text, places);
            object::objects(text, named, places);
        }
        if token_patterns::may_have_assignments(signs) {
            token_patterns::assignments(text, named, places);
            pair::secret_manifests(text, places);
        }
        if token_patterns::may_have_arguments(signs) {
            line::lines(text, named, places);
            if has_options || argument::may_be_in(text) {
                argument::arguments(text, named, places);
            }
        }
    }
}

struct Found {
    places: Vec<Range<usize>>,
    reason: &'static str,
}

impl Found {
    fn text(&self, text: &str) -> String {
        let (mut shown, mut done) = (String::with_capacity(text.len()), 0);
        for (index, place) in self.places.iter().enumerate() {
            if index == 0 || place.start > done {
                shown.push_str(&text[done..place.start]);
                shown.push_str(PLACEHOLDER);
            }
            done = done.max(place.end);
        }
        shown.push_str(&text[done..]);
        shown
    }
}

struct Hidden {
    text: String,
    reason: &'static str,
}

impl Hidden {
    /// Redacts a text until nothing changes, so that another redaction does not change the result.
    fn from(redaction: &Redaction, text: &str, reason: &'static str) -> Self {
        let mut text = text.to_owned();
        for _ in 0..redaction.rounds {
            let Some(found) = redaction.find(&text) else { break };
            text = found.text(&text);
        }
        Self { text, reason }
    }

    /// Returns the mark that replaces the text: an object, which a reader can tell from a text that contains
    /// the placeholder.
    fn value(self) -> Value {
        let mut mark = mark(self.reason);
        if self.text != PLACEHOLDER {
            mark["text"] = Value::String(self.text);
        }
        mark
    }
}

/// Hides all texts and numbers of a value. Returns `true` if the value contains any.
fn hide_all(value: &mut Value) -> bool {
    match value {
        Value::Null | Value::Bool(_) => false,
        Value::Array(items) => items.iter_mut().fold(false, |hidden, item| hide_all(item) | hidden),
        Value::Object(members) if is_mark(members) => true,
        Value::Object(members) => members.values_mut().fold(false, |hidden, item| hide_all(item) | hidden),
        _ => {
            *value = mark(reason::KEY);
            true
        }
    }
}

/// Returns a member of an object. Most objects are small, so comparing all names is faster than hashing one.
fn member<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    members.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn is_mark(members: &Map<String, Value>) -> bool {
    member(members, "$redacted") == Some(&Value::Bool(true))
        && members.keys().all(|key| key == "$redacted" || key == "reason")
}

#[cfg(test)]
mod tests;
