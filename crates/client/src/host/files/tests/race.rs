//! Swaps directories and links during reads and writes: no access may leave the roots.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{Disk, RESOLVERS, fast_directory};
use crate::host::files::Files;
use crate::host::files::walk::PathResolver;

/// A file outside of the root, which must be neither read nor changed.
const SECRET: &str = "out/file";

/// Swaps a directory and a file with links out of the root, until stopped.
fn swap(disk: &Disk, stop: &AtomicBool) {
    let place = |name: &str| disk.root.join(name);
    let mut rounds = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        renameat_with(CWD, place("sub"), CWD, place("link"), RenameFlags::EXCHANGE).unwrap();
        symlink("../out/file", place("next")).unwrap();
        fs::rename(place("next"), place("file")).unwrap();
        fs::write(place("next"), "inside").unwrap();
        fs::rename(place("next"), place("file")).unwrap();
        rounds += 1;
    }
    assert!(rounds > 0);
}

fn during(disk: &Disk, act: impl FnOnce()) {
    disk.link("../out", "root/link");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let swapper = scope.spawn(|| swap(disk, &stop));
        // Also stops the swapping after a panic in `act`, so that the failure is reported.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        stop.store(true, Ordering::Relaxed);
        swapper.join().unwrap();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Paths to try: through the directory, around it, to the file, and to missing files.
fn path(disk: &Disk, round: usize) -> std::path::PathBuf {
    match round % 5 {
        0 => disk.root.join("sub/file"),
        1 => disk.root.join("sub/../sub/file"),
        2 => disk.root.join("link/file"),
        3 => disk.root.join("file"),
        _ => disk.root.join(format!("sub/new{}/file", round % 40)),
    }
}

/// Runs `tries` accesses, of which one in `share` is a write.
fn race(resolver: PathResolver, tries: usize, share: usize) {
    let disk = Disk::new_in(fast_directory());
    let files: Files = disk.files(resolver).without_sync();
    let (mut read, mut wrote, mut refused) = (0, 0, 0);
    during(&disk, || {
        for round in 0..tries {
            let path = path(&disk, round);
            if (round / 5) % share == 0 {
                match files.write(&path, "inside") {
                    Ok(()) => wrote += 1,
                    Err(_) => refused += 1,
                }
                continue;
            }
            match files.read(&path, None, None) {
                Ok(text) => {
                    assert!(
                        text != SECRET && !text.starts_with("out"),
                        "{path:?} by {resolver:?} in try {round}"
                    );
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
    });
    assert!(read > 0 && wrote > 0 && refused > 0, "no race: {read} {wrote} {refused}");
    assert_eq!(disk.text("out/file"), SECRET);
    assert_eq!(disk.text("out/sub/file"), "out/sub/file");
    let names = |path: &Path| fs::read_dir(path).unwrap().count();
    assert_eq!((names(&disk.top.join("out")), names(&disk.top.join("out/sub"))), (2, 1));
}

#[test]
fn swapping_directories_does_not_escape_the_root() {
    for resolver in RESOLVERS {
        race(*resolver, 10_000, 3);
    }
}

#[test]
#[ignore = "takes long: for the night"]
fn long_swapping_of_directories_does_not_escape_the_root() {
    for resolver in RESOLVERS {
        race(*resolver, 200_000, 3);
    }
}

/// Proves that the tests above can fail.
#[test]
fn following_paths_naively_does_escape() {
    let disk = Disk::new_in(fast_directory());
    during(&disk, || {
        let deadline = Instant::now() + Duration::from_secs(60);
        // Checks and then opens, as a naive program does.
        let escaped = || {
            let path = disk.root.join("sub/file");
            let checked = path.canonicalize().is_ok_and(|real| real.starts_with(&disk.root));
            checked && fs::read_to_string(&path).is_ok_and(|text| text == SECRET)
        };
        while !escaped() {
            assert!(Instant::now() < deadline, "the race was never won");
        }
    });
}
