//! Schemas of the manifests, which are generated from Rust types, and a checker for files.

mod check;
mod make;
mod messages;

pub use make::schema;

use std::collections::HashMap;
use std::sync::OnceLock;

use regex::Regex;
use serde_json::Value;

use crate::finding::Draft;
use crate::kind::ManifestKind;
use crate::yaml::Node;

pub(crate) struct Checker {
    root: Value,
    patterns: HashMap<String, Regex>,
}

impl Checker {
    fn new(root: Value) -> Self {
        let mut patterns = HashMap::new();
        collect(&root, &mut patterns);
        Self { root, patterns }
    }

    pub(crate) fn for_kind(kind: ManifestKind) -> &'static Self {
        static CHECKERS: [OnceLock<Checker>; ManifestKind::ALL.len()] =
            [const { OnceLock::new() }; ManifestKind::ALL.len()];
        CHECKERS[kind as usize].get_or_init(|| Self::new(schema(kind)))
    }

    /// Returns all violations of the schema in `node`, in no particular order. `path` is the key path of
    /// `node` in the file.
    pub(crate) fn check(&self, node: &Node, path: &str) -> Vec<Draft> {
        check::check(self, node, path)
    }

    pub(crate) fn keys(&self, path: &[&str]) -> Vec<&str> {
        let below =
            |schema, key: &&str| self.resolve(self.resolve(schema).get("properties")?.get(*key)?).into();
        let Some(schema) = path.iter().try_fold(&self.root, below) else { return Vec::new() };
        let properties = self.resolve(schema).get("properties").and_then(Value::as_object);
        properties.map(|properties| properties.keys().map(String::as_str).collect()).unwrap_or_default()
    }

    /// Follows a schema that is a reference. Any other schema is returned unchanged.
    fn resolve<'a>(&'a self, mut schema: &'a Value) -> &'a Value {
        // The generated schemas have no cyclic references, so the loop ends.
        while let Some(name) = schema.get("$ref").and_then(Value::as_str) {
            let name = name.strip_prefix("#/$defs/").unwrap_or(name);
            match self.root.get("$defs").and_then(|definitions| definitions.get(name)) {
                Some(found) => schema = found,
                None => return &Value::Null,
            }
        }
        schema
    }

    fn fits(&self, pattern: &str, text: &str) -> bool {
        // An invalid pattern would match no text. A test makes sure that all patterns are valid.
        self.patterns.get(pattern).is_some_and(|regex| regex.is_match(text))
    }
}

fn collect(schema: &Value, patterns: &mut HashMap<String, Regex>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(pattern)) = map.get("pattern")
                && let Ok(regex) = Regex::new(pattern)
            {
                patterns.insert(pattern.clone(), regex);
            }
            map.values().for_each(|value| collect(value, patterns));
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, patterns)),
        _ => {}
    }
}
