//! Parses, checks and bounds the tools that a server lists.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::text::first_bytes;

/// Maximum length of a tool name. No model accepts longer names.
const MAX_NAME_BYTES: usize = 256;
/// Maximum length of a tool's description. Models read all descriptions in every turn.
const MAX_DESCRIPTION_BYTES: usize = 64 * 1024;
const MAX_SCHEMA_BYTES: usize = 256 * 1024;

/// A tool of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub server: String,
    pub name: String,
    /// Display name.
    pub title: Option<String>,
    pub description: String,
    /// JSON Schema of the arguments, always an object.
    pub schema: Value,
    /// `true` if the server declares that the tool changes nothing.
    pub read_only: bool,
    /// `true` unless the server declares that the tool is read-only or destroys nothing.
    pub destructive: bool,
}

pub(crate) struct ToolList {
    server: String,
    limit: usize,
    names: HashSet<String>,
    cursors: HashSet<String>,
    tools: Vec<Tool>,
}

impl ToolList {
    pub(crate) fn new(server: &str, limit: usize) -> Self {
        Self {
            server: server.to_owned(),
            limit,
            names: HashSet::new(),
            cursors: HashSet::new(),
            tools: Vec::new(),
        }
    }

    /// Adds a page of tools and returns the cursor of the next page. Returns `None` at the limit. Also
    /// returns `None` for a repeated cursor and after an empty page, because the list might never end.
    pub(crate) fn add(&mut self, page: Value) -> Option<String> {
        let Value::Object(mut page) = page else { return None };
        let Some(Value::Array(tools)) = page.remove("tools") else { return None };
        let before = self.tools.len();
        for tool in tools {
            if self.tools.len() >= self.limit {
                tracing::warn!(server = ?self.server, limit = self.limit, "tools over the limit ignored");
                return None;
            }
            match parse_tool(&self.server, tool) {
                Some(tool) if self.names.insert(tool.name.clone()) => self.tools.push(tool),
                Some(tool) => {
                    tracing::warn!(server = ?self.server, tool = ?tool.name, "duplicate tool ignored");
                }
                None => tracing::warn!(server = ?self.server, "invalid tool ignored"),
            }
        }
        let Some(Value::String(cursor)) = page.remove("nextCursor") else { return None };
        if self.tools.len() == before || !self.cursors.insert(cursor.clone()) {
            tracing::warn!(server = ?self.server, "tool list does not end");
            return None;
        }
        Some(cursor)
    }

    pub(crate) fn into_tools(self) -> Vec<Tool> {
        self.tools
    }
}

fn parse_tool(server: &str, tool: Value) -> Option<Tool> {
    let Value::Object(mut tool) = tool else { return None };
    let name = text(&mut tool, "name").filter(|name| !name.is_empty() && name.len() <= MAX_NAME_BYTES)?;
    let description = text(&mut tool, "description").unwrap_or_default();
    let schema = schema(tool.remove("inputSchema"))?;
    let mut hints = match tool.remove("annotations") {
        Some(Value::Object(hints)) => hints,
        _ => Map::new(),
    };
    let title = text(&mut tool, "title").or_else(|| text(&mut hints, "title"));
    let read_only = hints.get("readOnlyHint") == Some(&Value::Bool(true));
    Some(Tool {
        server: server.to_owned(),
        name,
        title: title.map(|title| first_bytes(&title, MAX_NAME_BYTES).to_owned()),
        description: first_bytes(&description, MAX_DESCRIPTION_BYTES).to_owned(),
        schema,
        read_only,
        destructive: !read_only && hints.get("destructiveHint") != Some(&Value::Bool(false)),
    })
}

/// Returns a schema that every model endpoint accepts: an object with properties. Returns `None` if `given`
/// is too large or not an object.
fn schema(given: Option<Value>) -> Option<Value> {
    let mut schema = match given {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(schema)) => schema,
        Some(_) => return None,
    };
    if !schema.contains_key("type") {
        schema.insert("type".to_owned(), "object".into());
    }
    if schema["type"] != "object" {
        return None;
    }
    if !schema.get("properties").is_some_and(Value::is_object) {
        schema.insert("properties".to_owned(), Map::new().into());
    }
    let schema = Value::Object(schema);
    // The schema is sent to the model as text, so its text length counts.
    (schema.to_string().len() <= MAX_SCHEMA_BYTES).then_some(schema)
}

fn text(object: &mut Map<String, Value>, key: &str) -> Option<String> {
    match object.remove(key) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(page: Value, names: &[&str], cursor: Option<&str>) {
        let mut listing = ToolList::new("s", 3);
        assert_eq!(listing.add(page).as_deref(), cursor);
        let tools = listing.into_tools();
        assert_eq!(tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), names);
    }

    #[test]
    fn pages() {
        check(json!({"tools": []}), &[], None);
        check(json!({"tools": [{"name": "a"}, {"name": "b"}], "nextCursor": "2"}), &["a", "b"], Some("2"));
        check(json!({"tools": [{"name": "a"}, {"name": "a"}]}), &["a"], None);
        check(json!({"tools": [{"name": ""}, {"name": 1}, 7, {"name": "a", "inputSchema": []}]}), &[], None);
        check(
            json!({"tools": [{"name": "x", "inputSchema": {"type": "string"}}, {"name": "b"}]}),
            &["b"],
            None,
        );
        check(json!({"tools": [], "nextCursor": "again"}), &[], None);
        check(json!([1]), &[], None);
        check(json!({"tools": {}}), &[], None);
        let four = json!([{"name": "a"}, {"name": "b"}, {"name": "c"}, {"name": "d"}]);
        check(json!({"tools": four, "nextCursor": "x"}), &["a", "b", "c"], None);
    }

    fn strange() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            ".{0,300}".prop_map(Value::from),
            Just(json!({"type": "object", "properties": {"a": {}}})),
            Just(json!({"type": ["object"]})),
            Just(json!([{}])),
        ]
    }

    proptest! {
        /// For any page, every kept tool has a unique name and an object schema.
        #[test]
        fn kept_tools_are_usable(pages in prop::collection::vec((prop::collection::vec(
            (strange(), strange(), strange(), strange()), 0..5), strange()), 0..4), limit in 0usize..8)
        {
            let mut listing = ToolList::new("s", limit);
            for (tools, cursor) in pages {
                let tools: Vec<Value> = tools
                    .into_iter()
                    .map(|(name, description, schema, annotations)| {
                        json!({"name": name, "description": description, "inputSchema": schema, "annotations": annotations})
                    })
                    .collect();
                _ = listing.add(json!({"tools": tools, "nextCursor": cursor}));
            }
            let tools = listing.into_tools();
            prop_assert!(tools.len() <= limit);
            let names: HashSet<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
            prop_assert_eq!(names.len(), tools.len());
            for tool in &tools {
                prop_assert!(!tool.name.is_empty() && tool.name.len() <= MAX_NAME_BYTES);
                prop_assert_eq!(&tool.schema["type"], "object");
                prop_assert!(tool.schema["properties"].is_object());
            }
        }
    }

    #[test]
    fn a_repeated_cursor_ends_the_list() {
        let mut listing = ToolList::new("s", 100);
        assert_eq!(listing.add(json!({"tools": [{"name": "a"}], "nextCursor": "x"})).as_deref(), Some("x"));
        assert_eq!(listing.add(json!({"tools": [{"name": "b"}], "nextCursor": "x"})), None);
        assert_eq!(listing.into_tools().len(), 2);
    }

    #[test]
    fn hints_and_schema() {
        let tool = |annotations: Value| {
            parse_tool("s", json!({"name": "n", "description": "d", "annotations": annotations}))
                .expect("it is one")
        };
        let plain = tool(Value::Null);
        assert_eq!((plain.read_only, plain.destructive, plain.title), (false, true, None));
        assert_eq!(plain.schema, json!({"type": "object", "properties": {}}));
        let harmless = tool(json!({"readOnlyHint": true, "title": "N"}));
        assert_eq!((harmless.read_only, harmless.destructive), (true, false));
        assert_eq!(harmless.title.as_deref(), Some("N"));
        let additive = tool(json!({"destructiveHint": false, "readOnlyHint": "yes"}));
        assert_eq!((additive.read_only, additive.destructive), (false, false));
    }
}
