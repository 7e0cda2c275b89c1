//! JSON that all readers interpret equally, because no object has a duplicate key.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A value without duplicate keys. Deserializing a duplicate key fails, because readers could choose
/// different values.
#[derive(Clone, Debug)]
pub struct UnambiguousJson(pub Value);

impl UnambiguousJson {
    /// Reads a value. Returns `None` if it is invalid or has a duplicate key.
    pub fn read(text: &[u8]) -> Option<Value> {
        serde_json::from_slice::<Self>(text).ok().map(|Self(value)| value)
    }
}

impl<'de> Deserialize<'de> for UnambiguousJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader).map(Self)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(UnambiguousJson(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, UnambiguousJson(value))) = members.next_entry::<String, UnambiguousJson>()? {
            if map.insert(key, value).is_some() {
                return Err(A::Error::custom("a key appears twice"));
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_duplicate_key_is_refused_at_any_depth() {
        let check = |text: &str, reads: bool| {
            assert_eq!(UnambiguousJson::read(text.as_bytes()).is_some(), reads, "{text}");
        };
        check(r#"{"path":"/w/a"}"#, true);
        check(r#"{"path":"/etc/passwd","path":"/w/a"}"#, false);
        check(r#"{"path":"/w/a","p\u0061th":"/etc/passwd"}"#, false);
        check(r#"{"params":{"arguments":[{"a":1,"a":2}]}}"#, false);
        check(r#"[{"a":1},{"a":2}]"#, true);
        check("{", false);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z\"\\\\é]{0,5}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c]{1,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn unambiguous_json_is_read_unchanged(value in any_value()) {
            prop_assert_eq!(UnambiguousJson::read(value.to_string().as_bytes()), Some(value));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = UnambiguousJson::read(&bytes);
        }
    }
}
