//! Suggestions for misspelled names.

/// Maximum length of a word for which a suggestion is searched. Comparing longer words takes long, and they
/// are probably no misspelled names.
const MAX_CHARS: usize = 64;

/// Returns the candidate that `word` was probably meant to be, if one is similar enough.
///
/// Case and separators do not count. A candidate that equals `word` is not a suggestion.
pub fn nearest<S: AsRef<str>>(word: &str, candidates: impl IntoIterator<Item = S>) -> Option<S> {
    if word.chars().nth(MAX_CHARS).is_some() {
        return None;
    }
    let normalized = normalize(word);
    if normalized.is_empty() {
        return None;
    }
    let limit = ((normalized.len() + 1) / 3).clamp(1, 3);
    candidates
        .into_iter()
        .filter(|candidate| candidate.as_ref() != word)
        .map(|candidate| (distance(&normalized, &normalize(candidate.as_ref())), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn normalize(text: &str) -> Vec<char> {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Returns the number of edits between two words. Swapping two neighbors is one edit.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let (mut above, mut two_above) = (row.clone(), row.clone());
    for (i, from) in a.iter().enumerate() {
        two_above.clone_from(&above);
        above.clone_from(&row);
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = above[j] + usize::from(from != to);
            let mut least = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                least = least.min(two_above[j - 1] + 1);
            }
            row[j + 1] = least;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(word: &str, candidates: &[&str], expected: Option<&str>) {
        assert_eq!(nearest(word, candidates.iter().copied()), expected, "{word}");
    }

    #[test]
    fn a_misspelled_name_is_recognized() {
        let keys = ["pool", "max_line", "listen"];
        for (word, expected) in [
            ("max_lines", "max_line"),
            ("maxline", "max_line"),
            ("maxLine", "max_line"),
            ("pol", "pool"),
            ("lisetn", "listen"),
        ] {
            check(word, &keys, Some(expected));
        }
        let fields = ["governance", "operator", "acp_rev", "tier"];
        for (word, expected) in [
            ("govenance", "governance"),
            ("Governance", "governance"),
            ("acpRev", "acp_rev"),
            ("teir", "tier"),
            ("tire", "tier"),
            ("tie", "tier"),
            ("operators", "operator"),
            ("teirs", "tier"),
        ] {
            check(word, &fields, Some(expected));
        }
    }

    #[test]
    fn unrelated_words_get_no_suggestion() {
        check("colour", &["pool", "max_line", "listen"], None);
        check("vendor", &["governance", "operator", "acp_rev", "tier"], None);
        check("rite", &["tier"], None);
        check("something", &["hello", "echo", "hang", "goose"], None);
        for word in ["", "-", &"x".repeat(1000)] {
            check(word, &["x", "y"], None);
        }
        check("pool", &["pool"], None);
    }

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
            ("modle", "model", 1),
            ("ab", "ba", 1),
        ] {
            let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
            assert_eq!((distance(&a, &b), distance(&b, &a)), (expected, expected), "{a:?} {b:?}");
        }
    }
}
