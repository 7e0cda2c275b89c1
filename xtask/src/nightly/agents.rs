//! Third-party agents, driven by the client. They are installed from their publishers and run without a
//! key.
//!
//! Each agent has its own home below the target directory and uses a scripted model, so that no request
//! leaves the machine. Installed agents are kept: delete `target/agents` to fetch the newest releases.

mod bounded;
mod catalogue;
mod install;
mod script;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Outcome;
use crate::command::{cargo, target, tool};
use crate::step::{Failure, Steps};
use bounded::End;
use catalogue::{KITS, Kit, Try};
use script::{ANSWER, CONTENT, Script, WAIT, WRITE};
use table::{Came, Row};

/// Timeout of one command. The timeouts of `narrows` are shorter.
const AGENT_TIMEOUT: Duration = Duration::from_secs(150);

/// The environment variable that marks the processes of one command.
const MARK: &str = "NARROWS_NIGHTLY_MARK";

/// Installs and drives the agents, and shows the results.
pub(super) fn run() -> Result<Outcome, Failure> {
    let mut steps = Steps::new("agents");
    steps.run("build narrows", cargo(&["build", "--package", "narrows"]))?;
    let failed = |error: std::io::Error| Failure { code: 1, message: format!("agents: {error}") };
    let place = target().join("agents");
    let work = place.join("work");
    fs::create_dir_all(&work).map_err(failed)?;
    let made = work.join("made.txt");
    let script = Script::start(made.clone()).map_err(failed)?;
    let bench = Bench { place, work, made, port: script.port, narrows: target().join("debug/narrows") };
    let mut rows = Vec::new();
    for kit in &KITS {
        eprintln!("\n==> {}", kit.name);
        bench.drive(kit, &mut rows);
    }
    println!("\n{}", table::shown(&rows));
    table::verdict(&rows)
}

struct Bench {
    place: PathBuf,
    work: PathBuf,
    /// The file that the agents must write in `work`.
    made: PathBuf,
    port: u16,
    narrows: PathBuf,
}

impl Bench {
    /// Tries everything with one agent.
    fn drive(&self, kit: &Kit, rows: &mut Vec<Row>) {
        let home = self.place.join("homes").join(kit.directory());
        let installed = install::program(kit, &self.place.join("installed").join(kit.directory()));
        let program = match installed {
            Ok(program) => program,
            Err(reason) => {
                rows.push(Row::new(kit.name, "install", Came::Skipped(reason)));
                return;
            }
        };
        let first = rows.len();
        let mut version = None;
        for &what in kit.tries {
            let came = match self.attempt(kit, &program, &home, what) {
                Ok(end) => {
                    version = version.or_else(|| version_of(&end.out));
                    Came::Well(format!("{:.1} s", end.took.as_secs_f64()))
                }
                Err(problem) => Came::Badly(problem),
            };
            let row = Row::new(kit.name, what.title(), came);
            eprintln!("    {}: {}", row.tried, row.came);
            rows.push(row);
        }
        for row in &mut rows[first..] {
            row.version.clone_from(&version);
        }
    }

    /// Runs one try in a new home, independent of the try before.
    fn attempt(&self, kit: &Kit, program: &Path, home: &Path, what: Try) -> Result<End, String> {
        let told = |error: std::io::Error| format!("the setup failed: {error}");
        let mark = format!("{}-{}-{what:?}", std::process::id(), kit.directory());
        if home.exists() {
            fs::remove_dir_all(home).map_err(told)?;
        }
        fs::create_dir_all(home).map_err(told)?;
        if self.made.exists() {
            fs::remove_file(&self.made).map_err(told)?;
        }
        if let Some((path, text)) = kit.file.filter(|_| what.is_scripted()) {
            let path = home.join(path);
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(told)?;
            fs::write(path, self.ported(text)).map_err(told)?;
        }
        let config = home.join("narrows.toml");
        fs::write(&config, self.config(kit, program, home, what, &mark)).map_err(told)?;
        let mut command = tool(&self.narrows.to_string_lossy(), &words(what));
        command.arg("--config").arg(&config).env(MARK, &mark);
        if what != Try::Probe {
            command.arg("--cwd").arg(&self.work);
        }
        let end = bounded::run(command, home, AGENT_TIMEOUT).map_err(told)?;
        let left = bounded::left_behind(&format!("{MARK}={mark}"));
        if !left.is_empty() {
            return Err(format!("these processes were left: {}", left.join(", ")));
        }
        judged(what, &end)?;
        if what == Try::Write && fs::read_to_string(&self.made).unwrap_or_default().trim() != CONTENT {
            return Err("the file was not written".to_owned());
        }
        Ok(end)
    }

    /// Returns the agent's entry in `narrows.toml`, with the default variables and those of its kit.
    fn config(&self, kit: &Kit, program: &Path, home: &Path, what: Try, mark: &str) -> String {
        let mut command = vec![program.to_string_lossy().into_owned()];
        command.extend(kit.words.iter().map(|word| (*word).to_owned()));
        let command: Vec<String> = command.iter().map(|word| quoted(word)).collect();
        let mut env = vec![(MARK, mark.to_owned()), ("HOME", home.to_string_lossy().into_owned())];
        for (variable, directory) in [
            ("XDG_CONFIG_HOME", ".config"),
            ("XDG_DATA_HOME", ".local/share"),
            ("XDG_STATE_HOME", ".local/state"),
            ("XDG_CACHE_HOME", ".cache"),
        ] {
            env.push((variable, home.join(directory).to_string_lossy().into_owned()));
        }
        let script = kit.variables.iter().filter(|_| what.is_scripted());
        env.extend(kit.always.iter().chain(script).map(|(name, value)| (*name, self.ported(value))));
        let env: Vec<String> =
            env.iter().map(|(name, value)| format!("{name} = {}", quoted(value))).collect();
        format!(
            "[agents.it]\ncommand = [{}]\nclean-env = true\n\n[agents.it.env]\n{}\n",
            command.join(", "),
            env.join("\n")
        )
    }

    fn ported(&self, text: &str) -> String {
        text.replace("PORT", &self.port.to_string())
    }
}

fn words(what: Try) -> Vec<&'static str> {
    const RUN: [&str; 5] = ["run", "--agent", "it", "--output", "json"];
    const SAY: &str = concat!("Say: ", "The script says this.");
    match what {
        Try::Probe => vec!["agents", "--probe", "it", "--timeout", "60s"],
        Try::Login | Try::Answer => [&RUN[..], &["--timeout", "60s", SAY]].concat(),
        Try::Write => [&RUN[..], &["--timeout", "60s", WRITE]].concat(),
        Try::Cancel => [&RUN[..], &["--timeout", "8s", WAIT]].concat(),
    }
}

fn judged(what: Try, end: &End) -> Result<(), String> {
    if end.is_late {
        return Err(format!("it hung and was killed after {} s", AGENT_TIMEOUT.as_secs()));
    }
    let answer = format!("{ANSWER}\",\"stopReason\":\"end_turn\"");
    let beginning = format!("{}\",\"stopReason\":\"cancelled\"", script::halves().0);
    let (code, words) = match what {
        Try::Probe => (0, "\nsession   "),
        Try::Login => (1, "the agent wants you to log in"),
        Try::Answer | Try::Write => (0, &*answer),
        Try::Cancel => (7, &*beginning),
    };
    if end.code == Some(code) && end.out.contains(words) {
        return Ok(());
    }
    let found = end.code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
    Err(format!("expected exit code {code} and `{}`, found {found}: {}", words.trim(), end.last_words()))
}

/// Returns the version in the output of a probe: the last word after `agent`.
fn version_of(probe: &str) -> Option<String> {
    let line = probe.lines().find_map(|line| line.strip_prefix("agent "))?;
    line.split_whitespace().next_back().map(str::to_owned)
}

/// Returns `text` as a string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(what: Try, code: i32, out: &str, expected: Result<(), &str>) {
        let end = End { code: Some(code), out: out.to_owned(), ..End::default() };
        assert_eq!(judged(what, &end), expected.map_err(str::to_owned));
    }

    #[test]
    fn only_the_expected_exit_is_a_success() {
        let answer = format!("{{\"text\":\"Well. {ANSWER}\",\"stopReason\":\"end_turn\"}}");
        check(Try::Answer, 0, &answer, Ok(()));
        check(Try::Write, 0, &answer, Ok(()));
        check(Try::Probe, 0, "agent     x 1\nsession   could be opened\n", Ok(()));
        check(Try::Login, 1, "error: the agent wants you to log in first", Ok(()));
        check(Try::Cancel, 7, r#"{"text":"Well. The script","stopReason":"cancelled"}"#, Ok(()));
        check(
            Try::Login,
            1,
            "died",
            Err("expected exit code 1 and `the agent wants you to log in`, found exit code 1: died"),
        );
        check(Try::Probe, 5, "gone", Err("expected exit code 0 and `session`, found exit code 5: gone"));
        let late = End { is_late: true, out: answer, code: Some(0), ..End::default() };
        assert_eq!(judged(Try::Answer, &late), Err("it hung and was killed after 150 s".to_owned()));
    }

    #[test]
    fn the_prompt_contains_the_expected_answer() {
        assert!(words(Try::Answer).last().is_some_and(|prompt| prompt.ends_with(ANSWER)));
    }

    #[test]
    fn the_version_is_the_last_word_after_the_name() {
        assert_eq!(version_of("agent     Open Code 1.2\nprotocol  x\n").as_deref(), Some("1.2"));
        assert_eq!(version_of("error: no\n"), None);
    }

    #[test]
    fn an_agent_without_a_login_does_not_use_the_script() {
        let place = PathBuf::from("p");
        let bench = Bench {
            work: place.join("w"),
            made: place.join("m"),
            narrows: place.join("n"),
            place,
            port: 4321,
        };
        for kit in KITS.iter().filter(|kit| !kit.variables.is_empty()) {
            let config = |what| bench.config(kit, Path::new("a \"b\""), Path::new("home"), what, "mark");
            assert!(config(Try::Answer).contains("http://127.0.0.1:4321"), "{}", kit.name);
            assert!(!config(Try::Login).contains("http://"), "{}", kit.name);
            assert!(config(Try::Login).contains(r#"command = ["a \"b\"""#), "{}", kit.name);
        }
    }
}
