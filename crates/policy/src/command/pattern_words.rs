//! Splits a command pattern of a rule into words. The pattern has no shell syntax.

/// Characters that have a meaning in a shell, and are not allowed in a command pattern.
const SYNTAX: &[char] = &[';', '&', '|', '<', '>', '$', '`', '(', ')', '\n', '\r', '\0'];

/// Splits `line` at blanks. Quotes of either kind keep a word together.
pub(crate) fn split(line: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ' | '\t') => words.extend(word.take()),
            (None, _) if SYNTAX.contains(&letter) => {
                return Err("a command pattern has no shell syntax: put special characters in quotes");
            }
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed");
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: Option<&[&str]>) {
        assert_eq!(
            split(line).ok(),
            expected.map(|words| words.iter().map(|word| (*word).to_owned()).collect())
        );
    }

    #[test]
    fn words_are_split_at_blanks() {
        check("git push", Some(&["git", "push"]));
        check("  git\tpush **  ", Some(&["git", "push", "**"]));
        check("echo 'a b' \"c;d\" e'f'", Some(&["echo", "a b", "c;d", "ef"]));
        check("echo ''", Some(&["echo", ""]));
        check("", Some(&[]));
        check("a 'b", None);
        check("a; b", None);
        check("a $B", None);
    }
}
