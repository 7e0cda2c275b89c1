//! Runs the commands of the documentation, in the order in which each page shows them.
//!
//! All `sh` blocks of a page run in one bash with `set -e -o pipefail`. The home directory is empty; the current
//! directory has a copy of `examples`. A comment on the line before a block changes how it is used:
//!
//! - `<!-- not run: REASON -->`: the `sh` block is not run.
//! - `<!-- needs: PROGRAM … -->`: the page is skipped where a program is missing. `sandbox` means that commands can
//!   run in one.
//! - `<!-- status: N -->`: the last command of the block ends with this status.
//! - `<!-- background: COMMAND -->`: the block runs in the background; the next one follows when `COMMAND` succeeds.
//! - `<!-- file: NAME -->`: the block, in any language, is written to this file.
//! - `<!-- output -->`: the preceding `sh` block has printed these lines in this order; `…` is any text in a line.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::bus_support::NARROWS;
use crate::test_dir::{MARK, TestDir};

const PAGE_TIMEOUT: Duration = Duration::from_secs(50);

macro_rules! pages {
    ($($name:ident: $path:literal,)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(
            #[test]
            fn $name() {
                if let Err(need) = run_page($path) {
                    println!("{}: skipped, this machine has no {need}", $path);
                }
            }
        )*
    };
}

pages! {
    readme: "README.md",
    getting_started: "docs/getting-started.md",
    guide_drive_agents: "docs/guides/drive-agents.md",
    guide_editors: "docs/guides/editors.md",
    guide_govern_agents: "docs/guides/govern-agents.md",
    guide_migrate_from_stdio_bus: "docs/guides/migrate-from-stdio-bus.md",
    guide_remote_agents: "docs/guides/remote-agents.md",
    guide_share_agents: "docs/guides/share-agents.md",
    guide_test_clients: "docs/guides/test-clients.md",
    reference_status: "docs/reference/status-json.md",
    reference_wire_extensions: "docs/reference/wire-extensions.md",
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Run { line: usize, commands: String, mode: RunMode },
    File { name: String, content: String },
    Output { line: usize, lines: Vec<String> },
}

#[derive(Debug, PartialEq, Eq)]
enum RunMode {
    Success,
    Status(u8),
    /// The page goes on once this command succeeds.
    Background {
        ready: String,
    },
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    steps: Vec<Step>,
    /// Programs without which the page cannot run.
    needs: Vec<String>,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads the blocks of a page. Panics if a comment asks for something unknown.
fn read_page(text: &str) -> Page {
    let mut page = Page::default();
    let mut comment = None;
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let content: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            let (line, content) = (index + 1, content.join("\n"));
            match (comment.take().unwrap_or(("", "")), language) {
                (("not run", reason), "sh") => assert!(!reason.is_empty(), "line {line}: no reason"),
                ((kind @ ("" | "needs" | "status" | "background"), value), "sh") => {
                    let mode = match kind {
                        "status" => RunMode::Status(value.parse().expect("a status")),
                        "background" => RunMode::Background { ready: value.to_owned() },
                        _ => RunMode::Success,
                    };
                    let needs = if kind == "needs" { value } else { "" };
                    page.needs.extend(needs.split_whitespace().map(str::to_owned));
                    page.steps.push(Step::Run { line, commands: content, mode });
                }
                (("file", name), _) => page.steps.push(Step::File { name: name.to_owned(), content }),
                (("output", _), "text") => {
                    let lines = content.lines().map(str::to_owned).collect();
                    page.steps.push(Step::Output { line, lines });
                }
                ((other, _), _) => {
                    assert!(
                        other.is_empty(),
                        "line {line}: `{other}` does not apply to a `{language}` block"
                    );
                }
            }
        } else if !line.is_empty() {
            comment = line
                .strip_prefix("<!-- ")
                .and_then(|line| line.strip_suffix(" -->"))
                .map(|comment| comment.split_once(": ").unwrap_or((comment, "")))
                .filter(|(kind, _)| {
                    ["not run", "needs", "status", "background", "file", "output"].contains(kind)
                });
        }
    }
    page
}

/// Returns `true` if `line` is `expected`, in which `…` stands for any text.
fn matches_line(expected: &str, line: &str) -> bool {
    let (expected, line) = (expected.trim_end(), line.trim_end());
    let Some((start, rest)) = expected.split_once('…') else { return expected == line };
    let Some(mut line) = line.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('…').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = line.find(part) else { return false };
        line = &line[at + part.len()..];
    }
    line.ends_with(end)
}

/// Returns the first expected line that `printed` lacks behind those before it.
fn missing_line<'a>(expected: &'a [String], printed: &str) -> Option<&'a str> {
    let mut printed = printed.lines();
    expected.iter().find(|line| !printed.any(|printed| matches_line(line, printed))).map(String::as_str)
}

fn has_program(program: &str) -> bool {
    let path = std::env::var_os("PATH").expect("PATH");
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn has_sandbox(dir: &TestDir) -> bool {
    let explained = dir.narrows(["policy", "explain", "--", "ls"]).output().expect("narrows runs");
    explained.stdout.starts_with(b"allow")
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// Returns a loopback address that no other page uses at the same time: ports in pages are fixed.
fn loopback_address() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id().wrapping_mul(64).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    let [_, a, b, c] = number.to_be_bytes();
    format!("127.{}.{b}.{}", a | 1, c % 254 + 1)
}

/// Returns a script that runs all blocks and keeps the output of each in a file named by its line.
fn script(steps: &[Step], output: &Path) -> String {
    let mut script = String::from("set -e -o pipefail\ntrap 'jobs -p | xargs -r kill 2> /dev/null' EXIT\n");
    for (index, step) in steps.iter().enumerate() {
        match step {
            Step::Run { line, commands, mode } => {
                let to = format!("exec > '{}/{line}' 2>&1", output.display());
                match mode {
                    RunMode::Success => writeln!(script, "{to}\n{commands}"),
                    RunMode::Status(status) => {
                        writeln!(script, "{to}\nset +e\n{commands}\n[ $? = {status} ] || exit 1\nset -e")
                    }
                    RunMode::Background { ready } => writeln!(
                        script,
                        "({to}\n{commands}\n) &\nuntil {ready} > /dev/null 2>&1; do sleep 0.1; done"
                    ),
                }
                .expect("a line");
            }
            Step::File { name, content } => {
                let end = format!("END_OF_FILE_{index}");
                writeln!(script, "cat > '{name}' <<'{end}'\n{content}\n{end}").expect("a line");
            }
            Step::Output { .. } => {}
        }
    }
    script
}

/// Runs a page, or returns what this machine lacks for it.
fn run_page(path: &str) -> Result<(), String> {
    let address = loopback_address();
    let text = fs::read_to_string(repository().join(path)).expect(path).replace("127.0.0.1", &address);
    let page = read_page(&text);
    let dir = TestDir::new();
    for need in &page.needs {
        let has = if need == "sandbox" { has_sandbox(&dir) } else { has_program(need) };
        if !has {
            return Err(need.clone());
        }
    }
    let (home, output, work) = (dir.path().join("home"), dir.path().join("output"), dir.path().join("work"));
    for directory in [&home, &output, &work] {
        fs::create_dir(directory).expect("a directory");
    }
    copy_tree(&repository().join("examples"), &work.join("examples"));
    let program = Path::new(NARROWS).parent().expect("a directory");
    let search = format!("{}:{}", program.display(), std::env::var("PATH").expect("PATH"));
    let mut bash = Command::new("bash");
    bash.arg("-c").arg(script(&page.steps, &output)).env_clear().env("PATH", search).env("HOME", &home);
    bash.env(MARK, dir.mark()).current_dir(&work).process_group(0);
    bash.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut bash = bash.spawn().expect("bash");
    let deadline = Instant::now() + PAGE_TIMEOUT;
    let status = loop {
        match bash.try_wait().expect("a status") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            // sleep: other processes can only be polled
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    // A failed page leaves processes behind, which would keep its directory busy.
    let _ = kill_process_group(Pid::from_child(&bash), Signal::KILL);
    if status.is_none() {
        bash.wait().expect("the process ends");
    }
    let printed = |line: usize| fs::read_to_string(output.join(line.to_string())).unwrap_or_default();
    let mut last = 0;
    for step in &page.steps {
        match step {
            Step::Run { line, .. } if output.join(line.to_string()).exists() => last = *line,
            Step::Output { line, lines } => {
                let (missing, printed) = (missing_line(lines, &printed(last)), printed(last));
                assert!(missing.is_none(), "{path}:{line}: not printed: {missing:?}\nprinted:\n{printed}");
            }
            Step::Run { .. } | Step::File { .. } => {}
        }
    }
    let ended = status.map_or_else(|| "does not end".to_owned(), |status| format!("ended with {status}"));
    let success = status.is_some_and(|status| status.success());
    assert!(success, "{path}:{last}: the block {ended}, having printed:\n{}", printed(last));
    Ok(())
}

fn markdown_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            markdown_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn every_page_with_commands_is_run() {
    let root = repository();
    let mut found = vec![root.join("README.md")];
    markdown_files(&root.join("docs"), &mut found);
    let with_commands: Vec<String> = found
        .iter()
        .filter(|path| {
            let page = read_page(&fs::read_to_string(path).expect("a page"));
            page.steps.iter().any(|step| matches!(step, Step::Run { .. }))
        })
        .map(|path| path.strip_prefix(&root).expect("a path below").display().to_string())
        .collect();
    let missing: Vec<_> = with_commands.iter().filter(|page| !PAGES.contains(&page.as_str())).collect();
    assert!(missing.is_empty(), "not run: {missing:?}");
    let idle: Vec<_> = PAGES.iter().filter(|page| !with_commands.iter().any(|path| path == **page)).collect();
    assert!(idle.is_empty(), "without commands: {idle:?}");
}

#[test]
fn blocks_are_read_with_their_comments() {
    let page = "Text.\n\n```sh\necho one\n```\n\n<!-- output -->\n```text\none\n```\n\n<!-- not run: needs a key -->\n\
                ```sh\nsecret\n```\n<!-- file: a.toml -->\n\n```toml\nx = 1\n```\n<!-- needs: curl jq -->\n```sh\ncurl\n```\n\
                <!-- status: 9 -->\n```sh\nno\n```\n<!-- background: status -->\n```sh\nbus\n```\n\
                ```json\n{}\n```\n";
    let run = |line, commands: &str, mode| Step::Run { line, commands: commands.to_owned(), mode };
    let steps = vec![
        run(3, "echo one", RunMode::Success),
        Step::Output { line: 8, lines: vec!["one".to_owned()] },
        Step::File { name: "a.toml".to_owned(), content: "x = 1".to_owned() },
        run(22, "curl", RunMode::Success),
        run(26, "no", RunMode::Status(9)),
        run(30, "bus", RunMode::Background { ready: "status".to_owned() }),
    ];
    assert_eq!(read_page(page), Page { steps, needs: vec!["curl".to_owned(), "jq".to_owned()] });
}

#[test]
fn expected_lines_match_in_order_and_may_leave_text_open() {
    let printed = "one\ntwo words here \nthree\n";
    for (expected, missing) in [
        (&["one", "three"][..], None),
        (&["two … here"], None),
        (&["…wo…or…re"], None),
        (&["three", "one"], Some("one")),
        (&["two"], Some("two")),
        (&["two …x"], Some("two …x")),
    ] {
        let expected: Vec<String> = expected.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(missing_line(&expected, printed), missing);
    }
}
