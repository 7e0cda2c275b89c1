//! What can be asked of the measurement on its command line.

use std::time::Duration;

use super::contender::{Contender, Peer};
use super::rows;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) contenders: Vec<Contender>,
    /// The keys of the rows.
    pub(super) rows: Vec<String>,
    /// How long each is measured in a round.
    pub(super) time: Duration,
    pub(super) rounds: usize,
}

/// The longest that is measured at once: the numbers of requests have seven digits.
const LONGEST: f64 = 15.0;

impl Options {
    /// Reads the words behind `bus`.
    pub(super) fn read(words: &[String]) -> Result<Self, String> {
        let mut contenders = vec![Contender::Direct, Contender::Null, Contender::Narrows];
        let (mut rows, mut only) = (None, None);
        // Many short turns: a router against itself then comes out even on a busy machine too; few long ones do not.
        let (mut time, mut rounds) = (Duration::from_millis(300), 15);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| format!("`{word}` needs a value"));
            match word.as_str() {
                "--rows" => rows = Some(listed(&value()?)),
                "--only" => only = Some(listed(&value()?)),
                "--seconds" => time = seconds(&value()?)?,
                "--rounds" => {
                    let number = value()?;
                    let number = number.parse().ok().filter(|number| (1..=100).contains(number));
                    rounds = number.ok_or("`--rounds` takes a number from 1 to 100")?;
                }
                "--peer" => {
                    let (name, command, config) = (value()?, value()?, value()?.into());
                    if contenders.iter().any(|other| other.name() == name) {
                        return Err(format!("there is already a `{name}`"));
                    }
                    contenders.push(Contender::Peer(Peer { name, command, config }));
                }
                _ => return Err(format!("`{word}` is no option of `bus`")),
            }
        }
        if let Some(only) = only {
            known(&only, contenders.iter().map(Contender::name))?;
            contenders.retain(|contender| only.iter().any(|name| name == contender.name()));
        }
        let rows = rows.unwrap_or_else(|| rows::keys().map(str::to_owned).collect());
        known(&rows, rows::keys())?;
        Ok(Self { contenders, rows, time, rounds })
    }
}

fn listed(words: &str) -> Vec<String> {
    words.split(',').map(str::to_owned).collect()
}

fn seconds(word: &str) -> Result<Duration, String> {
    let number = word.parse().ok().filter(|number| (0.05..=LONGEST).contains(number));
    number
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`--seconds` takes a number from 0.05 to {LONGEST}"))
}

fn known<'a>(words: &[String], all: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let all: Vec<&str> = all.collect();
    match words.iter().find(|word| !all.contains(&word.as_str())) {
        Some(word) => Err(format!("there is no `{word}`; there are {}", all.join(", "))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Options, String> {
        Options::read(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn everything_is_measured_unless_told_otherwise() {
        let options = read("").expect("options");
        assert_eq!(options.rows.len(), 9);
        let options = read("--rows small,idle --seconds 0.5 --rounds 2 --peer c cmd file --only null,c");
        let options = options.expect("options");
        assert_eq!(options.rows, ["small", "idle"]);
        assert_eq!((options.time, options.rounds), (Duration::from_millis(500), 2));
        let names: Vec<&str> = options.contenders.iter().map(Contender::name).collect();
        assert_eq!(names, ["null", "c"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (words, expected) in [
            ("--rows smal", "there is no `smal`; there are small, medium"),
            ("--rows", "`--rows` needs a value"),
            ("--peer c cmd", "`--peer` needs a value"),
            ("--peer null cmd file", "there is already a `null`"),
            ("--seconds 0", "`--seconds` takes"),
            ("--seconds NaN", "`--seconds` takes"),
            ("--rounds 0", "`--rounds` takes"),
            ("--only you", "there is no `you`; there are direct, null, narrows"),
            ("small", "`small` is no option"),
        ] {
            let problem = read(words).expect_err(words);
            assert!(problem.starts_with(expected), "{words}: {problem}");
        }
    }
}
