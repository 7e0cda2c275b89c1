//! Reads params in which all JSON readers find the same values.

pub(crate) use narrows_policy::UnambiguousJson;
use serde_json::{Map, Value};

/// Reads params. Missing params are an empty object. Returns `None` if the params are invalid or ambiguous.
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
