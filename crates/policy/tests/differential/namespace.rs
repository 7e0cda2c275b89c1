//! Runs lines with real shells: in user, mount, PID and network namespaces of their own, as an unprivileged
//! user, in a root with only the shells, a canary and a few harmless programs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(1);

/// Programs in the root, in addition to the canary.
const PROGRAMS: [&str; 9] = ["bash", "dash", "cat", "env", "xargs", "nice", "timeout", "true", "ls"];

/// Programs that are included if they are installed.
const MORE_PROGRAMS: [&str; 11] =
    ["sh", "rev", "tr", "tee", "sed", "head", "find", "setarch", "linux64", "busybox", "sleep"];

/// Names of versions and builds, all of which run bash.
const VERSIONS: [&str; 3] = ["bash5", "bash-static", "sh.distrib"];

const SHELLS: [&str; 2] = ["bash", "dash"];

/// Shells that take turns, if they are installed.
const MORE_SHELLS: [&str; 3] = ["zsh", "ksh", "mksh"];

/// Runs every line with every shell, and reports each started shell and each that ran the canary. Processes
/// that a line leaves behind hold the pipe, so the script waits for them.
const DRIVER: &str = r#"
ulimit -t 1 -f 2048 -n 64 -v 2000000
cd /work
i=$1 shells=$2
while [ -e "/lines/$i" ]; do
  line=$(</lines/$i)
  for shell in ${shells:-$(</lines/$i.shells)}; do
    flags=; [ "$shell" = zsh ] && flags=-f
    : >/out/ran; : >/dev/null
    echo "begun $i $shell" >&3
    (exec /bin/env -i PATH=/bin HOME=/work "/bin/$shell" $flags -c "$line" 3>&-) </dev/null 2>&1 |
      while IFS= read -r _; do :; done 3>&-
    [ -s /out/ran ] && echo "ran $i $shell" >&3
  done
  shells= i=$((i + 1))
done
echo "end $i -" >&3
"#;

/// A root in which lines run.
pub(crate) struct Namespace {
    directory: PathBuf,
    /// The installed shells of `MORE_SHELLS`.
    more_shells: Vec<&'static str>,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for name in ["", "bin", "work"] {
            let _ = fs::set_permissions(self.root().join(name), fs::Permissions::from_mode(0o755));
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Namespace {
    pub(crate) fn new() -> Result<Self, String> {
        let directory = std::env::temp_dir().join(format!("narrows-differential-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| error.to_string())?;
        let mut namespace = Self { directory, more_shells: Vec::new() };
        namespace.fill().map_err(|error| format!("no root: {error}"))?;
        let lines = ["canary", "true", "bash < <(echo canary)", "echo canary > >(bash)", ". <(echo canary)"];
        let tried = namespace.run(&lines.map(str::to_owned));
        let bash = vec!["bash"];
        if tried != [SHELLS.to_vec(), vec![], bash.clone(), bash.clone(), bash] {
            return Err(format!("no namespaces, no /proc in them, or no `unshare`: {tried:?}"));
        }
        namespace.more_shells =
            MORE_SHELLS.into_iter().filter(|name| namespace.root().join("bin").join(name).exists()).collect();
        Ok(namespace)
    }

    pub(crate) fn missing_shells(&self) -> Vec<&'static str> {
        MORE_SHELLS.into_iter().filter(|name| !self.more_shells.contains(name)).collect()
    }

    fn shells(&self, line: usize) -> Vec<&'static str> {
        let turn = self.more_shells.get(line % self.more_shells.len().max(1));
        SHELLS.into_iter().chain(turn.copied()).collect()
    }

    fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    fn fill(&self) -> std::io::Result<()> {
        let root = self.root();
        for name in ["bin", "dev", "lines", "out", "proc", "tmp", "work"] {
            fs::create_dir_all(root.join(name))?;
        }
        for name in PROGRAMS.into_iter().chain(MORE_PROGRAMS).chain(MORE_SHELLS) {
            let program =
                ["/bin", "/usr/bin"].iter().map(|at| Path::new(at).join(name)).find(|path| path.exists());
            let program = match program {
                Some(program) => program,
                None if PROGRAMS.contains(&name) => {
                    return Err(std::io::Error::other(format!("there is no {name}")));
                }
                None => continue,
            };
            copy(&program, &root.join("bin").join(name))?;
            // Copies the libraries of the program to the paths where the loader looks for them.
            let libraries = Command::new("ldd").arg(&program).output()?;
            for word in String::from_utf8_lossy(&libraries.stdout).split_whitespace() {
                let target = root.join(word.trim_start_matches('/'));
                if word.starts_with('/') && !target.exists() {
                    fs::create_dir_all(target.parent().unwrap_or(&root))?;
                    copy(Path::new(word), &target)?;
                }
            }
        }
        for name in VERSIONS {
            symlink("bash", root.join("bin").join(name))?;
        }
        let write = |name: &str, text: &str, mode: u32| {
            fs::write(root.join(name), text)?;
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode))
        };
        write("bin/canary", "#!/bin/dash\necho ran >>/out/ran\n", 0o555)?;
        write("driver", DRIVER, 0o444)?;
        write("out/ran", "", 0o666)?;
        write("dev/null", "", 0o666)?;
        for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
            symlink(format!("/proc/self/fd{target}"), root.join("dev").join(name))?;
        }
        for name in ["canary", "x", "can", "-x"] {
            write(&format!("work/{name}"), "", 0o444)?;
        }
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
        for name in ["bin", "work", ""] {
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o555))?;
        }
        Ok(())
    }

    /// Runs the lines, and returns for each the shells that ran the canary.
    pub(crate) fn run(&self, lines: &[String]) -> Vec<Vec<&'static str>> {
        let root = self.root();
        let _ = fs::remove_dir_all(root.join("lines"));
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).expect("the root is ours");
        fs::create_dir(root.join("lines")).expect("the root is ours");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o555)).expect("the root is ours");
        for (at, line) in lines.iter().enumerate() {
            fs::write(root.join("lines").join(at.to_string()), line).expect("the root is ours");
            fs::write(root.join("lines").join(format!("{at}.shells")), self.shells(at).join(" "))
                .expect("the root is ours");
        }
        let mut sang = vec![Vec::new(); lines.len()];
        // The line at which to continue after a line that does not end, and the shells left for it.
        let (mut from, mut left) = (0, Vec::new());
        loop {
            match self.batch(from, &left, &mut sang) {
                Stopped::Ended => return sang,
                Stopped::At(line, shell) => {
                    left = self.shells(line).into_iter().skip_while(|name| *name != shell).skip(1).collect();
                    from = if left.is_empty() { line + 1 } else { line };
                }
            }
        }
    }

    /// Runs lines in one namespace until all are done, or one does not end.
    fn batch(&self, from: usize, shells: &[&'static str], sang: &mut [Vec<&'static str>]) -> Stopped {
        let mut child = self.start(from, &shells.join(" "));
        let output = child.stdout.take().expect("it is piped");
        let (tell, told) = mpsc::sync_channel(16);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let mut at = (from, shells.first().copied().unwrap_or(SHELLS[0]));
        let mut ended = false;
        while let Ok(line) = told.recv_timeout(TIMEOUT) {
            let mut words = line.split(' ');
            let (what, number, shell) = (words.next(), words.next(), words.next());
            let number: usize = number.and_then(|number| number.parse().ok()).unwrap_or(at.0);
            let named = SHELLS.into_iter().chain(MORE_SHELLS).find(|name| shell == Some(name));
            match (what, named) {
                (Some("begun"), Some(shell)) => at = (number, shell),
                (Some("ran"), Some(shell)) => sang[number].push(shell),
                _ => ended = true,
            }
        }
        // `unshare` ends everything in the namespace.
        let _ = child.kill();
        let _ = child.wait();
        drop(told);
        let _ = reader.join();
        if ended || at.0 >= sang.len() {
            return Stopped::Ended;
        }
        if fs::read(self.root().join("out/ran")).is_ok_and(|ran| !ran.is_empty())
            && !sang[at.0].contains(&at.1)
        {
            sang[at.0].push(at.1);
        }
        Stopped::At(at.0, at.1)
    }

    fn start(&self, from: usize, shells: &str) -> Child {
        let root = self.root();
        let privileged = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
        let unshare = "unshare --user --map-user=1000 --map-group=1000 --mount --pid --net --ipc --uts --fork --kill-child";
        let drop = if privileged { "setpriv --reuid=65534 --regid=65534 --clear-groups " } else { "" };
        let words = format!("{drop}{unshare}");
        let mut words = words.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .arg(format!("--root={}", root.display()))
            .args([
                "--mount-proc=/proc",
                "--wd=/",
                "/bin/bash",
                "--norc",
                "--noprofile",
                "-c",
                "exec 3>&1 >/dev/null 2>&1; . /driver",
                "driver",
            ])
            .args([&from.to_string(), shells])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
            .spawn()
            .unwrap_or_else(|_| Command::new("true").stdout(Stdio::piped()).spawn().expect("`true` runs"))
    }
}

enum Stopped {
    Ended,
    At(usize, &'static str),
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::copy(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o555))
}
