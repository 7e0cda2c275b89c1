//! Compares the programs that shells really run with the decisions of the policy.
//!
//! Random lines are run by bash and dash, and in turn by zsh, ksh and mksh if they are installed. They run
//! in namespaces with a root of their own, where the only program of interest is a canary. Every line that
//! ran it must have been denied: by a rule that denies the canary at high access, by low access, and by low
//! access with rules that allow the harmless programs of the lines.
//!
//! `NARROWS_DIFFERENTIAL_LINES` sets the number of lines, and `NARROWS_DIFFERENTIAL_SEED` selects them.
//! With `NARROWS_DIFFERENTIAL_REQUIRED` the test fails where it would be skipped.

mod grammar;
mod namespace;

use narrows_policy::{Access, Action, Command, Confined, Narrowing, Policy, RequestContext, Rules, Verdict};

use grammar::Grammar;
use namespace::Namespace;

const LINES: u64 = 300;

/// Number of lines that share a namespace.
const BATCH: usize = 500;

const DENIED: &str = "[[rule]]\neffect = \"deny\"\ncommand = \"canary\"\n";

const ALLOWED: &str = r#"
[[rule]]
effect = "allow"
command = [
  "echo **", "true **", ": **", "[ **", "[[ **", "test **", "printf **", "ls **", "cat **", "env", "x **", "a **",
  "read **", "declare **", "export **", "let **", "unset **", "set **", "x=1", "exit **", "cd **", "false **",
]
"#;

fn policy(access: Access, rules: &str) -> Policy {
    let (rules, _) = Rules::parse(rules, "policy.toml").expect("good rules");
    Policy::new(access, Narrowing::default()).with_rules(rules)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns `true` if a shell of the line runs the file that the line writes: a documented limit of rules
/// about commands.
fn runs_written_file(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_run = |pair: &[&str]| pair[0].ends_with("sh") && pair[1] == "/tmp/p";
    line.contains("> /tmp/p") && words.windows(2).any(is_run)
}

#[test]
fn only_a_shell_with_the_written_file_runs_it() {
    assert!(runs_written_file("printf canary > /tmp/p & zsh  /tmp/p"));
    for line in ["printf canary > /tmp/p & zsh < /tmp/p", "zsh /tmp/p", "cat > /tmp/p; cat /tmp/p"] {
        assert!(!runs_written_file(line), "{line}");
    }
}

#[test]
fn every_line_that_runs_the_canary_was_denied() {
    let count = number("NARROWS_DIFFERENTIAL_LINES").unwrap_or(LINES);
    let seed = number("NARROWS_DIFFERENTIAL_SEED").unwrap_or(1);
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(reason) => {
            let required = std::env::var_os("NARROWS_DIFFERENTIAL_REQUIRED").is_some();
            assert!(!required, "lines were not run: {reason}");
            eprintln!("SKIPPED, lines were not run: {reason}");
            return;
        }
    };
    for shell in namespace.missing_shells() {
        eprintln!("SKIPPED, not installed: {shell}");
    }
    let policies = [
        ("high access with a deny rule", policy(Access::High, DENIED)),
        ("low access", policy(Access::Low, "")),
        ("low access with allow rules", policy(Access::Low, ALLOWED)),
    ];
    let roots = [std::path::PathBuf::from("/work")];
    let context =
        RequestContext { roots: &roots, confined: Confined::default(), ..RequestContext::default() };
    let allows = |policy: &Policy, line: &str| {
        let action = Action::execute(Command::Shell(line.to_owned()), None);
        policy.decide(&action, &context).verdict == Verdict::Allow
    };
    let mut grammar = Grammar::new(seed);
    let (mut ran, mut harmless, mut left) = (0, 0, count);
    let mut missed = Vec::new();
    while left > 0 {
        let lines: Vec<String> = (0..left.min(BATCH as u64)).map(|_| grammar.line()).collect();
        left -= lines.len() as u64;
        let sang = namespace.run(&lines);
        for (line, shells) in lines.iter().zip(sang) {
            if shells.is_empty() {
                harmless += u64::from(allows(&policies[0].1, line));
                continue;
            }
            ran += 1;
            for (name, policy) in &policies {
                if allows(policy, line) && !runs_written_file(line) {
                    missed.push(format!("{name} allows, {} ran the canary: {line:?}", shells.join(" and ")));
                }
            }
        }
    }
    eprintln!("{count} lines, seed {seed}: {ran} ran the canary, {harmless} did not and were allowed");
    assert!(missed.is_empty(), "seed {seed}, {} missed:\n{}", missed.len(), missed.join("\n"));
    // A test that runs nothing proves nothing, and neither does one with a policy that denies everything.
    assert!(ran * 10 > count && harmless * 50 > count, "{ran} and {harmless} of {count}");
}
