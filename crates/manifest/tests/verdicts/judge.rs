//! Applies the official schemas with an independent implementation.

use std::collections::HashMap;
use std::path::Path;

use jsonschema::Validator;
use narrows_manifest::ManifestKind;
use serde_json::{Value, json};

pub(crate) struct Judge {
    validators: HashMap<ManifestKind, Validator>,
    /// Every key and every word in a schema, for mutations.
    pub(crate) words: HashMap<ManifestKind, Vec<String>>,
}

impl Judge {
    pub(crate) fn new(folder: &Path) -> Self {
        let read = |name: &str| -> Value {
            let path = folder.join("schemas").join(format!("{name}.schema.json"));
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
        };
        let mut registry = jsonschema::Registry::new();
        for name in ["aip-29.CLI", "aip-35.STORAGE", "aip-38.POLICY", "aip-7.GOVERNANCE", "aip-17.RUNNER"] {
            let schema = read(name);
            let id = schema["$id"].as_str().unwrap().to_owned();
            registry = registry.add(id, schema).unwrap();
        }
        let registry = registry.prepare().unwrap();
        let schema_of = |kind: ManifestKind| match kind {
            ManifestKind::Acp => read("aip-44.ACP"),
            ManifestKind::Operator => read("aip-9.OPERATOR"),
            ManifestKind::Sandbox => read("aip-36.SANDBOX"),
            ManifestKind::AgentCli => read("aip-45.AGENT-CLI"),
            ManifestKind::Governance => {
                json!({"$ref": "https://agentproto.sh/schemas/aip-7/GOVERNANCE.schema.json#/$defs/workspace"})
            }
            ManifestKind::Policy => {
                json!({"$ref": "https://agentproto.sh/schemas/aip-7/GOVERNANCE.schema.json#/$defs/policy"})
            }
            ManifestKind::Runner => {
                json!({"$ref": "https://agentproto.sh/schemas/aip-17/RUNNER.schema.json#/$defs/runner"})
            }
        };
        Self::by(schema_of, &|schema| jsonschema::options().with_registry(&registry).build(schema).unwrap())
    }

    /// Returns a judge with the schemas that Narrows prints.
    pub(crate) fn of_ours() -> Self {
        Self::by(narrows_manifest::schema, &|schema| jsonschema::options().build(schema).unwrap())
    }

    fn by(schema_of: impl Fn(ManifestKind) -> Value, build: &dyn Fn(&Value) -> Validator) -> Self {
        let mut validators = HashMap::new();
        let mut words = HashMap::new();
        for kind in ManifestKind::ALL {
            let schema = schema_of(kind);
            validators.insert(kind, build(&schema));
            let mut found = Vec::new();
            collect(&narrows_manifest::schema(kind), &mut found);
            collect(&schema, &mut found);
            found.sort();
            found.dedup();
            words.insert(kind, found);
        }
        Self { validators, words }
    }

    pub(crate) fn accepts(&self, kind: ManifestKind, value: &Value) -> bool {
        self.validators[&kind].is_valid(value)
    }

    pub(crate) fn complaints(&self, kind: ManifestKind, value: &Value) -> Vec<String> {
        self.validators[&kind]
            .iter_errors(value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect()
    }
}

fn collect(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Object(properties)) = map.get("properties") {
                found.extend(properties.keys().cloned());
            }
            for words in [map.get("enum"), map.get("required")].into_iter().flatten() {
                found.extend(
                    words.as_array().into_iter().flatten().filter_map(|word| word.as_str().map(Into::into)),
                );
            }
            map.values().for_each(|value| collect(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
        _ => {}
    }
}

/// Returns the front matter of an example. The only YAML reader here is that of Narrows, so it also reads
/// what the official schema judges.
pub(crate) fn front_matter(bytes: &[u8]) -> Value {
    narrows_manifest::front_matter(bytes).expect("an example has front matter")
}
