//! The answers of the demo model.

use serde_json::Value;

use crate::{Message, Part, Request, Tool, ToolResult};

use super::arguments;

/// Maximum number of quoted lines of a tool result.
const SHOWN_LINES: usize = 6;
/// Maximum number of characters of a quoted line.
const SHOWN_WIDTH: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) thought: String,
    pub(super) text: String,
    pub(super) call: Option<(String, Value)>,
}

impl Answer {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

const WHO: &str = "\
I am the demo model of Narrows. I run offline, cost nothing, and give the same answer to the same words every time, \
so I can show you how your editor works with an agent, but I cannot think about your code.

Begin a message with one of these words to see more:

";

const ALWAYS: &str = "\
- `think`: show a thought
- `markdown`: show headings, lists, tables and code
";

/// Demo commands that need a tool, with their help texts.
const WITH_TOOLS: [(&str, &str); 5] = [
    ("read_file", "- `read PATH`: read a file\n"),
    ("write_file", "- `write PATH TEXT`: write one\n"),
    ("edit_file", "- `edit PATH OLD -> NEW`: change one\n"),
    ("run_command", "- `run COMMAND`: run a command\n"),
    ("update_plan", "- `plan`: show a plan\n"),
];

/// Help text for a request that offers any tools.
const ANY_TOOL: &str = "- `call TOOL {…}`: call any tool by its name\n";

/// Help text for a request that offers no tools.
const NO_TOOLS: &str = "
In an editor that lends me its files and its terminal, I also `read`, `write`, `edit`, `run` and `plan`.
";

const CONNECT: &str = "
To talk to a real model, give Narrows any endpoint that speaks Chat Completions, for example Ollama on this machine:

```sh
export OPENAI_BASE_URL=http://localhost:11434/v1
export OPENAI_MODEL=llama3.2
```

or a hosted one, with its URL in `OPENAI_BASE_URL` and your key in `OPENAI_API_KEY`. Settings that should last, and \
several endpoints side by side, belong in `narrows.toml`.
";

fn introduction(request: &Request) -> String {
    let offers = |name: &str| find(request, name).is_some();
    let mut text = WHO.to_owned();
    for (_, words) in WITH_TOOLS.iter().filter(|(tool, _)| offers(tool)) {
        text.push_str(words);
    }
    text.push_str(if request.tools.is_empty() { "" } else { ANY_TOOL });
    text.push_str(ALWAYS);
    text.push_str(if request.tools.is_empty() { NO_TOOLS } else { "" });
    text + CONNECT
}

const MARKDOWN: &str = "\
# A heading

Some *emphasis*, some **strength**, some `code`, and a [link](https://agentclientprotocol.com).

1. first
2. second
   - with a detail

| provider | base URL |
|---|---|
| Ollama | `http://localhost:11434/v1` |
| OpenAI | `https://api.openai.com/v1` |

```rust
fn main() {
    println!(\"Hello from the demo model\");
}
```

> That is all the markdown I know.
";

const THOUGHT: &str = "\
The person wants to see a thought. A real model would weigh possibilities here; I only say that I do. Then I answer.";

pub(super) fn answer(request: &Request) -> Answer {
    let results = results(&request.messages);
    if !results.is_empty() {
        let told: Vec<String> = results.iter().map(|result| result_text(result)).collect();
        return Answer::text(told.join("\n"));
    }
    let said = last_words(&request.messages);
    let said = said.trim();
    let (word, rest) = said.split_once(char::is_whitespace).unwrap_or((said, ""));
    let (word, rest) = match word.to_lowercase().as_str() {
        "please" => rest.trim_start().split_once(char::is_whitespace).unwrap_or((rest.trim_start(), "")),
        _ => (word, rest),
    };
    let rest = rest.trim();
    match word.to_lowercase().as_str() {
        "read" => with_file(request, "read_file", rest, "I will read"),
        "write" => with_file(request, "write_file", rest, "I will write"),
        "edit" => with_file(request, "edit_file", rest, "I will edit"),
        "run" => run(request, rest),
        "plan" => call(request, "update_plan", "", "Here is a plan.\n"),
        "call" => call_any(request, rest),
        "think" => Answer {
            thought: THOUGHT.to_owned(),
            ..Answer::text("I have thought, and I am still a demo model.\n")
        },
        "markdown" => Answer::text(MARKDOWN),
        _ => Answer::text(introduction(request)),
    }
}

/// Returns the tool results that follow the last answer.
fn results(messages: &[Message]) -> Vec<&ToolResult> {
    let mut results: Vec<_> = messages
        .iter()
        .rev()
        .map_while(|message| match message {
            Message::Tool(result) => Some(result),
            _ => None,
        })
        .collect();
    results.reverse();
    results
}

fn last_words(messages: &[Message]) -> String {
    let content = messages.iter().rev().find_map(|message| match message {
        Message::User { content } => Some(content),
        _ => None,
    });
    let texts = content.into_iter().flatten().filter_map(|part| match part {
        Part::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn with_file(request: &Request, tool: &str, rest: &str, saying: &str) -> Answer {
    let path = arguments::path(rest);
    if path.is_empty() {
        return Answer::text(format!(
            "Which file? Say the word, then its path, as in `{} README.md`.\n",
            verb(tool)
        ));
    }
    if tool == "edit_file" && !rest.contains(arguments::ARROW) {
        return Answer::text("What shall I change? Say `edit PATH OLD -> NEW`.\n");
    }
    call(request, tool, rest, &format!("{saying} {path}.\n"))
}

fn verb(tool: &str) -> &str {
    tool.split('_').next().unwrap_or(tool)
}

fn run(request: &Request, command: &str) -> Answer {
    if command.is_empty() {
        return Answer::text("Which command? Say it after the word, as in `run ls`.\n");
    }
    call(request, "run_command", command, &format!("I will run `{command}`.\n"))
}

fn call(request: &Request, name: &str, rest: &str, saying: &str) -> Answer {
    match find(request, name) {
        Some(tool) => Answer {
            call: Some((tool.name.clone(), arguments::build(name, tool, rest))),
            ..Answer::text(saying)
        },
        None => Answer::text(format!(
            "I cannot: there is no tool `{name}` in this session.{}\n",
            offered(request)
        )),
    }
}

/// Returns the tool `name`, or an equivalent tool that a client provides through MCP.
fn find<'a>(request: &'a Request, name: &str) -> Option<&'a Tool> {
    let lent = match name {
        "read_file" => "narrows__read_text_file",
        "write_file" => "narrows__write_text_file",
        "run_command" => "narrows__run_command",
        _ => name,
    };
    let named = |name: &str| request.tools.iter().find(|tool| tool.name == name);
    named(name).or_else(|| named(lent))
}

fn call_any(request: &Request, rest: &str) -> Answer {
    let (name, json) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if !request.tools.iter().any(|tool| tool.name == name) {
        return Answer::text(format!("There is no tool `{name}`.{}\n", offered(request)));
    }
    let arguments = match json.trim() {
        "" => Value::Object(serde_json::Map::new()),
        json => match serde_json::from_str::<Value>(json) {
            Ok(arguments) if arguments.is_object() => arguments,
            _ => {
                return Answer::text(
                    "The text after the tool's name must be a JSON object, such as `{\"path\": \"a\"}`.\n",
                );
            }
        },
    };
    Answer { call: Some((name.to_owned(), arguments)), ..Answer::text(format!("I will call `{name}`.\n")) }
}

fn offered(request: &Request) -> String {
    if request.tools.is_empty() {
        return " No tools are available.".to_owned();
    }
    let names: Vec<String> = request.tools.iter().map(|tool| format!("`{}`", tool.name)).collect();
    format!(" Available tools: {}.", names.join(", "))
}

fn result_text(result: &ToolResult) -> String {
    let text: Vec<&str> = result
        .content
        .iter()
        .filter_map(|part| match part {
            Part::Text { text } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let text = text.join("\n");
    let name = &result.name;
    if result.failed {
        let lower = text.to_lowercase();
        let refused = ["refus", "reject", "denied", "not allowed", "permission", "declin"];
        let what = if refused.iter().any(|word| lower.contains(word)) { "was refused" } else { "failed" };
        return format!("`{name}` {what}, so nothing came of it.\n{}", quote(&text));
    }
    match text.trim().lines().count() {
        0 => format!("`{name}` is done and returned no text.\n"),
        1 => format!("`{name}` is done. It gave one line:\n{}", quote(&text)),
        lines => format!("`{name}` is done. It gave {lines} lines:\n{}", quote(&text)),
    }
}

fn quote(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        return String::new();
    }
    let mut block = String::from("\n");
    for line in text.lines().take(SHOWN_LINES) {
        block.push_str("    ");
        block.extend(line.chars().take(SHOWN_WIDTH));
        block.push_str(if line.chars().nth(SHOWN_WIDTH).is_some() { "…\n" } else { "\n" });
    }
    if text.lines().nth(SHOWN_LINES).is_some() {
        block.push_str("    …\n");
    }
    block
}
