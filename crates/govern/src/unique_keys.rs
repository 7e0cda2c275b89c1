//! Parameters that can be read in one way only.

pub(crate) use narrows_policy::UnambiguousJson;
use serde_json::{Map, Value};

/// Reads parameters. `None`: they can be read in two ways, or not at all. Without any they are an empty object.
pub(crate) fn read(text: Option<&[u8]>) -> Option<Value> {
    match text {
        None => Some(Value::Object(Map::new())),
        Some(text) => UnambiguousJson::read(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parameters_are_an_empty_object() {
        assert_eq!(read(None), Some(serde_json::json!({})));
        assert_eq!(read(Some(br#"{"a":1,"a":2}"#)), None);
    }
}
