//! Command-line options of the measurement.

use std::time::Duration;

/// A contender that can be named on the command line.
pub(crate) trait Named {
    fn name(&self) -> &str;
}

/// The command line of one bench.
pub(crate) struct Form<C> {
    pub(crate) bench: &'static str,
    /// The default contenders.
    pub(crate) contenders: Vec<C>,
    pub(crate) rows: Vec<&'static str>,
    /// Creates a peer from the three arguments of `--peer`. The first one is the name.
    pub(crate) peer: fn([String; 3]) -> C,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options<C> {
    pub(crate) contenders: Vec<C>,
    pub(crate) rows: Vec<String>,
    /// Duration of each measurement in a round.
    pub(crate) time: Duration,
    pub(crate) rounds: usize,
}

/// Limit of a measurement in seconds, because request numbers have seven digits.
const MAX_SECONDS: f64 = 15.0;

impl<C: Named> Options<C> {
    pub(crate) fn read(form: Form<C>, words: &[String]) -> Result<Self, String> {
        let Form { bench, mut contenders, rows: keys, peer } = form;
        let (mut rows, mut only) = (None, None);
        // Many short turns: with them, a router compared with itself comes out even on a busy machine; with
        // few long ones it does not.
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
                    let named = [value()?, value()?, value()?];
                    if contenders.iter().any(|other| other.name() == named[0]) {
                        return Err(format!("there is already a `{}`", named[0]));
                    }
                    contenders.push(peer(named));
                }
                _ => return Err(format!("`{word}` is not an option of `{bench}`")),
            }
        }
        if let Some(only) = only {
            known(&only, contenders.iter().map(Named::name))?;
            contenders.retain(|contender| only.iter().any(|name| name == contender.name()));
        }
        let rows = rows.unwrap_or_else(|| keys.iter().map(|&key| key.to_owned()).collect());
        known(&rows, keys.into_iter())?;
        Ok(Self { contenders, rows, time, rounds })
    }
}

fn listed(words: &str) -> Vec<String> {
    words.split(',').map(str::to_owned).collect()
}

fn seconds(word: &str) -> Result<Duration, String> {
    let number = word.parse().ok().filter(|number| (0.05..=MAX_SECONDS).contains(number));
    number
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`--seconds` takes a number from 0.05 to {MAX_SECONDS}"))
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

    #[derive(Debug)]
    struct Anybody(String);

    impl Named for Anybody {
        fn name(&self) -> &str {
            &self.0
        }
    }

    fn read(words: &str) -> Result<Options<Anybody>, String> {
        let form = Form {
            bench: "race",
            contenders: ["direct", "null"].map(|name| Anybody(name.to_owned())).into(),
            rows: vec!["small", "medium", "idle"],
            peer: |[name, ..]| Anybody(name),
        };
        Options::read(form, &words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn everything_is_measured_by_default() {
        let options = read("").expect("options");
        assert_eq!(options.rows, ["small", "medium", "idle"]);
        let options = read("--rows small,idle --seconds 0.5 --rounds 2 --peer c cmd file --only null,c");
        let options = options.expect("options");
        assert_eq!(options.rows, ["small", "idle"]);
        assert_eq!((options.time, options.rounds), (Duration::from_millis(500), 2));
        let names: Vec<&str> = options.contenders.iter().map(Named::name).collect();
        assert_eq!(names, ["null", "c"]);
    }

    #[test]
    fn invalid_options_are_refused() {
        for (words, expected) in [
            ("--rows smal", "there is no `smal`; there are small, medium"),
            ("--rows", "`--rows` needs a value"),
            ("--peer c cmd", "`--peer` needs a value"),
            ("--peer null cmd file", "there is already a `null`"),
            ("--seconds 0", "`--seconds` takes"),
            ("--seconds NaN", "`--seconds` takes"),
            ("--rounds 0", "`--rounds` takes"),
            ("--only you", "there is no `you`; there are direct, null"),
            ("small", "`small` is not an option of `race`"),
        ] {
            let problem = read(words).expect_err(words);
            assert!(problem.starts_with(expected), "{words}: {problem}");
        }
    }
}
