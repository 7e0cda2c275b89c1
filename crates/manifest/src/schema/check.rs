//! Checks a tree of values against a schema, and reports every violation with its position.
//!
//! Only those keywords are supported that the generated schemas use. A test compares the two sets.

use serde_json::Value;

use super::Checker;
use super::messages;
use crate::finding::Draft;
use crate::yaml::{Content, Node, SourcePos};

/// A value and its context, for findings.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) node: &'a Node,
    /// Position of findings about the whole value: the position of its key, if the value has a key.
    pub(super) at: SourcePos,
    pub(super) path: &'a str,
    pub(super) about: Option<&'a str>,
}

pub(super) fn check(checker: &Checker, node: &Node, path: &str) -> Vec<Draft> {
    let mut found = Vec::new();
    let walk = Walk { checker, deep: 0 };
    walk.value(&checker.root, Spot { node, at: node.at, path, about: None }, &mut found);
    found
}

#[derive(Clone, Copy)]
struct Walk<'a> {
    checker: &'a Checker,
    /// Nesting depth of schemas. A limit prevents endless recursion, and the generated schemas never reach
    /// the limit.
    deep: usize,
}

impl Walk<'_> {
    fn value(self, schema: &Value, spot: Spot<'_>, found: &mut Vec<Draft>) {
        const MAX_DEPTH: usize = 256;
        let about = schema.get("description").and_then(Value::as_str).or(spot.about);
        let spot = Spot { about, ..spot };
        let schema = self.checker.resolve(schema);
        let walk = Self { deep: self.deep + 1, ..self };
        if schema == &Value::Bool(false) || walk.deep > MAX_DEPTH {
            found.push(messages::form(spot));
            return;
        }
        let Some(keywords) = schema.as_object() else { return };
        let spot = Spot { about: spot.about.or_else(|| keywords.get("description")?.as_str()), ..spot };
        if let Some(wanted) = keywords.get("type").and_then(Value::as_str)
            && !has_type(wanted, spot.node)
        {
            let fits = |text: &str| {
                let pattern = keywords.get("pattern").and_then(Value::as_str);
                pattern.is_none_or(|pattern| self.checker.fits(pattern, text))
            };
            found.push(messages::wrong_type(wanted, keywords.get("enum"), &fits, spot));
            return;
        }
        if let Some(Value::Array(allowed)) = keywords.get("enum")
            && !allowed.iter().any(|value| equals_json(value, spot.node))
        {
            found.push(messages::not_one_of(allowed, spot));
        }
        if let Some(wanted) = keywords.get("const")
            && !equals_json(wanted, spot.node)
        {
            found.push(messages::not_one_of(std::slice::from_ref(wanted), spot));
        }
        match &spot.node.content {
            Content::Text(text) => walk.text(schema, text, spot, found),
            Content::Number(..) => number(schema, spot, found),
            Content::List(items) => walk.list(schema, items, spot, found),
            Content::Map(_) => walk.map(schema, spot, found),
            Content::Null(_) | Content::Bool(..) => {}
        }
        walk.combinations(schema, spot, found);
    }

    fn text(self, schema: &Value, text: &str, spot: Spot<'_>, found: &mut Vec<Draft>) {
        let length = text.chars().count() as u64;
        let least = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0);
        let most = schema.get("maxLength").and_then(Value::as_u64).unwrap_or(u64::MAX);
        if length < least || length > most {
            found.push(messages::length(length, least, most, spot));
        } else if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
            && !self.checker.fits(pattern, text)
        {
            found.push(messages::pattern(pattern, spot));
        }
    }

    fn list(self, schema: &Value, items: &[Node], spot: Spot<'_>, found: &mut Vec<Draft>) {
        if let Some(least) = schema.get("minItems").and_then(Value::as_u64)
            && (items.len() as u64) < least
        {
            found.push(messages::too_few(least, spot));
        }
        if schema.get("uniqueItems") == Some(&Value::Bool(true)) {
            let values: Vec<Value> = items.iter().map(Node::to_json).collect();
            for (number, item) in items.iter().enumerate() {
                if let Some(first) = values[..number].iter().position(|value| *value == values[number]) {
                    found.push(messages::twice(first, Spot { node: item, at: item.at, ..spot }));
                }
            }
        }
        let Some(schema) = schema.get("items") else { return };
        for (number, node) in items.iter().enumerate() {
            let path = format!("{}[{number}]", spot.path);
            self.value(schema, Spot { node, at: node.at, path: &path, about: spot.about }, found);
        }
    }

    fn map(self, schema: &Value, spot: Spot<'_>, found: &mut Vec<Draft>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for wanted in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            let Some(key) = wanted.as_str() else { continue };
            if spot.node.get(key).is_none() {
                let about =
                    properties.and_then(|properties| properties.get(key)?.get("description")?.as_str());
                let known = properties.into_iter().flat_map(|map| map.keys());
                found.push(messages::missing(key, about, known.map(String::as_str), spot));
            }
        }
        for (key, node) in spot.node.entries() {
            let path = if spot.path.is_empty() {
                messages::key(&key.text)
            } else {
                format!("{}.{}", spot.path, messages::key(&key.text))
            };
            let below = Spot { node, at: key.at, path: &path, about: None };
            match properties.and_then(|properties| properties.get(&key.text)) {
                Some(schema) => self.value(schema, below, found),
                None => match schema.get("additionalProperties") {
                    Some(Value::Bool(false)) => {
                        let known = properties.into_iter().flat_map(|map| map.keys());
                        found.push(messages::unknown(&key.text, known.map(String::as_str), below));
                    }
                    Some(schema) => self.value(schema, below, found),
                    None => {}
                },
            }
        }
    }

    fn combinations(self, schema: &Value, spot: Spot<'_>, found: &mut Vec<Draft>) {
        let list = |key: &str| schema.get(key).and_then(Value::as_array);
        for schema in list("allOf").into_iter().flatten() {
            self.value(schema, spot, found);
        }
        if let (Some(condition), Some(then)) = (schema.get("if"), schema.get("then"))
            && self.attempt(condition, spot).is_empty()
        {
            self.value(then, spot, found);
        }
        if let Some(options) = list("anyOf").or_else(|| list("oneOf")) {
            let tried: Vec<Vec<Draft>> = options.iter().map(|option| self.attempt(option, spot)).collect();
            let fitting = tried.iter().filter(|found| found.is_empty()).count();
            if fitting == 0 {
                self.nearest(options, tried, spot, found);
            } else if fitting > 1 && schema.get("oneOf").is_some() {
                found.push(messages::several(spot));
            }
        }
    }

    fn attempt(self, schema: &Value, spot: Spot<'_>) -> Vec<Draft> {
        let mut found = Vec::new();
        self.value(schema, spot, &mut found);
        found
    }

    /// Reports that a value fits none of several forms, with the violations of the form that its author
    /// probably meant.
    fn nearest(self, options: &[Value], tried: Vec<Vec<Draft>>, spot: Spot<'_>, found: &mut Vec<Draft>) {
        let resolved: Vec<&Value> = options.iter().map(|option| self.checker.resolve(option)).collect();
        if resolved.iter().all(|option| option.get("type").is_none() && option.get("required").is_some()) {
            found.push(messages::one_of_keys(&resolved, spot));
            return;
        }
        // The text is invalid as a keyword here, but would be valid as an id.
        let takes = |option: &&&Value| {
            let id = option.get("properties").and_then(|properties| properties.get("id"));
            let alone = option.get("required").and_then(Value::as_array).is_some_and(|keys| keys == &["id"]);
            alone && id.is_some_and(|id| self.attempt(id, spot).is_empty())
        };
        if let (Content::Text(text), Some(_)) = (&spot.node.content, resolved.iter().find(takes)) {
            found.push(messages::write_id(text, spot));
            return;
        }
        let shaped = |option: &Value| {
            let option = self.checker.resolve(option);
            option.get("anyOf").is_some()
                || option.get("type").and_then(Value::as_str).is_none_or(|name| has_type(name, spot.node))
        };
        // A key whose value is constant identifies the form that the author meant.
        let tag = resolved.iter().find_map(|option| {
            let properties = option.get("properties")?.as_object()?;
            properties.iter().find(|(_, schema)| schema.get("const").is_some()).map(|(key, _)| key.clone())
        });
        if let (Some(tag), Content::Map(_)) = (tag, &spot.node.content) {
            let wanted = |option: &Value| option.get("properties")?.get(&tag)?.get("const").cloned();
            let words: Vec<Value> = resolved.iter().filter_map(|option| wanted(option)).collect();
            if let Some((key, node)) = spot.node.entry(&tag) {
                let meant = resolved
                    .iter()
                    .position(|option| wanted(option).is_some_and(|word| equals_json(&word, node)));
                match meant.and_then(|number| tried.get(number)) {
                    Some(drafts) => found.extend(drafts.iter().cloned()),
                    None => {
                        let path = format!("{}.{tag}", spot.path);
                        let about = Some("One of the forms of this.");
                        found.push(messages::not_one_of(
                            &words,
                            Spot { node, at: key.at, path: &path, about },
                        ));
                    }
                }
                return;
            }
        }
        let shaped: Vec<bool> = options.iter().map(shaped).collect();
        let candidates =
            tried.into_iter().zip(&shaped).filter(|(_, shaped)| **shaped).map(|(drafts, _)| drafts);
        // A key that a form does not have is a stronger sign against the form than a wrong value of a known
        // key.
        let weight = |drafts: &Vec<Draft>| drafts.iter().map(messages::weight).sum::<usize>();
        match candidates.min_by_key(weight) {
            Some(drafts) => found.extend(drafts),
            None => found.push(messages::form(spot)),
        }
    }
}

fn has_type(wanted: &str, node: &Node) -> bool {
    match (wanted, &node.content) {
        ("integer", Content::Number(Some(number), _)) => !number.is_f64(),
        ("object", Content::Map(_))
        | ("array", Content::List(_))
        | ("string", Content::Text(_))
        | ("boolean", Content::Bool(..))
        | ("null", Content::Null(_))
        | ("number", Content::Number(..)) => true,
        _ => false,
    }
}

fn equals_json(value: &Value, node: &Node) -> bool {
    match (value, &node.content) {
        (Value::String(wanted), Content::Text(text)) => wanted == text,
        (Value::Bool(wanted), Content::Bool(given, _)) => wanted == given,
        _ => *value == node.to_json(),
    }
}

fn number(schema: &Value, spot: Spot<'_>, found: &mut Vec<Draft>) {
    let Content::Number(Some(number), _) = &spot.node.content else { return };
    let Some(value) = number.as_f64() else { return };
    let least = schema.get("minimum").and_then(Value::as_f64);
    let most = schema.get("maximum").and_then(Value::as_f64);
    if least.is_some_and(|least| value < least) || most.is_some_and(|most| value > most) {
        found.push(messages::range(least, most, spot));
    }
}
