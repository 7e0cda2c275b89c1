//! Facts from a gate about an event. Creating them is faster than creating a JSON object.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::jcs;

pub(crate) const AIP44: &str = "aip44";

/// Initial capacity of the list. Most events have fewer facts.
const TYPICAL_FACTS: usize = 12;

/// One value under `metadata.aip44`.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    Text(Cow<'static, str>),
    /// A number that every JSON reader represents exactly.
    Number(u32),
    Value(Box<Value>),
    /// A value with texts that the peer wrote or that were made of them. The secrets of the event's input and
    /// output are removed from it. They are not removed from other facts, which the peer must not be able to
    /// erase.
    Peer(Box<Value>),
}

impl Fact {
    /// Creates a fact with texts of the peer.
    pub fn peer(value: impl Into<Value>) -> Self {
        Self::Peer(Box::new(value.into()))
    }

    /// Converts the fact to JSON.
    pub fn into_value(self) -> Value {
        match self {
            Self::Text(text) => Value::String(text.into_owned()),
            Self::Number(number) => number.into(),
            Self::Value(value) | Self::Peer(value) => *value,
        }
    }
}

impl From<&'static str> for Fact {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Fact {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u8> for Fact {
    fn from(number: u8) -> Self {
        Self::Number(number.into())
    }
}

impl From<Value> for Fact {
    fn from(value: Value) -> Self {
        Self::Value(value.into())
    }
}

/// Facts of an event by name, logged in `metadata.aip44`. Inserting a name again replaces its fact.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts(
    /// Names and facts in the order in which they are written.
    Vec<(&'static str, Fact)>,
);

impl Facts {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns `true` if there are no facts.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets a fact.
    pub fn insert(&mut self, name: &'static str, fact: impl Into<Fact>) {
        match self.0.binary_search_by(|(other, _)| jcs::by_utf16(other, name)) {
            Ok(at) => self.0[at].1 = fact.into(),
            Err(at) => self.0.insert(at, (name, fact.into())),
        }
    }

    /// Returns the fact with this name.
    pub fn get(&self, name: &str) -> Option<&Fact> {
        self.iter().find(|(other, _)| *other == name).map(|(_, fact)| fact)
    }

    /// Iterates over the facts in the order in which they are written.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Fact)> {
        self.0.iter().map(|(name, fact)| (*name, fact))
    }

    /// Iterates over the values with texts of the peer.
    pub(crate) fn peer_values(&mut self) -> impl Iterator<Item = &mut Value> {
        self.0.iter_mut().filter_map(|(_, fact)| match fact {
            Fact::Peer(value) => Some(&mut **value),
            _ => None,
        })
    }

    /// Adds the facts to `metadata`, beside its other members.
    pub(crate) fn add_to(&mut self, metadata: &mut Map<String, Value>) {
        let told = metadata.entry(AIP44).or_insert_with(|| Value::Object(Map::new()));
        if !told.is_object() {
            *told = Value::Object(Map::new());
        }
        if let Value::Object(told) = told {
            told.extend(self.0.drain(..).map(|(name, fact)| (name.to_owned(), fact.into_value())));
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) -> Result<(), jcs::TooDeep> {
        out.push(b'{');
        for (at, (name, fact)) in self.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            jcs::write_text(name, out);
            out.push(b':');
            match fact {
                Fact::Text(text) => jcs::write_text(text, out),
                Fact::Number(number) => jcs::write_integer((*number).into(), out),
                // A fact that could be too deep is moved to the metadata before, where depths are limited.
                Fact::Value(value) | Fact::Peer(value) => jcs::write(value, out)?,
            }
        }
        out.push(b'}');
        Ok(())
    }
}

impl<const N: usize> From<[(&'static str, Option<Fact>); N]> for Facts {
    fn from(facts: [(&'static str, Option<Fact>); N]) -> Self {
        let mut all = Self(Vec::with_capacity(N.max(TYPICAL_FACTS)));
        for (name, fact) in facts {
            if let Some(fact) = fact {
                all.insert(name, fact);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::draft::Draft;
    use crate::entry::Algorithm;
    use crate::event::{Actor, Event, Subject};
    use crate::redact::Redaction;
    use crate::secret::Secret;

    #[test]
    fn facts_are_found_by_name_and_the_last_counts() {
        let mut facts = Facts::new();
        facts.insert("b", "1".to_owned());
        facts.insert("a", json!(1));
        facts.insert("b", "2");
        assert_eq!(facts.get("b"), Some(&Fact::from("2")));
        assert_eq!(facts.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(facts.get("c"), None);
    }

    fn line(event: Event, redaction: &Redaction) -> String {
        let draft = Draft::new(event, redaction, 1 << 20).expect("a draft");
        let mut line = Vec::new();
        draft.write_line(&Default::default(), "2026-11-15T18:00:00.000Z", Algorithm::Sha256, &mut line);
        String::from_utf8(line).expect("UTF-8")
    }

    fn any_fact() -> impl Strategy<Value = Fact> {
        let text = prop_oneof![
            "\\PC{0,12}",
            "[a-z]{0,8}[ :=][a-z]{0,20}",
            Just("Bearer abcdefghijklmnop".to_owned()),
            Just("password=hunter2hunter2".to_owned()),
            Just("a canary".to_owned()),
        ];
        prop_oneof![
            text.clone().prop_map(Fact::from),
            text.clone().prop_map(|text| Fact::from(json!(text))),
            text.clone().prop_map(Fact::peer),
            text.prop_map(|text| Fact::from(json!({"refused": [text]}))),
            any::<u32>().prop_map(Fact::Number),
            any::<i64>().prop_map(|number| Fact::from(json!(number))),
            any::<f64>().prop_map(|number| Fact::from(json!(number))),
            prop::bool::ANY.prop_map(|so| Fact::from(json!(so))),
            Just(Fact::from(Value::Null)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn facts_are_written_like_metadata(
            facts in prop::collection::vec(
                (prop::sample::select(vec![
                    "operator", "kind", "tool", "toolCallId", "key", "name", "value", "sha256", "$redacted", "apiToken",
                    "é", "\u{fb33}", "😀", "canary", "",
                ]), any_fact()),
                0..8,
            ),
            beside in prop::option::of(prop_oneof![Just(json!({"kind": "x", "more": 1})), Just(json!(7))]),
            elsewhere in any::<bool>(),
        ) {
            let mut event = Event {
                actor: Actor { id: "operator:notes".into(), role: None },
                action: "tool.call".into(),
                subject: Subject { kind: "tool".into(), reference: None, path: None },
                ..Event::default()
            };
            event.metadata.extend(beside.map(|beside| (AIP44.to_owned(), beside)));
            if elsewhere {
                event.metadata.insert("note".to_owned(), json!("so"));
            }
            let mut plain = event.clone();
            for (name, fact) in facts {
                event.facts.insert(name, fact.clone());
                let told = plain.metadata.entry(AIP44).or_insert_with(|| json!({}));
                if !told.is_object() {
                    *told = json!({});
                }
                told[name] = fact.into_value();
            }
            for redaction in [Redaction::default(), Redaction::default().known(Secret::new("canary")).name("tool")] {
                prop_assert_eq!(line(event.clone(), &redaction), line(plain.clone(), &redaction));
            }
        }
    }
}
