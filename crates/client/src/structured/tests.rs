use super::*;

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name"],
        "additionalProperties": false,
    })
}

#[track_caller]
fn check(schema: &Value, text: &str, expected: &Value) {
    assert_eq!(AnswerSchema::new(schema).unwrap().read(text).as_ref(), Ok(expected), "{text}");
}

#[track_caller]
fn check_problems(schema: &Value, text: &str, expected: &[&str]) {
    let problems = AnswerSchema::new(schema).unwrap().read(text).unwrap_err();
    assert_eq!(problems, expected, "{text}");
}

#[track_caller]
fn check_refused(schema: &Value, expected: &str) {
    let error = AnswerSchema::new(schema).unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn an_object_is_read() {
    let ada = json!({"name": "Ada", "age": 36});
    check(&person(), r#"{"name":"Ada","age":36}"#, &ada);
    check(&person(), "Done.\n```json\n{\"name\":\"Ada\",\"age\":36}\n```\n", &ada);
    check(&person(), r#"{"person":{"name":"Ada","age":36}}"#, &ada);
    check(&person(), r#"{"value":{"name":"Ada","age":36}}"#, &ada);
    check(&person(), r#"Not {"name":"Bob"} but {"name":"Ada","age":36}, I think."#, &ada);
}

#[test]
fn non_object_schemas_are_wrapped_and_unwrapped() {
    let list = json!({"type": "array", "items": {"type": "integer"}});
    for text in [r#"{"value":[1,2]}"#, "[1,2]", r#"{"numbers":[1,2]}"#, "They are [1,2].", "```\n[1,2]\n```"]
    {
        check(&list, text, &json!([1, 2]));
    }
    check(&json!({"type": "string"}), r#"{"value":"yes"}"#, &json!("yes"));
    check(&json!({"type": "string"}), r#""yes""#, &json!("yes"));
    check(&json!({"enum": ["a", "b"]}), r#"{"value":"b"}"#, &json!("b"));
    check(&json!({"type": ["object", "null"]}), r#"{"value":null}"#, &Value::Null);
    check(&json!(true), r#"{"value":{"a":1}}"#, &json!({"a": 1}));
    let value =
        json!({"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]});
    check(&value, r#"{"value":1}"#, &json!({"value": 1}));
}

#[test]
fn problems_name_the_position_and_the_cause() {
    check_problems(&person(), "No.", &["there is no JSON object in the message"]);
    check_problems(&person(), "[1]", &["there is no JSON object in the message"]);
    check_problems(
        &person(),
        r#"{"age":-1,"x":{"secret":1}}"#,
        &[
            "at /age: this is less than the minimum of 0",
            "Additional properties are not allowed ('x' was unexpected)",
            "\"name\" is a required property",
        ],
    );
    check_problems(
        &json!({"type": "array", "items": {"type": "integer"}}),
        r#"{"value":[1,"2"]}"#,
        &["at /value/1: this is not of type \"integer\""],
    );
    check_problems(&json!({"type": "integer"}), "\"2\"", &["this is not of type \"integer\""]);
    check_problems(&json!(false), "{}", &["False schema does not allow this"]);
}

#[test]
fn problems_are_few_and_short() {
    let schema = json!({"type": "array", "items": {"type": "integer"}});
    let text = json!({"value": vec!["x"; 1000]}).to_string();
    assert_eq!(AnswerSchema::new(&schema).unwrap().read(&text).unwrap_err().len(), MAX_PROBLEMS);
    let text = json!({"name": "x", "y".repeat(10_000): 1}).to_string();
    let problems = AnswerSchema::new(&person()).unwrap().read(&text).unwrap_err();
    assert_eq!(problems[0].chars().count(), MAX_PROBLEM_CHARS + 1);
}

#[test]
fn references_within_the_schema_are_followed() {
    let tree = json!({
        "$ref": "#/$defs/tree",
        "$defs": {"tree": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "additionalProperties": false,
        }},
    });
    let schema = AnswerSchema::new(&tree).unwrap();
    assert!(!schema.wrapped);
    assert!(schema.read(r#"{"children":[{"children":[]}]}"#).is_ok());
    assert!(schema.read(r#"{"children":[{"child":[]}]}"#).is_err());

    let forest = json!({"type": "array", "items": {"$ref": "#/$defs/tree"}, "$defs": tree["$defs"]});
    let schema = AnswerSchema::new(&forest).unwrap();
    assert!(schema.wrapped);
    assert!(schema.read(r#"{"value":[{"children":[]}]}"#).is_ok());
    // The shown schema is a valid schema.
    assert!(jsonschema::options().offline().build(&schema.shown).unwrap().is_valid(&json!({"value": [{}]})));

    // `#` refers to the schema's own root, even after it was wrapped.
    check(&json!({"type": "array", "items": {"$ref": "#"}}), r#"{"value":[[],[[]]]}"#, &json!([[], [[]]]));
}

#[test]
fn remote_references_are_not_fetched() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("schema.json");
    std::fs::write(&file, "{}").unwrap();
    let file = format!("file://{}", file.display());
    for target in [
        "http://127.0.0.1:9/schema.json",
        "https://example.com/schema.json",
        &file,
        "schema.json",
        "#/$defs/none",
    ] {
        check_refused(
            &json!({"type": "object", "properties": {"a": {"$ref": target}}}),
            "the schema refers to",
        );
    }
    check_refused(&json!({"$schema": "https://example.com/meta", "type": "object"}), "the schema");
    let based = json!({"$id": file, "type": "object", "properties": {"a": {"$ref": "other.json"}}});
    check_refused(&based, "the schema refers to");
}

#[test]
fn invalid_schemas_are_refused() {
    check_refused(&json!("object"), "a JSON Schema is an object or a boolean");
    check_refused(&json!({"type": "objekt"}), "this is not a valid JSON Schema, at \"/type\"");
    check_refused(
        &json!({"type": "string", "pattern": "("}),
        "this is not a valid JSON Schema, at \"/pattern\"",
    );
}

#[test]
fn a_schema_that_refers_to_itself_ends() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"allOf": [{"$ref": "#"}]}),
    ] {
        if let Ok(schema) = AnswerSchema::new(&schema) {
            let _ = schema.read("{}");
        }
    }
}

#[test]
fn the_prompts_contain_the_schema_and_the_problems() {
    let schema = AnswerSchema::new(&json!({"type": "integer"})).unwrap();
    insta::assert_snapshot!(schema.repair(&["at /value: this is not of type \"integer\"".to_owned()]), @r#"
    Your last message does not have the requested form:

    - at /value: this is not of type "integer"

    Do no further work and use no tools; only write that message again. When everything else is done, let the last message be a single JSON object and nothing more: no words before or after it, no code fence. The requested value is its member "value". The object has to be valid by this JSON Schema:

    {"additionalProperties":false,"properties":{"value":{"type":"integer"}},"required":["value"],"type":"object"}
    "#);
    let schema = AnswerSchema::new(&person()).unwrap();
    assert!(schema.instruction().ends_with(&person().to_string()));
    assert!(!schema.instruction().contains("member"));
}

/// Unfinished and nested values are read in linear time. In quadratic time this test would take minutes, but
/// the runner stops it after one.
#[test]
fn a_hostile_answer_is_read_in_linear_time() {
    let deep = 60_000;
    let numbers = "[1,1],".repeat(10_000);
    let texts = [
        "{\"a\":".repeat(100_000),
        "{\"a\":[".repeat(100_000),
        "[".repeat(300_000),
        "[{\"a\":1},".repeat(60_000),
        format!("{}1{} x", "{\"a\":".repeat(deep), "}".repeat(deep)),
        format!("{} x", "{\"a\":[\"{\\\"a\\\":[\",".repeat(20_000)),
        format!("{}{numbers}1e999{} x", "{\"a\":[".repeat(120), "]}".repeat(120)),
    ];
    let (object, list) =
        (AnswerSchema::new(&person()).unwrap(), AnswerSchema::new(&json!({"type": "array"})).unwrap());
    for text in texts {
        assert!(object.read(&text).is_err(), "{}", &text[..40]);
        let _ = list.read(&text);
    }
}
