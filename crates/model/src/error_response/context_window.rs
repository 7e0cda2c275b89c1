//! Finds the size of the context window in a provider's error message.

const BEFORE: [&str; 14] = [
    "maximum context length is ",
    "maximum context length of ",
    "maximum context length: ",
    "maximum prompt length is ",
    "maximum model length of ",
    "maximum input length of ",
    "available context size (",
    "maximum number of tokens allowed (",
    "context length of only ",
    "context length is only ",
    "context length of ",
    "context window of ",
    "context window is ",
    "while limit is ",
];

const AFTER: [&str; 4] =
    [" maximum context length", " token context window", " tokens context window", " maximum"];

/// Finds the window size in an error message in lower case.
pub(super) fn from_text(text: &str) -> Option<u64> {
    let before = BEFORE.iter().flat_map(|words| text.match_indices(words));
    let before = before.filter_map(|(at, words)| first(&text[at + words.len()..])).next();
    let after = || {
        let after = AFTER.iter().flat_map(|words| text.match_indices(words));
        after.filter_map(|(at, _)| last(&text[..at])).next()
    };
    before.or_else(after)
}

fn first(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !is_part(letter)).unwrap_or(text.len());
    size(&text[..end])
}

fn last(text: &str) -> Option<u64> {
    let start = text
        .rfind(|letter: char| !is_part(letter))
        .map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    size(&text[start..])
}

fn is_part(letter: char) -> bool {
    letter.is_ascii_digit() || letter == ','
}

/// Parses a number with or without commas. Returns `None` for a number that cannot be a window size.
fn size(digits: &str) -> Option<u64> {
    let number: u64 = digits.replace(',', "").parse().ok()?;
    (1..=1_000_000_000).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<u64>) {
        assert_eq!(from_text(text), expected, "{text}");
    }

    #[test]
    fn sizes_are_found() {
        check("this model's maximum context length is 8192 tokens. however, you requested 9000", Some(8192));
        check("maximum context length is 128,000, or", Some(128_000));
        check("the request exceeds the available context size (256 tokens), try", Some(256));
        check("input (1200000) exceeds the maximum number of tokens allowed (1048576).", Some(1_048_576));
        check("prompt is too long: 210000 tokens > 200000 maximum", Some(200_000));
        check("65536 tokens, too large for model with 32768 maximum context length", Some(32_768));
        check("current length is 8197 while limit is 8192", Some(8192));
        check("maximum prompt length is 131072 but the request contains 537812 tokens", Some(131_072));
    }

    #[test]
    fn no_size_is_found_in_other_texts() {
        check("", None);
        check("maximum context length is", None);
        check("maximum context length is exceeded", None);
        check("maximum context length is 0 tokens", None);
        check("maximum context length is 99999999999999999999999", None);
        check("the é maximum", None);
        check("9000 tokens are too many", None);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(maximum context length is | maximum|[0-9,é ]){0,12}") {
            from_text(&text);
        }

        #[test]
        fn any_size_is_parsed(size in 1..=1_000_000_000u64) {
            prop_assert_eq!(from_text(&format!("maximum context length is {size} tokens")), Some(size));
        }
    }
}
