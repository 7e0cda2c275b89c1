//! A schema as a list of keys.

use std::collections::BTreeSet;

use serde_json::Value;

pub(super) struct Field {
    /// Path from the top level: `tools[].scope.network`.
    pub(super) key: String,
    pub(super) form: String,
    pub(super) default: String,
    pub(super) meaning: String,
}

/// Returns all keys of a schema, sorted. A part that is used in two places is listed at the first.
pub(super) fn fields(schema: &Value) -> Vec<Field> {
    let mut walk = Walk { root: schema, told: BTreeSet::new(), fields: Vec::new() };
    walk.below(schema, "");
    walk.fields
}

struct Walk<'a> {
    root: &'a Value,
    /// Named parts that are already listed.
    told: BTreeSet<String>,
    fields: Vec<Field>,
}

impl<'a> Walk<'a> {
    fn part(&self, schema: &'a Value) -> (&'a Value, Option<&'a str>) {
        match schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
            Some(name) => (&self.root["$defs"][name], Some(name)),
            None => (schema, None),
        }
    }

    fn below(&mut self, schema: &'a Value, path: &str) {
        let (schema, name) = self.part(schema);
        if let Some(name) = name
            && !self.told.insert(name.to_owned())
        {
            return;
        }
        if let Some(items) = schema.get("items") {
            self.below(items, &format!("{path}[]"));
        }
        let forms = forms(schema);
        if forms.is_empty() {
            return self.map(&[schema], path);
        }
        let resolved: Vec<&Value> = forms.iter().map(|form| self.part(form).0).collect();
        let maps: Vec<&Value> =
            resolved.iter().copied().filter(|form| form.get("properties").is_some()).collect();
        let fresh = forms.iter().filter_map(|form| self.part(form).1.map(str::to_owned)).collect::<Vec<_>>();
        let is_told = !fresh.is_empty() && fresh.iter().all(|name| self.told.contains(name));
        if !is_told {
            self.map(&maps, path);
        }
        self.told.extend(fresh);
        for form in resolved.iter().filter(|form| form.get("properties").is_none()) {
            if let Some(items) = form.get("items") {
                self.below(items, &format!("{path}[]"));
            } else if !self::forms(form).is_empty() {
                self.below(form, path);
            }
        }
    }

    /// Lists the keys of a map that has one of these forms.
    fn map(&mut self, maps: &[&'a Value], path: &str) {
        let mut keys: Vec<(&String, Vec<&'a Value>)> = Vec::new();
        for (key, schema) in maps.iter().filter_map(|map| map["properties"].as_object()).flatten() {
            match keys.iter_mut().find(|(known, _)| *known == key) {
                Some((_, schemas)) => schemas.push(schema),
                None => keys.push((key, vec![schema])),
            }
        }
        // The order of a schema's keys is not defined.
        keys.sort_by_key(|(key, _)| *key);
        for (key, schemas) in keys {
            let needs = |map: &&Value| {
                map["required"].as_array().is_some_and(|all| all.iter().any(|name| name == key))
            };
            let needed = maps.iter().copied().filter(|map| needs(map)).count();
            let full = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let condition = maps.iter().find_map(|map| condition(map, key));
            let default = match (needed, schemas[0].get("default")) {
                (needed, _) if needed == maps.len() => "required".to_owned(),
                (1.., _) => "required in some forms".to_owned(),
                (0, None) if condition.is_some() => condition.unwrap_or_default(),
                (0, Some(default)) => {
                    format!("`{}`", default.as_str().map_or_else(|| default.to_string(), str::to_owned))
                }
                (0, None) => "–".to_owned(),
            };
            let words: BTreeSet<String> =
                schemas.iter().filter_map(|schema| Some(schema.get("const")?.as_str()?.to_owned())).collect();
            let form =
                if words.is_empty() { self.form(schemas[0]) } else { list(words.iter().map(String::as_str)) };
            let meaning = schemas.iter().find_map(|schema| {
                schema["description"].as_str().or_else(|| self.part(schema).0["description"].as_str())
            });
            let meaning = meaning.unwrap_or("Selects the form.").lines().next().unwrap_or_default();
            self.fields.push(Field { key: full.clone(), form, default, meaning: cell(meaning) });
            schemas.iter().for_each(|schema| self.below(schema, &full));
        }
    }

    fn form(&self, schema: &Value) -> String {
        let named = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/"));
        let schema = named.map_or(schema, |name| &self.root["$defs"][name]);
        if let Some(words) = schema["enum"].as_array() {
            return list(words.iter().filter_map(Value::as_str));
        }
        let forms = forms(schema);
        if !forms.is_empty() {
            let mut all: Vec<String> = forms.iter().map(|form| self.form(form)).collect();
            all.dedup();
            return all.join(" or ");
        }
        let bounds = match (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
            (Some(least), Some(most)) => format!(", {least} to {most}"),
            (Some(least), None) => format!(", from {least}"),
            _ => String::new(),
        };
        match schema["type"].as_str() {
            Some("string") => "text".to_owned(),
            Some("boolean") => "true or false".to_owned(),
            Some("integer") => format!("whole number{bounds}"),
            Some("number") => format!("number{bounds}"),
            Some("array") => format!(
                "list of: {}",
                schema.get("items").map_or("anything".to_owned(), |items| self.form(items))
            ),
            Some("object") => "map".to_owned(),
            _ => "anything".to_owned(),
        }
    }
}

/// Returns the text for the column "default" of a key that the value of another key makes required.
fn condition(map: &Value, key: &str) -> Option<String> {
    let rules = map["allOf"].as_array()?;
    rules.iter().find_map(|rule| {
        rule["then"]["required"].as_array()?.iter().find(|name| *name == key)?;
        let (other, schema) = rule["if"]["properties"].as_object()?.iter().next()?;
        Some(format!("required with `{other}: {}`", schema["const"].as_str()?))
    })
}

/// Returns the alternative forms of a value. A form that only requires keys does not count.
fn forms(schema: &Value) -> Vec<&Value> {
    let list = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array);
    let is_form =
        |form: &&Value| form.as_object().is_some_and(|form| form.keys().any(|key| key != "required"));
    list.into_iter().flatten().filter(is_form).collect()
}

fn list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// Escapes a text for a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
