//! Work is linear in the length of a request: one message of an agent must not block all others.
//!
//! Every input consists of the smallest parts of its kind. Work that is quadratic in their number exceeds
//! the time limit of the test runner.

use std::path::PathBuf;

use narrows_policy::Verdict::Allow;
use narrows_policy::{
    Access, Action, BudgetUsage, Class, Command, DecisionReason, GovernanceRule, GovernanceRuleset, Policy,
    RequestContext, Variable,
};
use serde_json::{Value, json};

use crate::common::{policy, roots};

const RULES: &str = r#"
[[rule]]
effect = "deny"
command = ["git push", "rm -rf", "npm run *"]

[[rule]]
effect = "ask"
path = ["secrets", "**/*.lock", "src/*/x"]

[[rule]]
effect = "deny"
url = ["example.com", "https://*.example.org/a/**"]

[[rule]]
effect = "deny"
tool = "x*y"
server = "*a*b"

[[rule]]
effect = "allow"
command = ["ls **", "make *"]
env = ["A*"]
"#;

/// Maximum length of a message in these tests.
const MESSAGE_BYTES: usize = 1 << 20;

/// Maximum length of a command that is read.
const COMMAND_BYTES: usize = 128 << 10;

const SIGNS: &[&str] = &[
    "(", ")", "((", "${a", "${a}", "${a[", "{", "{a,", "{a,b}", "}", "[", "[a", "[a]", "$(", "$((", "$((1))",
    "`", "'", "\"", "\"$(", "\"${a:-", "\\", "\\\n", "\n", "a\n", "\n(\n", ";", "a;", "a|", "a&", "a&&",
    ";;", "#", "# a\n",
];

const LANGUAGE: &[&str] = &[
    "case a in a) ",
    "case ",
    "if ",
    "for a in a; do ",
    "while ",
    "{ ",
    "! ",
    "time ",
    "a=",
    "a= ",
    "a=(",
    "a[1]=1 ",
    "<",
    ">",
    ">a ",
    "<a ",
    "<<a\n",
    "<<a\na\n",
    "<<a ",
    "(<<a)",
    "<<<a ",
    "<<'a' ",
    "<(",
    ">(",
    "&>a ",
    "&>a ! ",
    "a <<b\nb\n",
    "sh <<b\nb\n",
    "sh <<b\na\nb\n",
    "a <<b\n$a\nb\n",
    "sed <<b\na\nb\n",
];

const WORDS: &[&str] = &[
    "*", "?", "*/", "?a/", "?a ", "a/", "/", "../", "./", "~", "~/", ".e* ", "a ", "a,", "a=a", "a:", "@a",
    "-a", "-a ", "--a ", "--a=a ", "-", "$a", "$a ", "$'a'", "$'\\x", "=a ", "0>", "\0", "é", "é ", " ",
    "\t", "a://b ",
];

/// Programs, most of which examine the following words.
const PROGRAMS: &[&str] = &[
    "sudo ",
    "env ",
    "sh -c ",
    "sh -c 'a' ",
    "sh -c 'a';",
    "eval ",
    "xargs ",
    "find ",
    "-exec ",
    "git ",
    "git -c a=b ",
    "cd a;",
    "cd a && ",
    "echo a;",
    "python3 -c a;",
    "sed e ",
    "sed e;",
    "perl ",
    "curl a ",
    "curl a;",
    "PAGER=a ",
    "PAGER=a;",
    "export a=a;",
    "declare a=$b;",
    "test a -eq b;",
    "a=$b;",
    "[[ a ",
    "[[ a ]];",
    "]]",
    "ls;",
    "ls *;",
    "cat ?a;",
    "printf a;",
    "read a;",
    "let a=1;",
    "for a in b; do c; done;",
    "f() { a; };",
    "(a);",
    "$(a);",
];

/// Words that are examined together with all following ones.
const BEGINNINGS: &[&str] = &[
    "",
    "sudo ",
    "env ",
    "sh -c ",
    "find . -exec ",
    "xargs ",
    "git ",
    "git -c ",
    "python3 -c '",
    "sed ",
    "cd a; ",
    "cd a; cd b; cd c; ",
    "curl ",
    "cp ",
    "[[ ",
    "test ",
    "declare ",
    "read ",
    "X=",
    "echo ",
    "case a in ",
    "a=(",
    "$(",
    "`",
    "\"",
    "${x:-",
    "cat <<EOF\n",
    "sh <<EOF\n",
    "python3 <<EOF\n",
];

fn repeated(part: &str, bytes: usize) -> String {
    part.repeat(bytes / part.len())
}

fn guarded_policy() -> Policy {
    let rules = vec![
        GovernanceRule::new("paths", "workspace.write", Class::Deny)
            .with_subject("workspace:/secrets/**")
            .expect("a subject"),
        GovernanceRule::new("tools", "tool.call", Class::RequireApproval)
            .with_subject("x*y")
            .expect("a subject"),
    ];
    policy(Access::High, RULES).with_ruleset(GovernanceRuleset::new(rules))
}

fn judge(policy: &Policy, action: &Action) -> Class {
    let roots = roots();
    let context = RequestContext { roots: &roots, ..RequestContext::default() };
    policy.decide_governed(action, &context, &BudgetUsage::EMPTY).class
}

fn judge_lines(beginnings: &[&str], parts: &[&str], bytes: usize) {
    let policy = guarded_policy();
    for (beginning, part) in beginnings.iter().flat_map(|first| parts.iter().map(move |part| (first, part))) {
        let line = format!("{beginning}{}", repeated(part, bytes));
        judge(&policy, &Action::execute(Command::Shell(line), None));
    }
}

#[test]
fn a_command_of_signs_costs_in_proportion_to_its_length() {
    judge_lines(&[""], SIGNS, COMMAND_BYTES);
}

#[test]
fn a_command_of_redirections_costs_in_proportion_to_its_length() {
    judge_lines(&[""], LANGUAGE, COMMAND_BYTES);
}

#[test]
fn a_command_of_words_costs_in_proportion_to_its_length() {
    judge_lines(&[""], WORDS, COMMAND_BYTES);
}

#[test]
fn a_command_of_programs_costs_in_proportion_to_its_length() {
    judge_lines(&[""], PROGRAMS, COMMAND_BYTES);
}

/// One scan of a long word per following character would exceed the time limit.
#[test]
fn punctuation_after_a_long_word_does_not_rescan_it() {
    let policy = guarded_policy();
    for sign in ["[", "|", ";", ")", "{", "a[", "<", "&", "$", "'' ", "{a,b}"] {
        for long in ["a", "a "] {
            let line = repeated(long, COMMAND_BYTES / 2) + &repeated(sign, COMMAND_BYTES / 2);
            judge(&policy, &Action::execute(Command::Shell(line), None));
        }
    }
}

/// With these prefixes, a few parts reach limits other than that of the length.
#[test]
fn prefixes_of_a_command_do_not_multiply_its_cost() {
    const SMALL: &[&str] = &[
        "a ", "-a ", "a=a ", "git ", "git -a ", "a;", "a\n", "*a ", "$a ", "?a/", "a,", "e;", "(", "<<a ",
        ">a ", "$'a'", "sh -c a;",
    ];
    judge_lines(BEGINNINGS, SMALL, 4_000);
}

/// Every text counts towards the limit of all texts, at any depth.
#[test]
fn nested_texts_do_not_multiply_the_cost() {
    let policy = guarded_policy();
    for part in ["a ", "a;", "\\\n", "a \\\n"] {
        let mut text = repeated(part, COMMAND_BYTES / 4);
        for _ in 0..9 {
            text = format!("`{}`", text.replace('\\', "\\\\").replace('`', "\\`"));
            judge(&policy, &Action::execute(Command::Shell(text.clone()), None));
        }
    }
    let listed = format!("{}{{{}}}{}", "a".repeat(30_000), ",".repeat(30_000), "b".repeat(30_000));
    judge(&policy, &Action::execute(Command::Shell(listed), None));
}

#[test]
fn an_oversized_command_is_denied_unread() {
    let policy = guarded_policy();
    for part in [SIGNS, LANGUAGE, WORDS, PROGRAMS].concat() {
        let command = Command::Shell(repeated(part, MESSAGE_BYTES));
        let action = Action::execute(command.clone(), None);
        assert_eq!(judge(&policy, &action), Class::Deny, "{part:?}");
        assert!(command.is_same(&command.clone()));
    }
    let words = |word: &str, count: usize| Command::Argv(vec![word.to_owned(); count]);
    for command in [words("a", 60_000), words("-a", 60_000), words("sudo", 9_999), words("", 1 << 20)] {
        assert_eq!(judge(&policy, &Action::execute(command, None)), Class::Deny);
    }
}

fn items(item: fn(usize) -> Value, count: usize) -> Value {
    Value::Array((0..count).map(item).collect())
}

fn object(value: fn(usize) -> Value, count: usize) -> Value {
    Value::Object((0..count).map(|number| (format!("k{number}"), value(number))).collect())
}

fn text(number: usize) -> Value {
    json!(format!("/a/{number}"))
}

/// Many of each part that a request may have several times.
#[test]
fn an_input_costs_in_proportion_to_its_length() {
    let policy = guarded_policy();
    let line = Value::String(repeated("a;", 950));
    for input in [
        json!({"paths": items(text, 100_000)}),
        json!({"path": "a/".repeat(MESSAGE_BYTES / 2)}),
        json!({"paths": items(|_| json!("a/".repeat(2_000)), 250)}),
        json!({"cwd": "a/".repeat(MESSAGE_BYTES / 2), "command": "ls a b c"}),
        json!({"cwd": "a/".repeat(2_000), "command": repeated("a ", 8_000)}),
        json!({"cwd": "a/".repeat(2_000), "paths": items(text, 4_000)}),
        json!({"urls": items(|number| json!(format!("http://{number}/")), 60_000)}),
        json!({"url": format!("http://a/{}", "a/".repeat(MESSAGE_BYTES / 2))}),
        json!({"urls": items(|number| json!(format!("http://{number}/")), 4_000), "paths": items(text, 4_000)}),
        json!({"command": line, "paths": items(text, 4_000)}),
        json!({"command": line, "urls": items(|number| json!(format!("http://{number}/")), 4_000)}),
        json!({"command": line, "env": object(|_| json!("x y"), 4_000)}),
        json!({"command": "ls", "env": object(|_| json!("x y"), 60_000)}),
        json!({"command": "ls", "env": {"PAGER": repeated("a;", MESSAGE_BYTES)}}),
        json!({"command": "ls", "env": items(|number| json!(format!("A{number}=$(a)")), 60_000)}),
    ] {
        judge(&policy, &Action::read(Some("execute"), Some("xay"), &input, &[]));
    }
}

/// Many commands and changes in many places of an input.
#[test]
fn an_input_of_many_objects_costs_in_proportion_to_its_length() {
    let policy = guarded_policy();
    let patch: String = (0..80_000).map(|number| format!("+++ b/{number}\n")).collect();
    let both: String = (0..40_000).map(|number| format!("diff --git a/{number} b/{number}\n")).collect();
    let nested = |open: &str, close: &str| {
        serde_json::from_str(&format!("{}{}", open.repeat(100), close.repeat(100))).unwrap_or(Value::Null)
    };
    for input in [
        json!({"commands": items(|number| json!(format!("a{number}")), 19_000)}),
        json!({"commands": items(|number| json!(format!("a{number}")), 100_000)}),
        json!({"command": "ls", "args": items(text, 100_000)}),
        json!({"command": "ls", "stdin": repeated("a\n", MESSAGE_BYTES)}),
        json!({"steps": items(|number| json!({"command": format!("'{number}")}), 9_000)}),
        json!({"steps": items(|number| json!({"argv": ["a", number]}), 6_000)}),
        json!({"steps": items(|number| json!({"args": ["a", number]}), 6_000)}),
        json!({"changes": object(|_| json!({"x": 1}), 60_000)}),
        json!({"patch": patch}),
        json!({"patch": both}),
        json!({"patch": format!("diff --git {}", "a ".repeat(MESSAGE_BYTES / 2))}),
        json!({"patch": format!("diff --git {}", "\"a\" ".repeat(MESSAGE_BYTES / 4))}),
        json!({"values": items(|number| json!(number), 200_000)}),
        json!({"content": "x", "values": items(|number| json!(format!("../{number}")), 19_000)}),
        object(|number| json!(number), 60_000),
        nested("[", "]"),
        nested("{\"a\":", "}"),
    ] {
        judge(&policy, &Action::read(Some("edit"), Some("xay"), &input, &[]));
    }
    let locations: Vec<PathBuf> = (0..100_000).map(|number| PathBuf::from(format!("/a/{number}"))).collect();
    judge(&policy, &Action::read(Some("edit"), None, &Value::Null, &locations));
    let long = "x".repeat(MESSAGE_BYTES);
    judge(&policy, &Action::mcp(long.clone(), long, &json!({"a": 1})));
}

#[test]
fn content_costs_in_proportion_to_its_length() {
    let policy = guarded_policy();
    let diffs = |count: usize| -> Vec<Value> {
        (0..count)
            .map(|number| json!({"type": "diff", "path": format!("/a/{number}"), "newText": ""}))
            .collect()
    };
    let changes = json!({"type": "diff", "changes": (0..15_000).map(|number| json!({"operation": "add", "path": format!("/a/{number}")})).collect::<Vec<_>>()});
    for (content, expected) in
        [(diffs(4_000), Class::Allow), (diffs(40_000), Class::Deny), (vec![changes], Class::Deny)]
    {
        let action = Action::read(Some("edit"), None, &Value::Null, &[]).with_content(&content);
        let class = judge(&policy, &action);
        assert!(expected == Class::Allow || class == Class::Deny);
    }
}

/// A request that is too large to be judged is denied by every access preset, regardless of rules.
#[test]
fn oversized_requests_are_denied() {
    let allowing = "[[rule]]\neffect = 'allow'\nkind = '*'\n";
    let roots = roots();
    let context = RequestContext { roots: &roots, ..RequestContext::default() };
    let paths = |count: usize| (0..count).map(|number| PathBuf::from(format!("/home/me/project/{number}")));
    let many = Action { paths: paths(5_000).collect(), ..Action::new(narrows_policy::Kind::Read) };
    let some = Action { paths: paths(3_000).collect(), ..Action::new(narrows_policy::Kind::Read) };
    let steered = Action {
        env: (0..5_000).map(|number| Variable::new(format!("A{number}"), "")).collect(),
        ..Action::execute(Command::Shell("ls".to_owned()), None)
    };
    let deep = Action::file(narrows_policy::Kind::Read, "a/".repeat(3_000));
    for access in [Access::Low, Access::Medium, Access::High] {
        let policy = policy(access, allowing);
        for action in [&many, &steered, &deep] {
            assert_eq!(policy.decide(action, &context).because, DecisionReason::Unreadable);
        }
        assert_eq!(policy.decide(&some, &context).verdict, Allow);
    }
}
