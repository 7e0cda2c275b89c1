//! Lines run by real shells: in user, mount, PID and network namespaces of their own, as a user without privileges, in a
//! root with nothing in it but the shells, a canary and a few harmless programs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long one line may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Programs in the root beside the canary.
const PROGRAMS: [&str; 9] = ["bash", "dash", "cat", "env", "xargs", "nice", "timeout", "true", "ls"];

/// Runs every line with every shell, and tells which is begun and which ran the canary. Processes that a line leaves
/// behind hold the pipe, so it is waited for them.
const DRIVER: &str = r#"
ulimit -t 1 -f 2048 -n 64 -v 2000000
cd /work
i=$1 shells=${2:-"bash dash"}
while [ -e "/lines/$i" ]; do
  line=$(</lines/$i)
  for shell in $shells; do
    : >/out/ran; : >/dev/null
    echo "begun $i $shell" >&3
    (exec /bin/env -i PATH=/bin HOME=/work "/bin/$shell" -c "$line" 3>&-) </dev/null 2>&1 |
      while IFS= read -r _; do :; done 3>&-
    [ -s /out/ran ] && echo "ran $i $shell" >&3
  done
  shells="bash dash" i=$((i + 1))
done
echo "end $i -" >&3
"#;

/// A root for lines to run in.
pub(crate) struct Namespace {
    directory: PathBuf,
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
    /// Prepares a root, and tries whether lines can be run in it.
    pub(crate) fn new() -> Result<Self, String> {
        let directory = std::env::temp_dir().join(format!("narrows-differential-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|error| error.to_string())?;
        let namespace = Self { directory };
        namespace.fill().map_err(|error| format!("no root: {error}"))?;
        let tried = namespace.run(&["canary".to_owned(), "true".to_owned()]);
        if tried != [vec!["bash", "dash"], vec![]] {
            return Err(format!("no namespaces, or no `unshare` for them: {tried:?}"));
        }
        Ok(namespace)
    }

    fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    fn fill(&self) -> std::io::Result<()> {
        let root = self.root();
        for name in ["bin", "dev", "lines", "out", "tmp", "work"] {
            fs::create_dir_all(root.join(name))?;
        }
        for name in PROGRAMS {
            let program =
                ["/bin", "/usr/bin"].iter().map(|at| Path::new(at).join(name)).find(|path| path.exists());
            let program = program.ok_or_else(|| std::io::Error::other(format!("there is no {name}")))?;
            copy(&program, &root.join("bin").join(name))?;
            // What the loader needs, where it looks for it.
            let libraries = Command::new("ldd").arg(&program).output()?;
            for word in String::from_utf8_lossy(&libraries.stdout).split_whitespace() {
                let target = root.join(word.trim_start_matches('/'));
                if word.starts_with('/') && !target.exists() {
                    fs::create_dir_all(target.parent().unwrap_or(&root))?;
                    copy(Path::new(word), &target)?;
                }
            }
        }
        let write = |name: &str, text: &str, mode: u32| {
            fs::write(root.join(name), text)?;
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode))
        };
        write("bin/canary", "#!/bin/dash\necho ran >>/out/ran\n", 0o555)?;
        write("driver", DRIVER, 0o444)?;
        write("out/ran", "", 0o666)?;
        write("dev/null", "", 0o666)?;
        for name in ["canary", "x", "can", "-x"] {
            write(&format!("work/{name}"), "", 0o444)?;
        }
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
        for name in ["bin", "work", ""] {
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o555))?;
        }
        Ok(())
    }

    /// Runs the lines, and tells for each which shells ran the canary.
    pub(crate) fn run(&self, lines: &[String]) -> Vec<Vec<&'static str>> {
        let root = self.root();
        let _ = fs::remove_dir_all(root.join("lines"));
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).expect("the root is ours");
        fs::create_dir(root.join("lines")).expect("the root is ours");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o555)).expect("the root is ours");
        for (at, line) in lines.iter().enumerate() {
            fs::write(root.join("lines").join(at.to_string()), line).expect("the root is ours");
        }
        let mut sang = vec![Vec::new(); lines.len()];
        // Where to go on after a line that does not end, and with which shells.
        let (mut from, mut shells) = (0, "");
        loop {
            match self.batch(from, shells, &mut sang) {
                Stopped::Ended => return sang,
                Stopped::At(line, "bash") => (from, shells) = (line, "dash"),
                Stopped::At(line, _) => (from, shells) = (line + 1, ""),
            }
        }
    }

    /// Runs lines in one namespace until all are done, or one does not end.
    fn batch(&self, from: usize, shells: &str, sang: &mut [Vec<&'static str>]) -> Stopped {
        let mut child = self.start(from, shells);
        let output = child.stdout.take().expect("it is piped");
        let (tell, told) = mpsc::sync_channel(16);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        let mut at = (from, if shells.is_empty() { "bash" } else { "dash" });
        let mut ended = false;
        while let Ok(line) = told.recv_timeout(TIMEOUT) {
            let mut words = line.split(' ');
            let (what, number, shell) = (words.next(), words.next(), words.next());
            let number: usize = number.and_then(|number| number.parse().ok()).unwrap_or(at.0);
            let shell = if shell == Some("bash") { "bash" } else { "dash" };
            match what {
                Some("begun") => at = (number, shell),
                Some("ran") => sang[number].push(shell),
                _ => ended = true,
            }
        }
        // `unshare` takes everything in the namespace with it.
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

/// How a batch stopped.
enum Stopped {
    Ended,
    /// In this line, by this shell.
    At(usize, &'static str),
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::copy(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o555))
}
