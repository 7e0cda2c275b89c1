//! Tests of writing: written files, and files that must not change.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::{Disk, each};
use crate::host::files::{FileErrorKind, Files, WriteMode};

/// Writes at `place`, a path relative to the directory above the root.
fn write(disk: &Disk, files: &Files, place: &str) -> Result<(), FileErrorKind> {
    files.write(&disk.top.join(place), "new").map_err(|error| error.kind().clone())
}

fn names(disk: &Disk) -> Vec<String> {
    let mut names = Vec::new();
    let mut open = vec![disk.top.clone()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            names.push(entry.path().strip_prefix(&disk.top).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
        }
    }
    names.sort();
    names
}

#[test]
fn files_and_missing_directories_are_created() {
    each(|disk, files| {
        disk.link("sub", "root/directory");
        disk.link("made/by/link", "root/dangling");
        for (place, expected) in [
            ("root/file", "root/file"),
            ("root/new", "root/new"),
            ("root/a/b/c", "root/a/b/c"),
            ("root/directory/d/e", "root/sub/d/e"),
            ("root/sub/../f/g", "root/f/g"),
            ("root/../root/h", "root/h"),
            ("root/dangling", "root/made/by/link"),
        ] {
            assert_eq!(write(disk, files, place), Ok(()), "{place}");
            assert_eq!(disk.text(expected), "new", "{place}");
        }
        assert!(disk.root.join("dangling").is_symlink());
        assert!(names(disk).iter().all(|name| !name.contains(".narrows-")), "{:?}", names(disk));
    });
}

#[test]
fn nothing_outside_is_written() {
    each(|disk, files| {
        disk.link("../out/file", "root/relative");
        disk.link(disk.top.join("out/file"), "root/absolute");
        disk.link("../out", "root/directory");
        disk.link("../out/new", "root/dangling");
        disk.link("../out/made", "root/missing");
        disk.link("/proc/self/cwd", "root/magic");
        let before = names(disk);
        for place in [
            "out/file",
            "out/new",
            "file",
            "root/../new",
            "root/../new/new",
            "root/relative",
            "root/absolute",
            "root/directory/file",
            "root/directory/new",
            "root/directory/new/new",
            "root/dangling",
            "root/missing/new",
            "root/magic/new",
            "root/..",
            "root/sub/../../out/a/b",
        ] {
            assert_eq!(write(disk, files, place), Err(FileErrorKind::Outside), "{place}");
        }
        assert_eq!(write(disk, files, "root/none/../x"), Err(FileErrorKind::NotFound));
        assert_eq!(write(disk, files, "root/file/x"), Err(FileErrorKind::NotFound));
        assert_eq!(names(disk), before);
        assert_eq!((disk.text("out/file"), disk.text("file")), ("out/file".into(), "file".into()));
    });
}

#[test]
fn the_file_mode_is_kept() {
    each(|disk, files| {
        let file = disk.root.join("file");
        for (old, expected) in
            [(0o640, 0o640), (0o755, 0o755), (0o600, 0o600), (0o4755, 0o755), (0o222, 0o222)]
        {
            fs::set_permissions(&file, fs::Permissions::from_mode(old)).unwrap();
            assert_eq!(write(disk, files, "root/file"), Ok(()));
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, expected, "{old:o}");
        }
        // New files and directories have the user's default modes.
        write(disk, files, "root/made/new").unwrap();
        fs::create_dir(disk.root.join("plain")).unwrap();
        fs::write(disk.root.join("plain/new"), "").unwrap();
        for (ours, plain) in [("made", "plain"), ("made/new", "plain/new")] {
            let mode = |name: &str| fs::metadata(disk.root.join(name)).unwrap().mode();
            assert_eq!(mode(ours), mode(plain));
        }
    });
}

#[test]
fn a_read_only_file_is_not_replaced() {
    if rustix::process::geteuid().is_root() {
        // This user may write every file, so there is no read-only file to test.
        return;
    }
    each(|disk, files| {
        let forbid = |name: &str, mode: u32| {
            fs::set_permissions(disk.root.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        forbid("file", 0o444);
        assert!(matches!(write(disk, files, "root/file"), Err(FileErrorKind::Denied(_))));
        assert_eq!(disk.text("root/file"), "root/file");
        forbid("sub", 0o555);
        assert!(matches!(write(disk, files, "root/sub/new"), Err(FileErrorKind::Denied(_))));
        forbid("sub", 0o755);
    });
}

#[test]
fn a_failed_write_leaves_no_files() {
    each(|disk, files| {
        let before = names(disk);
        let long = files.write(&disk.root.join("new/file"), &"x".repeat(1001)).unwrap_err();
        assert_eq!(long.kind(), &FileErrorKind::TooLarge { limit: 1000 });
        assert_eq!(names(disk), before);

        // The path is missing when found and a directory when written, so that the last step of the
        // replacement fails.
        let found = files.find(&disk.root.join("place")).unwrap();
        fs::create_dir(disk.root.join("place")).unwrap();
        assert_eq!(
            found.write("x", WriteMode::Replace).unwrap_err().kind(),
            &FileErrorKind::NotRegular("a directory")
        );
        fs::remove_dir(disk.root.join("place")).unwrap();
        assert_eq!(names(disk), before);
    });
}

#[test]
fn a_link_in_the_place_of_a_missing_directory_is_not_followed() {
    each(|disk, files| {
        let found = files.find(&disk.root.join("a/b/file")).unwrap();
        disk.link("../out", "root/a");
        let error = found.write("x", WriteMode::Replace).unwrap_err();
        assert_eq!(error.kind(), &FileErrorKind::Changed);
        assert_eq!(error.to_rpc().data.unwrap()["effects"], "possible");
        // Access by path uses the current directories.
        assert_eq!(write(disk, files, "root/a/b/file"), Err(FileErrorKind::Outside));
        assert!(!disk.top.join("out/b").exists());
    });
}

#[test]
fn hard_links_keep_the_old_content() {
    each(|disk, files| {
        fs::hard_link(disk.root.join("file"), disk.root.join("name")).unwrap();
        assert_eq!(write(disk, files, "root/file"), Ok(()));
        assert_eq!((disk.text("root/file"), disk.text("root/name")), ("new".into(), "root/file".into()));
    });
}

#[test]
fn a_reader_sees_the_old_or_the_new_content() {
    each(|disk, files| {
        let path = disk.root.join("file");
        let texts = ["a".repeat(1000), "b".repeat(1000)];
        files.write(&path, &texts[0]).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..50 {
                    files.write(&path, &texts[round % 2]).unwrap();
                }
            });
            while !writer.is_finished() {
                let text = files.read(&path, None, None).unwrap();
                assert!(texts.contains(&text), "{text}");
            }
        });
    });
}

/// A running command sees the file through a read-only mount, which belongs to the inode and is lost if the
/// file is replaced.
#[test]
fn overwriting_in_place_keeps_the_inode() {
    each(|disk, files| {
        let path = disk.root.join("file");
        let inode = || fs::metadata(&path).unwrap().ino();
        let write = |text: &str, mode| files.find(&path).unwrap().write(text, mode).unwrap();
        let before = inode();
        for text in ["longer than it was", "short", ""] {
            write(text, WriteMode::InPlace);
            assert_eq!((fs::read_to_string(&path).unwrap().as_str(), inode()), (text, before));
        }
        // The other name keeps its content.
        fs::hard_link(&path, disk.root.join("second")).unwrap();
        write("new", WriteMode::InPlace);
        assert_eq!((disk.text("root/file").as_str(), disk.text("root/second").as_str()), ("new", ""));
        assert_ne!(inode(), before);
    });
}
