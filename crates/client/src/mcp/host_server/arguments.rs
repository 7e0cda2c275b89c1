//! Reads the arguments of a tool one by one. Errors are texts for the model, so that it can correct the call.

use std::path::PathBuf;

use serde_json::{Map, Value};

pub(super) struct Arguments(Map<String, Value>);

impl Arguments {
    pub(super) fn new(arguments: Map<String, Value>) -> Self {
        Self(arguments)
    }

    pub(super) fn text(&mut self, key: &str) -> Result<String, String> {
        self.optional_text(key)?.ok_or_else(|| format!("the argument {key} is missing"))
    }

    pub(super) fn optional_text(&mut self, key: &str) -> Result<Option<String>, String> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("the argument {key} is not a string")),
        }
    }

    pub(super) fn path(&mut self, key: &str) -> Result<PathBuf, String> {
        path_of(key, self.text(key)?)
    }

    pub(super) fn optional_path(&mut self, key: &str) -> Result<Option<PathBuf>, String> {
        self.optional_text(key)?.map(|path| path_of(key, path)).transpose()
    }

    /// Reads an optional positive integer. A number above the maximum of `u32` becomes that maximum.
    pub(super) fn count(&mut self, key: &str) -> Result<Option<u32>, String> {
        let Some(value) = self.take(key) else { return Ok(None) };
        // Some models write integers with a decimal point.
        let whole = value.as_f64().filter(|number| *number >= 1.0 && number.fract() == 0.0);
        let Some(number) = whole else {
            return Err(format!("the argument {key} is not a positive integer"));
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        Ok(Some(number as u32))
    }

    /// Reads a list of strings; empty if missing.
    pub(super) fn list(&mut self, key: &str) -> Result<Vec<String>, String> {
        let wrong = || format!("the argument {key} is not a list of strings");
        let items = match self.take(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(_) => return Err(wrong()),
        };
        let texts = items.into_iter().map(|item| match item {
            Value::String(text) => plain(key, text),
            _ => Err(wrong()),
        });
        texts.collect()
    }

    /// Reads an object of strings; empty if missing.
    pub(super) fn pairs(&mut self, key: &str) -> Result<Vec<(String, String)>, String> {
        let wrong = || format!("the argument {key} is not an object of strings");
        let pairs = match self.take(key) {
            None => return Ok(Vec::new()),
            Some(Value::Object(pairs)) => pairs,
            Some(_) => return Err(wrong()),
        };
        let texts = pairs.into_iter().map(|(name, value)| match value {
            Value::String(_) if name.is_empty() || name.contains(['=', '\0']) => {
                Err(format!("the argument {key} has a name that no variable can have"))
            }
            Value::String(text) => Ok((name, plain(key, text)?)),
            _ => Err(wrong()),
        });
        texts.collect()
    }

    /// Refuses unknown arguments, because the model may intend them to change the meaning of the call.
    pub(super) fn end(self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(key) => Err(format!("unknown argument {:?}", key.chars().take(40).collect::<String>())),
        }
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key).filter(|value| !value.is_null())
    }
}

fn path_of(key: &str, text: String) -> Result<PathBuf, String> {
    let path = plain(key, text)?;
    if path.is_empty() { Err(format!("the argument {key} is empty")) } else { Ok(path.into()) }
}

pub(super) fn plain(key: &str, text: String) -> Result<String, String> {
    if text.contains('\0') { Err(format!("the argument {key} has a NUL character")) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check<T: std::fmt::Debug + PartialEq>(
        arguments: Value,
        take: fn(&mut Arguments) -> Result<T, String>,
        expected: Result<T, &str>,
    ) {
        let Value::Object(arguments) = arguments else { panic!("{arguments} is not an object") };
        assert_eq!(take(&mut Arguments::new(arguments)), expected.map_err(str::to_owned));
    }

    #[test]
    fn numbers() {
        let wrong = Err("the argument n is not a positive integer");
        check(json!({}), |a| a.count("n"), Ok(None));
        check(json!({"n": null}), |a| a.count("n"), Ok(None));
        check(json!({"n": 1}), |a| a.count("n"), Ok(Some(1)));
        check(json!({"n": 7.0}), |a| a.count("n"), Ok(Some(7)));
        check(json!({"n": 1e30}), |a| a.count("n"), Ok(Some(u32::MAX)));
        for n in [json!(0), json!(-1), json!(1.5), json!("1"), json!([])] {
            check(json!({"n": n}), |a| a.count("n"), wrong);
        }
    }

    #[test]
    fn paths() {
        check(json!({"p": "/a/b"}), |a| a.path("p"), Ok(PathBuf::from("/a/b")));
        check(json!({}), |a| a.path("p"), Err("the argument p is missing"));
        check(json!({"p": "a/b"}), |a| a.path("p"), Ok("a/b".into()));
        check(json!({"p": ""}), |a| a.path("p"), Err("the argument p is empty"));
        check(json!({"p": "/a\0b"}), |a| a.path("p"), Err("the argument p has a NUL character"));
        check(json!({"p": 1}), |a| a.path("p"), Err("the argument p is not a string"));
        check(json!({}), |a| a.optional_path("p"), Ok(None));
    }

    #[test]
    fn lists_and_objects() {
        check(json!({}), |a| a.list("l"), Ok(vec![]));
        check(json!({"l": ["a", ""]}), |a| a.list("l"), Ok(vec!["a".into(), String::new()]));
        check(json!({"l": "a b"}), |a| a.list("l"), Err("the argument l is not a list of strings"));
        check(json!({"l": [1]}), |a| a.list("l"), Err("the argument l is not a list of strings"));
        check(json!({"o": {"A": "1"}}), |a| a.pairs("o"), Ok(vec![("A".into(), "1".into())]));
        check(json!({"o": {"A": 1}}), |a| a.pairs("o"), Err("the argument o is not an object of strings"));
        let name = Err("the argument o has a name that no variable can have");
        check(json!({"o": {"A=B": "1"}}), |a| a.pairs("o"), name);
    }

    #[test]
    fn unknown_arguments_are_refused() {
        let Value::Object(map) = json!({"a": "x", "sudo": true}) else { panic!("it is an object") };
        let mut arguments = Arguments::new(map);
        assert_eq!(arguments.text("a").as_deref(), Ok("x"));
        assert_eq!(arguments.end(), Err("unknown argument \"sudo\"".to_owned()));
    }

    proptest! {
        #[test]
        fn any_argument_is_read_without_panic(text in "[\\[\\]{}:,\"a-z0-9.-]{0,40}") {
            let value: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
            let new = || Arguments::new(Map::from_iter([("k".to_owned(), value.clone())]));
            if let Ok(Some(count)) = new().count("k") {
                prop_assert!(count >= 1);
            }
            _ = (new().path("k"), new().list("k"), new().pairs("k"), new().text("k"));
            prop_assert!(new().end().is_err());
        }
    }
}
