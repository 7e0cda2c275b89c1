//! What somebody may have meant who wrote something else.

/// The candidate nearest to `wanted`, if one is near enough to be worth mentioning.
pub(crate) fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Nothing longer is a slip of the finger.
    const LONGEST: usize = 64;
    if wanted.chars().nth(LONGEST).is_some() {
        return None;
    }
    let plain = |text: &str| -> String {
        text.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    let wanted = plain(wanted);
    let limit = (wanted.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (distance(&wanted, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many characters must be put in, taken out or replaced to make one from the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(wanted: &str, expected: Option<&str>) {
        assert_eq!(nearest(wanted, ["governance", "operator", "acp_rev", "tier"]), expected, "{wanted}");
    }

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        check("govenance", Some("governance"));
        check("Governance", Some("governance"));
        check("acpRev", Some("acp_rev"));
        check("teir", None);
        check("tire", None);
        check("tie", Some("tier"));
        check("operators", Some("operator"));
        check("vendor", None);
        check("", None);
        check(&"x".repeat(1000), None);
    }
}
