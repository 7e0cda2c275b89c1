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

/// How many characters must be put in, taken out, replaced or swapped with their neighbours to make one from the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
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
    fn check(wanted: &str, expected: Option<&str>) {
        assert_eq!(nearest(wanted, ["governance", "operator", "acp_rev", "tier"]), expected, "{wanted}");
    }

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        check("govenance", Some("governance"));
        check("Governance", Some("governance"));
        check("acpRev", Some("acp_rev"));
        check("teir", Some("tier"));
        check("tire", Some("tier"));
        check("rite", None);
        check("tie", Some("tier"));
        check("operators", Some("operator"));
        check("vendor", None);
        check("", None);
        check(&"x".repeat(1000), None);
    }
}
