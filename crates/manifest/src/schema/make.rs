//! Generates schemas from Rust types, without nulls, and with enumerations as plain lists.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::kind::ManifestKind;
use crate::types::acp::Acp;
use crate::types::agent_cli::AgentCli;
use crate::types::governance::Governance;
use crate::types::operator::Operator;
use crate::types::policy::Policy;
use crate::types::runner::Runner;
use crate::types::sandbox::Sandbox;

/// Returns the JSON schema of a manifest's front matter.
pub fn schema(kind: ManifestKind) -> Value {
    match kind {
        ManifestKind::Acp => made::<Acp>(kind),
        ManifestKind::Operator => made::<Operator>(kind),
        ManifestKind::Governance => made::<Governance>(kind),
        ManifestKind::Policy => made::<Policy>(kind),
        ManifestKind::Sandbox => made::<Sandbox>(kind),
        ManifestKind::Runner => made::<Runner>(kind),
        ManifestKind::AgentCli => made::<AgentCli>(kind),
    }
}

fn made<T: JsonSchema>(kind: ManifestKind) -> Value {
    let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(plain));
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".into(), json!(kind.file_name()));
    schema.to_value()
}

/// Removes the parts of a schema that matter only to Rust.
fn plain(schema: &mut Schema) {
    let Some(map) = schema.as_object_mut() else { return };
    without_null(map);
    enumeration(map);
    // The default of a map only repeats the defaults of its keys, so it is left out.
    if map.get("default").is_some_and(|value| !value.is_boolean() && !value.is_string() && !value.is_number())
    {
        map.remove("default");
    }
    if map
        .get("format")
        .and_then(Value::as_str)
        .is_some_and(|format| format.contains("int") || format == "double")
    {
        map.remove("format");
    }
    // Authors of manifests need not know the bounds of machine types.
    for bound in ["minimum", "maximum"] {
        if map.get(bound).and_then(Value::as_u64) == Some(u64::from(u8::MAX)) {
            map.remove(bound);
        }
    }
}

/// Removes `null` from the values of an optional key: an author leaves the key out instead.
fn without_null(map: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = map.get_mut("type") {
        types.retain(|name| name != "null");
        let one = if let [one] = types.as_slice() { Some(one.clone()) } else { None };
        if let Some(one) = one {
            map.insert("type".into(), one);
        }
    }
    let Some(Value::Array(options)) = map.get_mut("anyOf") else { return };
    options.retain(|option| option.get("type").and_then(Value::as_str) != Some("null"));
    if options.len() == 1
        && let Some(Value::Array(mut options)) = map.remove("anyOf")
        && let Some(Value::Object(only)) = options.pop()
    {
        for (key, value) in only {
            // The description of a key is more specific than the description of its type.
            map.entry(key).or_insert(value);
        }
    }
}

/// Changes a choice between constant words into a list of words.
fn enumeration(map: &mut Map<String, Value>) {
    let Some(Value::Array(options)) = map.get("oneOf") else { return };
    let words: Option<Vec<Value>> = options.iter().map(|option| option.get("const").cloned()).collect();
    if let Some(words) = words {
        map.remove("oneOf");
        map.insert("type".into(), json!("string"));
        map.insert("enum".into(), Value::Array(words));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(value: &Value, visit: &mut impl FnMut(&Map<String, Value>)) {
        match value {
            Value::Object(map) => {
                visit(map);
                map.values().for_each(|value| walk(value, visit));
            }
            Value::Array(list) => list.iter().for_each(|value| walk(value, visit)),
            _ => {}
        }
    }

    #[test]
    fn schemas_are_plain_and_use_only_what_the_checker_knows() {
        const KNOWN: &[&str] = &[
            "$schema",
            "$defs",
            "$ref",
            "title",
            "description",
            "default",
            "type",
            "enum",
            "const",
            "properties",
            "required",
            "additionalProperties",
            "items",
            "minItems",
            "uniqueItems",
            "minLength",
            "maxLength",
            "pattern",
            "minimum",
            "maximum",
            "anyOf",
            "oneOf",
            "allOf",
            "if",
            "then",
        ];
        for kind in ManifestKind::ALL {
            let schema = schema(kind);
            walk(&schema, &mut |map| {
                assert_ne!(map.get("type"), Some(&json!("null")), "{kind}");
                assert!(!map.get("type").is_some_and(Value::is_array), "{kind}: {map:?}");
                if map.contains_key("type") {
                    let stranger = map.keys().find(|key| !KNOWN.contains(&key.as_str()));
                    // The members below `properties` are property names, one of which can be `type`.
                    let names = map["type"].is_object();
                    assert!(names || stranger.is_none(), "{kind}: {stranger:?}");
                }
                if let Some(Value::String(pattern)) = map.get("pattern") {
                    assert!(regex::Regex::new(pattern).is_ok(), "{pattern}");
                    assert!(pattern.starts_with('^'), "{pattern}");
                }
            });
            assert_eq!(schema["title"], kind.file_name());
        }
    }
}
