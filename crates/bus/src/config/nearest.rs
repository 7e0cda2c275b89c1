//! The name that was probably meant.

/// The one of `known` that is nearest to `wanted`, if one is near enough to be worth mentioning.
pub(super) fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A longer text is no slip of a known name, and would take long to compare.
    if wanted.len() > 100 {
        return None;
    }
    let limit = (wanted.chars().count() / 3).clamp(1, 3);
    let near = known.into_iter().map(|name| (distance(wanted, name), name));
    near.filter(|(distance, _)| (1..=limit).contains(distance))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// How many characters must be put in, taken out, replaced or swapped with their neighbours to make one from the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut last = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let next = Vec::with_capacity(row.len());
        let before = std::mem::replace(&mut last, std::mem::replace(&mut row, next));
        row.push(i + 1);
        for (j, to) in b.iter().enumerate() {
            let mut least = (last[j] + usize::from(from != to)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_nonsense_is_not() {
        for (wanted, expected) in [
            ("max_lines", Some("max_line")),
            ("maxline", Some("max_line")),
            ("pol", Some("pool")),
            ("lisetn", Some("listen")),
            ("pool", None),
            ("", None),
            ("colour", None),
        ] {
            assert_eq!(nearest(wanted, ["pool", "max_line", "listen"]), expected, "{wanted}");
        }
        for (a, b, expected) in
            [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("flaw", "lawn", 2), ("ab", "ba", 1)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (expected, expected), "{a} {b}");
        }
    }
}
