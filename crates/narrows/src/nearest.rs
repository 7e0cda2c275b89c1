//! What somebody may have meant who wrote something else.

/// The candidate that is nearest to `wanted`, if one is near enough to be worth mentioning.
pub(crate) fn nearest<S: AsRef<str>>(wanted: &str, candidates: impl IntoIterator<Item = S>) -> Option<S> {
    let limit = (wanted.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (distance(wanted, candidate.as_ref()), candidate))
        .filter(|(distance, _)| (1..=limit).contains(distance))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many characters must be put in, taken out, replaced or swapped with their neighbours to make one from the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut last = before.clone();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        before.clone_from(&last);
        last.clone_from(&row);
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(from != to);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                least = least.min(before[j - 1] + 1);
            }
            row[j + 1] = least;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_nonsense_is_not() {
        #[track_caller]
        fn check(wanted: &str, expected: Option<&str>) {
            assert_eq!(nearest(wanted, ["hello", "echo", "hang", "goose"]), expected, "{wanted}");
        }
        check("helo", Some("hello"));
        check("echoo", Some("echo"));
        check("gose", Some("goose"));
        check("hnag", Some("hang"));
        check("xyz", None);
        check("something", None);
        check("", None);
    }

    #[test]
    fn distances() {
        for (a, b, expected) in
            [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("modle", "model", 1)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }
}
