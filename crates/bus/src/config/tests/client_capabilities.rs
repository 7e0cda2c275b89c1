//! Tests of `client_capabilities`.

use std::path::Path;

use super::super::read;

#[test]
fn unknown_client_capabilities_are_warnings() {
    let check = |said: &str, expected: &[&str]| {
        let text = format!(
            "[[listen]]\nurl = \"stdio:\"\n[[pool]]\ncommand = [\"a\"]\nshare = \"all\"\nclient_capabilities = {said}\n"
        );
        let (_, warnings) = read(&text, Path::new("bus.toml"), None).unwrap();
        let findings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(findings.len(), expected.len(), "{findings:?}");
        findings
            .iter()
            .zip(expected)
            .for_each(|(finding, words)| assert!(finding.contains(words), "{finding}"));
    };
    check("{ fs = { readTextFile = true, writeTextFile = true }, terminal = true, _meta = { a = 1 } }", &[]);
    check(
        "{ fs = { readTextFiles = true, write_text_file = true }, terminals = true, x = 1 }",
        &[
            "`readTextFiles` is not a client capability of ACP; did you mean `readTextFile`?",
            "did you mean `writeTextFile`?",
            "did you mean `terminal`?",
            "`x` is not a client capability of ACP",
        ],
    );
    check("{ fs = true }", &[]);
}
