//! The answers of the demo model.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{Tool, ToolResult};

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.to_owned(), description: String::new(), parameters }
}

fn tools() -> Vec<Tool> {
    let plain = || json!({"type": "object"});
    vec![
        tool("read_file", plain()),
        tool("write_file", plain()),
        tool("edit_file", json!({"properties": {"path": {}, "old_string": {}, "new_string": {}}})),
        tool("run_command", plain()),
        tool(
            "update_plan",
            json!({"properties": {"steps": {"type": "array", "items": {
                "type": "object", "properties": {"step": {"type": "string"}, "status": {"type": "string"}},
            }}}}),
        ),
        tool("weather", plain()),
    ]
}

fn ask(words: &str, tools: Vec<Tool>) -> Request {
    Request {
        model: DEMO_MODEL.to_owned(),
        messages: vec![Message::user(words)],
        tools,
        ..Request::default()
    }
}

fn play(request: &Request) -> (Vec<ReplyEvent>, Completion) {
    let mut play = DemoReply::new(request);
    let events = std::iter::from_fn(|| play.next()).collect();
    (events, play.into_completion())
}

#[test]
fn the_introduction_explains_how_to_connect_a_real_model() {
    for words in ["Hello, who are you?", "", "what do you think?", "readme"] {
        let (_, completion) = play(&ask(words, Vec::new()));
        for word in
            ["demo model", "OPENAI_BASE_URL", "OPENAI_API_KEY", "narrows.toml", "http://localhost:11434/v1"]
        {
            assert!(completion.message.text.contains(word), "{words}: {word}");
        }
        assert_eq!(completion.finish, Finish::Stop);
        assert!(completion.message.text.lines().count() < 40, "at most one page");
    }
}

#[test]
fn plain_words_call_tools() {
    let check = |words: &str, name: &str, arguments: Value| {
        let (events, completion) = play(&ask(words, tools()));
        assert_eq!(completion.finish, Finish::Calls, "{words}");
        let call = &completion.message.calls[0];
        let found: Value = serde_json::from_str(&call.arguments).unwrap();
        assert_eq!(
            (call.id.as_str(), call.name.as_str(), found),
            ("call_demo_1", name, arguments),
            "{words}"
        );
        assert_eq!(events.last(), Some(&ReplyEvent::Calling { name: name.to_owned() }));
    };
    check("read README.md", "read_file", json!({"path": "README.md"}));
    check("Please READ \"a file.txt\" now", "read_file", json!({"path": "a file.txt"}));
    check("write a.txt", "write_file", json!({"path": "a.txt", "content": "Hello from the demo model.\n"}));
    check("write a.txt some words", "write_file", json!({"path": "a.txt", "content": "some words"}));
    check(
        "edit a.txt old words -> new words",
        "edit_file",
        json!({"path": "a.txt", "old_string": "old words", "new_string": "new words"}),
    );
    check("run ls -l | wc", "run_command", json!({"command": "ls -l | wc"}));
    check("call weather", "weather", json!({}));
    check("call weather {\"city\": \"Bern\"}", "weather", json!({"city": "Bern"}));
    check(
        "plan",
        "update_plan",
        json!({"steps": [
            {"step": "Look around", "status": "in_progress"},
            {"step": "Connect a real model", "status": "pending"},
            {"step": "Do the work", "status": "pending"},
        ]}),
    );
}

#[test]
fn equivalent_tools_from_mcp_are_found() {
    let path = || json!({"properties": {"path": {"type": "string"}}});
    let tools = || {
        vec![
            tool("narrows__read_text_file", path()),
            tool("narrows__write_text_file", path()),
            tool("narrows__run_command", json!({"properties": {"command": {}, "args": {}}})),
        ]
    };
    let check = |words: &str, name: &str, arguments: Value| {
        let (_, completion) = play(&ask(words, tools()));
        let call = completion.message.calls.first().expect("a call");
        let found: Value = serde_json::from_str(&call.arguments).expect("JSON");
        assert_eq!((call.name.as_str(), found), (name, arguments), "{words}");
    };
    check("read README.md", "narrows__read_text_file", json!({"path": "README.md"}));
    check("write a some words", "narrows__write_text_file", json!({"path": "a", "content": "some words"}));
    check("run ls -l", "narrows__run_command", json!({"command": "ls", "args": ["-l"]}));
    check("run ls | wc", "narrows__run_command", json!({"command": "sh", "args": ["-c", "ls | wc"]}));
    let (_, completion) = play(&ask("Hello", tools()));
    for words in ["`read PATH`", "`write PATH TEXT`", "`run COMMAND`"] {
        assert!(completion.message.text.contains(words), "{words}");
    }
    assert!(!completion.message.text.contains("`edit PATH"));
}

#[test]
fn impossible_commands_are_explained() {
    let check = |words: &str, tools: Vec<Tool>, expected: &str| {
        let (_, completion) = play(&ask(words, tools));
        assert_eq!((completion.message.text.as_str(), completion.finish), (expected, Finish::Stop));
    };
    check(
        "read a.txt",
        Vec::new(),
        "I cannot: there is no tool `read_file` in this session. No tools are available.\n",
    );
    check(
        "run ls",
        vec![tool("weather", json!({}))],
        "I cannot: there is no tool `run_command` in this session. Available tools: `weather`.\n",
    );
    check(
        "call moon",
        vec![tool("weather", json!({}))],
        "There is no tool `moon`. Available tools: `weather`.\n",
    );
    check("read", tools(), "Which file? Say the word, then its path, as in `read README.md`.\n");
    check("edit a.txt", tools(), "What shall I change? Say `edit PATH OLD -> NEW`.\n");
    check("run", tools(), "Which command? Say it after the word, as in `run ls`.\n");
    check(
        "call weather [1]",
        tools(),
        "The text after the tool's name must be a JSON object, such as `{\"path\": \"a\"}`.\n",
    );
}

#[test]
fn results_are_described() {
    let check = |text: &str, failed: bool, expected: &str| {
        let mut request = ask("read a.txt", tools());
        request.messages.push(Message::Assistant(play(&request).1.message));
        request.messages.push(Message::Tool(ToolResult {
            call: "call_demo_1".to_owned(),
            name: "read_file".to_owned(),
            content: vec![Part::text(text)],
            failed,
        }));
        let (_, completion) = play(&request);
        assert_eq!((completion.message.text.as_str(), completion.finish), (expected, Finish::Stop));
    };
    check("", false, "`read_file` is done and returned no text.\n");
    check("one", false, "`read_file` is done. It gave one line:\n\n    one\n");
    check("a\nb\n", false, "`read_file` is done. It gave 2 lines:\n\n    a\n    b\n");
    check("no such file", true, "`read_file` failed, so nothing came of it.\n\n    no such file\n");
    check(
        "The person rejected it.",
        true,
        "`read_file` was refused, so nothing came of it.\n\n    The person rejected it.\n",
    );
    let many = (1..=9).map(|line| line.to_string()).collect::<Vec<_>>().join("\n");
    check(
        &many,
        false,
        "`read_file` is done. It gave 9 lines:\n\n    1\n    2\n    3\n    4\n    5\n    6\n    …\n",
    );
}

#[test]
fn thoughts_come_before_the_answer() {
    let (events, completion) = play(&ask("think", Vec::new()));
    assert!(matches!(events[0], ReplyEvent::Thought(_)));
    assert!(matches!(events.last(), Some(ReplyEvent::Text(_))));
    assert!(!completion.message.reasoning.is_empty());
    assert!(completion.usage.unwrap().reasoning.unwrap() > 0);
}

#[test]
fn ids_differ_within_a_conversation() {
    let mut request = ask("read a.txt", tools());
    let first = play(&request).1.message;
    request.messages.push(Message::Assistant(first.clone()));
    request.messages.push(Message::Tool(ToolResult::default()));
    request.messages.push(Message::user("read b.txt"));
    assert_ne!(first.calls[0].id, play(&request).1.message.calls[0].id);
}

proptest! {
    #[test]
    fn pieces_join_to_the_answer_and_are_deterministic(words in "(read|write|edit|run|call|plan|think|markdown)?.{0,30}") {
        let request = ask(&words, tools());
        let (events, completion) = play(&request);
        let text: String = events.iter().filter_map(|event| match event {
            ReplyEvent::Text(text) => Some(text.as_str()),
            _ => None,
        }).collect();
        prop_assert_eq!(&text, &completion.message.text);
        let usage = completion.usage.clone().unwrap();
        prop_assert_eq!(usage.total, usage.input + usage.output);
        prop_assert_eq!((events, completion), play(&request));
    }

    #[test]
    fn words_join_to_the_text(text in "[ab \n\u{a0}é]{0,30}") {
        prop_assert_eq!(words(&text).collect::<String>(), text.clone());
        prop_assert!(words(&text).all(|word| !word.is_empty()));
    }
}
