//! The results: a table for people, and the overall outcome.

use std::fmt;

use super::Outcome;
use crate::step::Failure;

#[derive(Debug)]
pub(super) enum Came {
    /// The try succeeded, with this remark.
    Well(String),
    Badly(String),
    /// The try was skipped, for this reason.
    Skipped(String),
}

impl fmt::Display for Came {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Well(more) => write!(f, "ok, {more}"),
            Self::Badly(problem) => write!(f, "FAILED: {problem}"),
            Self::Skipped(reason) => write!(f, "SKIPPED: {reason}"),
        }
    }
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) agent: &'static str,
    pub(super) version: Option<String>,
    pub(super) tried: &'static str,
    pub(super) came: Came,
}

impl Row {
    /// Creates a line. The version is not known yet.
    pub(super) fn new(agent: &'static str, tried: &'static str, came: Came) -> Self {
        Self { agent, version: None, tried, came }
    }
}

pub(super) fn shown(rows: &[Row]) -> String {
    let mut lines = vec![["agent", "version", "tried", "outcome"].map(str::to_owned)];
    lines.extend(rows.iter().map(|row| {
        let version = row.version.clone().unwrap_or_else(|| "-".to_owned());
        [row.agent.to_owned(), version, row.tried.to_owned(), row.came.to_string()]
    }));
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let [agents, versions, tries] = [width(0), width(1), width(2)];
    lines
        .iter()
        .map(|[agent, version, tried, came]| {
            format!("{agent:agents$}  {version:versions$}  {tried:tries$}  {came}\n")
        })
        .collect()
}

/// Returns the outcome. A run with a skipped try does not count as passed.
pub(super) fn verdict(rows: &[Row]) -> Result<Outcome, Failure> {
    let of = |is: fn(&Came) -> bool| -> Vec<String> {
        let chosen = rows.iter().filter(|row| is(&row.came));
        chosen.map(|row| format!("{} ({})", row.agent, row.tried)).collect()
    };
    let failed = of(|came| matches!(came, Came::Badly(_)));
    if !failed.is_empty() {
        return Err(Failure { code: 1, message: format!("agents: these failed: {}", failed.join(", ")) });
    }
    let skipped = of(|came| matches!(came, Came::Skipped(_)));
    if skipped.is_empty() {
        return Ok(Outcome::Passed);
    }
    let well = of(|came| matches!(came, Came::Well(_))).len();
    let reason =
        format!("these were not tried: {}; of the others, {well} tries went well", skipped.join(", "));
    Ok(Outcome::Skipped(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns rows: `+` succeeded, `-` was skipped, anything else failed.
    fn rows(ends: &str) -> Vec<Row> {
        let names = ["one", "two", "three"];
        let row = |(agent, end)| {
            let came = match end {
                '+' => Came::Well("1 s".to_owned()),
                '-' => Came::Skipped("it rains".to_owned()),
                _ => Came::Badly("it broke".to_owned()),
            };
            Row::new(agent, "run", came)
        };
        names.into_iter().zip(ends.chars()).map(row).collect()
    }

    #[track_caller]
    fn check(ends: &str, expected: &str) {
        let verdict = match verdict(&rows(ends)) {
            Ok(Outcome::Passed) => "passed".to_owned(),
            Ok(Outcome::Skipped(reason)) => format!("skipped: {reason}"),
            Err(failure) => format!("failed with {}: {}", failure.code, failure.message),
        };
        assert_eq!(verdict, expected);
    }

    #[test]
    fn skipped_tries_do_not_count_as_passed() {
        check("++", "passed");
        check("+-", "skipped: these were not tried: two (run); of the others, 1 tries went well");
        check("-!+", "failed with 1: agents: these failed: two (run)");
    }

    #[test]
    fn columns_are_aligned() {
        let mut rows = rows("+-!");
        rows[2].version = Some("1.2".to_owned());
        let expected = "agent  version  tried  outcome\n\
                        one    -        run    ok, 1 s\n\
                        two    -        run    SKIPPED: it rains\n\
                        three  1.2      run    FAILED: it broke\n";
        assert_eq!(shown(&rows), expected);
    }
}
