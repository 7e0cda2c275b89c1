//! Requests and reads answers that follow a JSON Schema.
//!
//! The protocol has no support for JSON Schema, so the schema becomes part of the prompt, and the value is
//! searched for in the answer. Models answer best with an object: for any other schema, the value is
//! requested as the member `value` of an object. The value is always validated against the given schema.

mod find;

use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value, json};

/// Member of the requested object that contains a value that is not an object.
const MEMBER: &str = "value";

/// Maximum number of problems to report. Fixing the first few usually fixes the rest.
const MAX_PROBLEMS: usize = 10;

const MAX_PROBLEM_CHARS: usize = 300;

/// Maximum number of references to follow when checking that the root is an object.
const MAX_REFERENCES: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SchemaError {
    /// The schema is neither an object nor a boolean.
    #[error("a JSON Schema is an object or a boolean")]
    NotASchema,
    /// The schema refers to another document. Documents are never fetched.
    #[error("the schema refers to another document, which is not fetched: {0}")]
    Elsewhere(String),
    /// The schema violates its own draft.
    #[error("this is not a valid JSON Schema, at {at:?}: {what}")]
    Invalid {
        /// JSON pointer to the error; empty for the root.
        at: String,
        what: String,
    },
}

#[derive(Debug)]
pub(crate) struct AnswerSchema {
    shown: Value,
    /// `true` if the schema shown to the model wraps the given schema in an object.
    wrapped: bool,
    validator: Validator,
}

impl AnswerSchema {
    /// Creates the schema of an answer from `schema`. Only references within it are followed.
    ///
    /// # Errors
    /// [`SchemaError`] if the schema cannot be used.
    pub(crate) fn new(schema: &Value) -> Result<Self, SchemaError> {
        if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
            return Err(SchemaError::NotASchema);
        }
        let validator =
            jsonschema::options().offline().build(schema).map_err(|error| match error.kind() {
                ValidationErrorKind::Referencing(cause) => {
                    SchemaError::Elsewhere(clipped(&cause.to_string()))
                }
                _ => SchemaError::Invalid {
                    at: error.instance_path().to_string(),
                    what: clipped(&error.masked().to_string()),
                },
            })?;
        let wrapped = !is_object(schema);
        let shown = if wrapped { wrap(schema) } else { schema.clone() };
        Ok(Self { shown, wrapped, validator })
    }

    pub(crate) fn instruction(&self) -> String {
        let member = if self.wrapped {
            format!(" The requested value is its member \"{MEMBER}\".")
        } else {
            String::new()
        };
        format!(
            "When everything else is done, let the last message be a single JSON object and nothing more: no words \
             before or after it, no code fence.{member} The object has to be valid by this JSON Schema:\n\n{}",
            self.shown
        )
    }

    /// Finds and validates the JSON value in `text`, the last message of a turn.
    ///
    /// # Errors
    /// Returns the problems, as sentences for the model.
    pub(crate) fn read(&self, text: &str) -> Result<Value, Vec<String>> {
        let Some(found) = find::last(text, self.wrapped) else {
            return Err(vec!["there is no JSON object in the message".to_owned()]);
        };
        let readings = self.readings(&found);
        if let Some(value) = readings.iter().find(|value| self.validator.is_valid(value)) {
            return Ok((*value).clone());
        }
        Err(readings.first().map_or_else(Vec::new, |value| self.problems(value, &found)))
    }

    /// Returns the prompt that asks for a corrected answer.
    pub(crate) fn repair(&self, problems: &[String]) -> String {
        let mut prompt = String::from("Your last message does not have the requested form:\n\n");
        for problem in problems {
            prompt.push_str("- ");
            prompt.push_str(problem);
            prompt.push('\n');
        }
        prompt.push_str("\nDo no further work and use no tools; only write that message again. ");
        prompt.push_str(&self.instruction());
        prompt
    }

    /// Returns the values that `found` may stand for, the most likely first. Models tend to add a wrapper
    /// object, or to omit the requested one.
    fn readings<'v>(&self, found: &'v Value) -> Vec<&'v Value> {
        let Value::Object(members) = found else { return vec![found] };
        let inner = if self.wrapped { members.get(MEMBER) } else { None };
        let only = members.values().next().filter(|_| members.len() == 1);
        [inner, Some(found), only].into_iter().flatten().collect()
    }

    fn problems(&self, value: &Value, found: &Value) -> Vec<String> {
        // Positions in problems must refer to the model's own answer, including its wrapper object.
        let outer = if std::ptr::eq(value, found) { String::new() } else { format!("/{MEMBER}") };
        let tell = |error: jsonschema::ValidationError<'_>| {
            let place = format!("{outer}{}", error.instance_path());
            let what = error.masked_with("this");
            clipped(&if place.is_empty() { what.to_string() } else { format!("at {place}: {what}") })
        };
        self.validator.iter_errors(value).take(MAX_PROBLEMS).map(tell).collect()
    }
}

/// Returns `true` if the schema accepts only objects.
fn is_object(schema: &Value) -> bool {
    let mut at = schema;
    for _ in 0..MAX_REFERENCES {
        let kind = match at.get("type") {
            Some(Value::Array(kinds)) if kinds.len() == 1 => kinds.first(),
            kind => kind,
        };
        if let Some(kind) = kind {
            return kind == "object";
        }
        let local = at.get("$ref").and_then(Value::as_str).and_then(|target| target.strip_prefix('#'));
        match local.and_then(|pointer| schema.pointer(pointer)) {
            Some(target) => at = target,
            None => return at.get("properties").is_some(),
        }
    }
    false
}

/// Returns the schema of an object with `schema` as its member. Definitions move to the root, because
/// references to them start there.
fn wrap(schema: &Value) -> Value {
    let mut root = Map::new();
    let mut inner = schema.clone();
    if let Value::Object(members) = &mut inner {
        for name in ["$schema", "$defs", "definitions"] {
            root.extend(members.remove(name).map(|definitions| (name.to_owned(), definitions)));
        }
    }
    root.insert("additionalProperties".to_owned(), false.into());
    root.insert("properties".to_owned(), json!({MEMBER: inner}));
    root.insert("required".to_owned(), json!([MEMBER]));
    root.insert("type".to_owned(), "object".into());
    Value::Object(root)
}

fn clipped(text: &str) -> String {
    match text.char_indices().nth(MAX_PROBLEM_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
