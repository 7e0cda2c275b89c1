mod oracle;
#[cfg(target_os = "linux")]
mod race;
mod writing;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use serde_json::json;

use super::walk::PathResolver;
use super::*;

/// Maximum number of lookups of a file that changes concurrently.
const MAX_FIND_TRIES: usize = 8;

/// Access as in a session, but without a policy.
impl Files {
    fn read(&self, path: &Path, line: Option<u32>, limit: Option<u32>) -> Result<String, FileError> {
        self.retry(path, |found| found.read(line, limit))
    }

    fn write(&self, path: &Path, text: &str) -> Result<(), FileError> {
        self.retry(path, |found| found.write(text, WriteMode::Replace))
    }

    fn retry<T>(&self, path: &Path, act: impl Fn(&Found) -> Result<T, FileError>) -> Result<T, FileError> {
        let tries = (0..MAX_FIND_TRIES).map(|_| self.find(path).and_then(|found| act(&found)));
        let mut last = None;
        for outcome in tries {
            match outcome {
                Err(error) if *error.kind() == FileErrorKind::Changed => last = Some(error),
                outcome => return outcome,
            }
        }
        Err(last.unwrap())
    }
}

/// All resolvers that exist on this platform.
const RESOLVERS: &[PathResolver] = &[
    #[cfg(target_os = "linux")]
    PathResolver::Kernel,
    PathResolver::Walk,
];

struct Disk {
    _directory: tempfile::TempDir,
    /// Common parent directory, without links.
    top: PathBuf,
    root: PathBuf,
}

/// Returns a directory in memory, if the system has one: replacing thousands of files on disk is slow.
fn fast_directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl Disk {
    fn new() -> Self {
        Self::new_in(tempfile::tempdir().unwrap())
    }

    fn new_in(directory: tempfile::TempDir) -> Self {
        let top = directory.path().canonicalize().unwrap();
        let root = top.join("root");
        for name in ["root/sub", "out/sub"] {
            fs::create_dir_all(top.join(name)).unwrap();
        }
        for name in ["root/file", "root/sub/file", "out/file", "out/sub/file", "file"] {
            fs::write(top.join(name), name).unwrap();
        }
        Self { _directory: directory, top, root }
    }

    fn roots(&self, resolver: PathResolver) -> Arc<Roots> {
        Arc::new(Roots::open_with(resolver, std::slice::from_ref(&self.root)).unwrap())
    }

    fn files(&self, resolver: PathResolver) -> Files {
        Files::new(self.roots(resolver), Limits { read: 1000, write: 1000 })
    }

    fn link(&self, target: impl AsRef<Path>, place: &str) {
        symlink(target, self.top.join(place)).unwrap();
    }

    fn text(&self, place: &str) -> String {
        fs::read_to_string(self.top.join(place)).unwrap()
    }
}

/// Runs `test` once with each resolver, on a fresh disk.
fn each(test: impl Fn(&Disk, &Files)) {
    for resolver in RESOLVERS {
        let disk = Disk::new();
        test(&disk, &disk.files(*resolver));
    }
}

/// Like [`each`], with `/` as the root.
fn each_anywhere(test: impl Fn(&Disk, &Files)) {
    for resolver in RESOLVERS {
        let disk = Disk::new();
        let roots = Roots::open_with(*resolver, &["/".into()]).unwrap();
        test(&disk, &Files::new(Arc::new(roots), Limits { read: 1000, write: 1000 }));
    }
}

/// Checks the result of reading `place`, a path relative to the directory above the root.
#[track_caller]
fn check(disk: &Disk, files: &Files, place: &str, expected: &Result<&str, FileErrorKind>) {
    let result = files.read(&disk.top.join(place), None, None);
    let result = result.as_ref().map(String::as_str).map_err(|error| error.kind().clone());
    assert_eq!(&result, expected, "{place} {:?}", files.roots.resolver());
}

#[test]
fn this_system_uses_its_best_resolver() {
    let disk = Disk::new();
    let roots = Roots::open(std::slice::from_ref(&disk.root)).unwrap();
    assert_eq!(roots.resolver(), RESOLVERS[0]);
    assert_eq!(roots.paths().collect::<Vec<_>>(), [disk.root.as_path()]);
}

#[test]
fn lines_are_counted_from_one() {
    #[track_caller]
    fn check(line: Option<u32>, limit: Option<u32>, expected: &str) {
        assert_eq!(lines("a\r\nb\n\nd".to_owned(), line, limit), expected, "{line:?} {limit:?}");
    }
    check(None, None, "a\r\nb\n\nd");
    check(Some(1), None, "a\r\nb\n\nd");
    check(Some(0), Some(1), "a\r\n");
    check(Some(1), Some(2), "a\r\nb\n");
    check(Some(2), Some(2), "b\n\n");
    check(Some(4), Some(u32::MAX), "d");
    check(Some(5), None, "");
    check(Some(u32::MAX), Some(u32::MAX), "");
    check(None, Some(0), "");
}

#[test]
fn files_beneath_the_root_are_read() {
    each(|disk, files| {
        check(disk, files, "root/file", &Ok("root/file"));
        check(disk, files, "root/./sub//file", &Ok("root/sub/file"));
        check(disk, files, "root/sub/../file", &Ok("root/file"));
        check(disk, files, "root/../root/file", &Ok("root/file"));
        check(disk, files, "out/../root/file", &Ok("root/file"));
        check(disk, files, "root/none", &Err(FileErrorKind::NotFound));
        check(disk, files, "root/none/../file", &Err(FileErrorKind::NotFound));
        check(disk, files, "root/file/../file", &Err(FileErrorKind::NotFound));
        check(disk, files, "root/none/none/none", &Err(FileErrorKind::NotFound));
    });
}

#[test]
fn links_within_the_root_are_followed() {
    each(|disk, files| {
        disk.link("sub/file", "root/relative");
        disk.link(disk.root.join("sub/file"), "root/absolute");
        disk.link("sub", "root/directory");
        disk.link("../sub/../directory/file", "root/sub/around");
        disk.link("../root/file", "root/over");
        disk.link("relative", "root/twice");
        disk.link("none", "root/dangling");
        disk.link(disk.root.join("none"), "root/dangling-absolute");
        disk.link("root", "alias");
        for place in ["relative", "absolute", "directory/file", "sub/around", "twice"] {
            check(disk, files, &format!("root/{place}"), &Ok("root/sub/file"));
        }
        check(disk, files, "root/over", &Ok("root/file"));
        check(disk, files, "root/directory/../file", &Ok("root/file"));
        check(disk, files, "alias/file", &Ok("root/file"));
        check(disk, files, "alias/relative", &Ok("root/sub/file"));
        check(disk, files, "root/dangling", &Err(FileErrorKind::NotFound));
        check(disk, files, "root/dangling/x", &Err(FileErrorKind::NotFound));
        check(disk, files, "root/dangling-absolute", &Err(FileErrorKind::NotFound));
    });
}

#[test]
fn nothing_outside_is_read() {
    each(|disk, files| {
        disk.link("../out/file", "root/relative");
        disk.link(disk.top.join("out/file"), "root/absolute");
        disk.link("../out", "root/directory");
        disk.link(disk.top.join("out"), "root/absolute-directory");
        disk.link("../../out/file", "root/sub/up");
        disk.link("directory", "root/twice");
        disk.link("/", "root/top");
        disk.link("/proc/self/root", "root/magic");
        disk.link("/proc/self/cwd/Cargo.toml", "root/here");
        disk.link("../out/none", "root/dangling");
        disk.link("root", "out/root-link");
        fs::create_dir(disk.top.join("root-not")).unwrap();
        fs::write(disk.top.join("root-not/file"), "").unwrap();
        let top = disk.top.display().to_string();
        for place in [
            "out/file",
            "out/none",
            "none",
            "file",
            "root-not/file",
            "rootfile",
            "root/../file",
            "root/../../file",
            "root/..",
            "root/sub/../../out/file",
            "root/relative",
            "root/absolute",
            "root/directory/file",
            "root/absolute-directory/file",
            "root/directory/sub/file",
            "root/directory/none",
            "root/sub/up",
            "root/twice/file",
            "root/dangling",
            "root/dangling/none",
            "root/here",
            "root/top/etc/passwd",
            "root/magic/etc/passwd",
            &format!("root/top{top}/out/file"),
            &format!("root/magic{top}/out/file"),
            "/etc/passwd",
            "/etc/none",
            "/",
        ] {
            let result = files.read(&disk.top.join(place), None, None);
            let directory = FileErrorKind::NotRegular("a directory");
            let expected = if place == "/" { directory } else { FileErrorKind::Outside };
            assert_eq!(result.unwrap_err().kind(), &expected, "{place} {:?}", files.roots.resolver());
        }
        // A path may leave the root and come back.
        check(disk, files, &format!("root/top{top}/root/file"), &Ok("root/file"));
        check(disk, files, "root/directory/../root/file", &Ok("root/file"));
    });
}

#[test]
fn only_regular_files_are_read() {
    each(|disk, files| {
        rustix::fs::mknodat(rustix::fs::CWD, disk.root.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = UnixListener::bind(disk.root.join("socket")).unwrap();
        disk.link("pipe", "root/link");
        let not = |what| Err(FileErrorKind::NotRegular(what));
        check(disk, files, "root/pipe", &not("a pipe"));
        check(disk, files, "root/link", &not("a pipe"));
        check(disk, files, "root/socket", &not("a socket"));
        for place in ["root", "root/", "root/sub", "root/sub/", "root/sub/.", "root/sub/..", "root/file/"] {
            check(disk, files, place, &not("a directory"));
        }
        for place in ["root/pipe", "root/socket", "root/sub", "root"] {
            let error = files.write(&disk.top.join(place), "x").unwrap_err();
            assert!(matches!(error.kind(), FileErrorKind::NotRegular(_)), "{error}");
        }
    });
}

#[test]
fn link_loops_end() {
    each(|disk, files| {
        disk.link("round", "root/round");
        disk.link("b", "root/a");
        disk.link("a", "root/b");
        for number in 0..50 {
            disk.link(format!("l{}", number + 1), &format!("root/l{number}"));
        }
        fs::write(disk.root.join("l50"), "end").unwrap();
        for place in ["root/round", "root/round/x", "root/a", "root/b/x", "root/l0"] {
            check(disk, files, place, &Err(FileErrorKind::Links));
        }
        check(disk, files, "root/l20", &Ok("end"));
    });
}

#[test]
fn detours_are_bounded() {
    let disk = Disk::new();
    let files = disk.files(PathResolver::Walk);
    let deep = "d/".repeat(100);
    fs::create_dir_all(disk.root.join(&deep)).unwrap();
    let back = format!("{deep}{}", "../d/".repeat(120));
    assert!(back.len() < MAX_PATH_BYTES);
    check(&disk, &files, &format!("root/{back}file"), &Err(FileErrorKind::Links));
}

#[test]
fn only_complete_utf8_within_the_limit_is_read() {
    each(|disk, files| {
        let put = |name: &str, content: &[u8]| fs::write(disk.root.join(name), content).unwrap();
        put("full", &[b'x'; 1000]);
        put("over", &[b'x'; 1001]);
        put("binary", b"ab\xff");
        put("cut", "é".as_bytes().split_at(1).0);
        put("empty", b"");
        check(disk, files, "root/full", &Ok(&"x".repeat(1000)));
        check(disk, files, "root/over", &Err(FileErrorKind::TooLarge { limit: 1000 }));
        check(disk, files, "root/binary", &Err(FileErrorKind::NotText));
        check(disk, files, "root/cut", &Err(FileErrorKind::NotText));
        check(disk, files, "root/empty", &Ok(""));
    });
}

#[test]
fn invalid_paths_are_refused() {
    each_anywhere(|_, files| {
        let check = |path: &str, expected: FileErrorKind| {
            assert_eq!(files.read(Path::new(path), None, None).unwrap_err().kind(), &expected);
            assert_eq!(files.write(Path::new(path), "").unwrap_err().kind(), &expected);
        };
        check("", FileErrorKind::Relative);
        check("file", FileErrorKind::Relative);
        check("./root/file", FileErrorKind::Relative);
        check("/fi\0le", FileErrorKind::Malformed);
        check(&"/x".repeat(3000), FileErrorKind::Malformed);
        check(&format!("/{}", "x".repeat(300)), FileErrorKind::Malformed);
    });
    let error = Roots::open(&["relative".into()]).unwrap_err();
    assert_eq!(error.kind(), &FileErrorKind::Relative);
    let disk = Disk::new();
    for name in ["none", "file"] {
        assert_eq!(Roots::open(&[disk.top.join(name)]).unwrap_err().kind(), &FileErrorKind::NotFound);
    }
}

#[test]
fn with_the_root_directory_as_root_every_file_is_reachable() {
    each_anywhere(|disk, files| {
        disk.link(disk.top.join("out"), "root/directory");
        check(disk, files, "root/file", &Ok("root/file"));
        check(disk, files, "out/file", &Ok("out/file"));
        check(disk, files, "root/directory/file", &Ok("out/file"));
        check(disk, files, "root/directory/../file", &Ok("file"));
        check(disk, files, "out/none", &Err(FileErrorKind::NotFound));
        assert_eq!(files.find(&disk.root.join("directory/new")).unwrap().path(), disk.top.join("out/new"));
        files.write(&disk.root.join("directory/new"), "x").unwrap();
        assert_eq!(disk.text("out/new"), "x");
    });
}

#[cfg(target_os = "linux")]
#[test]
fn kernel_files_are_refused() {
    each_anywhere(|disk, files| {
        disk.link("/proc/self/environ", "root/environ");
        check(disk, files, "/dev/null", &Err(FileErrorKind::NotRegular("a device")));
        check(disk, files, "/dev/zero", &Err(FileErrorKind::NotRegular("a device")));
        let made_up = FileErrorKind::NotRegular("a kernel file");
        for place in ["/proc/version", "/proc/self/environ", "root/environ", "/sys/kernel/uevent_seqnum"] {
            if Path::new(place).exists() || place.starts_with("root") {
                check(disk, files, place, &Err(made_up.clone()));
            }
        }
        let error = files.write(Path::new("/proc/self/comm"), "x").unwrap_err();
        assert_eq!(error.kind(), &made_up);
        assert!(files.write(Path::new("/proc/self/none"), "x").is_err());
    });
}

#[test]
fn the_judged_path_has_no_links() {
    each(|disk, files| {
        disk.link("sub", "root/directory");
        disk.link("directory/.env", "root/innocent");
        let find = |place: &str| files.find(&disk.top.join(place)).unwrap();
        let check = |place: &str, expected: &str, exists: bool| {
            let found = find(place);
            assert_eq!(
                (found.path(), found.entry.is_some()),
                (disk.top.join(expected).as_path(), exists),
                "{place}"
            );
        };
        check("root/file", "root/file", true);
        check("root/directory/../file", "root/file", true);
        check("root/innocent", "root/sub/.env", false);
        check("root/directory/.git/hooks/new", "root/sub/.git/hooks/new", false);
        check("root/../root/directory/file", "root/sub/file", true);
    });
}

#[test]
fn the_judged_file_is_the_file_used() {
    each(|disk, files| {
        let find = |place: &str| files.find(&disk.top.join(place)).unwrap();
        let (in_sub, file) = (find("root/sub/file"), find("root/file"));
        fs::rename(disk.root.join("sub"), disk.root.join("moved")).unwrap();
        disk.link("../out", "root/sub");
        fs::remove_file(disk.root.join("file")).unwrap();
        disk.link("../out/file", "root/file");
        assert_eq!(in_sub.read(None, None).as_deref(), Ok("root/sub/file"));
        in_sub.write("new", WriteMode::Replace).unwrap();
        assert_eq!(disk.text("root/moved/file"), "new");
        assert_eq!(file.read(None, None).unwrap_err().kind(), &FileErrorKind::Changed);
        assert_eq!(file.write("new", WriteMode::Replace).unwrap_err().kind(), &FileErrorKind::Changed);
        assert_eq!(disk.text("out/file"), "out/file");
        assert_eq!(disk.text("out/sub/file"), "out/sub/file");
    });
}

#[test]
fn a_replaced_root_keeps_its_directory() {
    each(|disk, files| {
        fs::rename(&disk.root, disk.top.join("moved")).unwrap();
        disk.link("out", "root");
        check(disk, files, "root/file", &Ok("root/file"));
        check(disk, files, "moved/file", &Err(FileErrorKind::Outside));
        files.write(&disk.root.join("sub/new"), "x").unwrap();
        assert_eq!(disk.text("moved/sub/new"), "x");
        assert!(!disk.top.join("out/sub/new").exists());
    });
}

#[test]
fn roots_can_be_nested_and_reached_over_links() {
    for resolver in RESOLVERS {
        let disk = Disk::new();
        disk.link("root", "alias");
        disk.link("../file", "root/sub/up");
        disk.link(disk.top.join("out/file"), "root/other");
        let roots = [disk.top.join("alias"), disk.root.join("sub"), disk.top.join("out")];
        let roots = Arc::new(Roots::open_with(*resolver, &roots).unwrap());
        let files = Files::new(roots, Limits::default());
        check(&disk, &files, "alias/file", &Ok("root/file"));
        check(&disk, &files, "root/file", &Ok("root/file"));
        check(&disk, &files, "root/sub/up", &Ok("root/file"));
        check(&disk, &files, "root/other", &Ok("out/file"));
        check(&disk, &files, "root/sub/../../out/file", &Ok("out/file"));
        check(&disk, &files, "file", &Err(FileErrorKind::Outside));
        assert_eq!(files.find(&disk.top.join("alias/sub/up")).unwrap().path(), disk.root.join("file"));
    }
}

#[test]
fn a_path_without_links_is_found_only_at_its_own_place() {
    for resolver in RESOLVERS {
        let disk = Disk::new();
        disk.link("root", "alias");
        disk.link("sub", "root/in");
        disk.link("file", "root/other");
        disk.link("nowhere", "root/dangling");
        let roots = Arc::new(Roots::open_with(*resolver, &[disk.top.join("alias")]).unwrap());
        let files = Files::new(roots, Limits::default());
        let find = |path: &str| files.find(&disk.top.join(path)).and_then(Found::without_links);
        for path in ["root/file", "root/sub/file", "root/new", "root/new/deep", "root/./file"] {
            assert_eq!(find(path).unwrap().path(), disk.top.join(path), "{path}");
        }
        for path in ["root/in/file", "root/other", "root/dangling", "root/in/new/deep", "alias/file"] {
            assert_eq!(find(path).unwrap_err().kind(), &FileErrorKind::Link, "{path}");
        }
        // Writes go to the directory that was found.
        let found = find("root/sub/new").unwrap();
        fs::rename(disk.root.join("sub"), disk.root.join("old")).unwrap();
        disk.link("../out", "root/sub");
        found.write("x", WriteMode::Replace).unwrap();
        assert!(disk.root.join("old/new").exists() && !disk.top.join("out/new").exists());
    }
}

#[test]
fn agents_receive_the_reason_of_a_failure() {
    #[track_caller]
    fn check(kind: FileErrorKind, code: i64, condition: &str, more: &(&str, Value)) {
        let error = FileError::new(Path::new("/a\u{1b}b"), kind).to_rpc();
        let data = error.data.unwrap();
        assert_eq!(
            (error.code, &data["condition"], &data["path"]),
            (code, &json!(condition), &json!("/a\u{1b}b"))
        );
        assert_eq!(data[more.0], more.1, "{condition}");
        let words = if code == -32002 { "Resource not found: file:///a%1Bb" } else { "\"/a\\u{1b}b\": " };
        assert!(error.message.starts_with(words), "{}", error.message);
    }
    use serde_json::Value;
    let plain = || ("retryable", json!(false));
    check(FileErrorKind::NotFound, -32002, "not_found", &("uri", json!("file:///a%1Bb")));
    check(FileErrorKind::Outside, -32602, "path_outside_workspace", &plain());
    check(FileErrorKind::Relative, -32602, "path_not_absolute", &("field", json!("path")));
    check(FileErrorKind::Malformed, -32602, "path_malformed", &("field", json!("path")));
    check(FileErrorKind::NotRegular("a pipe"), -32602, "not_a_regular_file", &plain());
    check(FileErrorKind::TooLarge { limit: 5 }, -32602, "file_too_large", &("limit", json!(5)));
    check(FileErrorKind::NotText, -32602, "not_text", &plain());
    check(FileErrorKind::Link, -32602, "path_has_link", &plain());
    check(FileErrorKind::Links, -32602, "too_many_links", &plain());
    check(FileErrorKind::Changed, -32603, "file_changed", &("retryable", json!(true)));
    check(FileErrorKind::Denied(Errno::ACCESS), -32603, "permission_denied", &plain());
    check(FileErrorKind::System(Errno::NOSPC), -32603, "io_error", &("effects", json!("none")));
    let strange = FileError::new(Path::new("/a/no such#?.tät"), FileErrorKind::NotFound).to_rpc();
    assert_eq!(strange.message, "Resource not found: file:///a/no%20such%23%3F.t%C3%A4t");
    let long = FileError::new(Path::new(&"/x".repeat(5000)), FileErrorKind::Malformed);
    assert!(long.to_string().len() < 400);
}

#[test]
fn an_entry_is_moved_aside_whatever_names_are_taken() {
    let disk = Disk::new();
    let files = disk.files(PathResolver::Walk);
    let long = "x".repeat(255);
    for name in ["commondir", &long] {
        let path = disk.root.join(name);
        for number in 1..=1000 {
            _ = fs::write(disk.root.join(format!("{name}.denied-{number}")), "taken");
        }
        fs::write(&path, "moved").unwrap();
        let Ok(Aside::Moved(moved)) = files.move_aside(&path) else { panic!("{name}") };
        assert!(!path.exists());
        assert_eq!(fs::read_to_string(moved).unwrap(), "moved");
        assert_eq!(files.move_aside(&path).unwrap(), Aside::Missing);
    }
}

/// Root ignores modes, so a test of [`crate::host::confinement`] runs this as another user.
#[test]
fn an_entry_is_moved_aside_whatever_the_modes_of_its_directories() {
    let disk = Disk::new();
    let files = disk.files(PathResolver::Walk);
    let set_mode =
        |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (outer, inner) in [(0o700, 0o500), (0o700, 0o000), (0o000, 0o000), (0o500, 0o555)] {
        let (a, b) = (disk.root.join("a"), disk.root.join("a/b"));
        fs::create_dir_all(&b).unwrap();
        fs::write(b.join("commondir"), "x").unwrap();
        set_mode(&b, inner);
        set_mode(&a, outer);
        let moved = files.move_aside(&b.join("commondir"));
        assert_eq!(moved.unwrap(), Aside::Moved(b.join("commondir.denied-1")), "{outer:o} {inner:o}");
        assert_eq!(fs::metadata(&a).unwrap().permissions().mode() & 0o777, outer);
        set_mode(&a, 0o700);
        assert_eq!(fs::metadata(&b).unwrap().permissions().mode() & 0o777, inner);
        set_mode(&b, 0o700);
        fs::remove_dir_all(&a).unwrap();
    }
}
