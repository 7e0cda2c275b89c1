//! Tests the number of lookups for a path.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

/// A file system with the only directory `/w`, which counts lookups.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

impl PathResolver for Counting {
    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let is_there = path == Path::new("/") || path == Path::new("/w");
        if is_there { Ok(path.to_owned()) } else { Err(io::ErrorKind::NotFound.into()) }
    }
}

#[track_caller]
fn check(path: &str, expected: &str, most: usize) {
    let resolver = Counting::default();
    assert_eq!(resolve_path(Path::new(path), &resolver).as_deref(), Some(Path::new(expected)));
    let count = resolver.0.load(Ordering::Relaxed);
    assert!(count <= most, "{count} lookups for {} bytes", path.len());
}

#[test]
fn each_name_of_a_path_is_looked_up_at_most_once() {
    let missing = "a/".repeat(2000);
    check(&format!("/{missing}../b"), &format!("/{}b", "a/".repeat(1999)), 1);
    check(&format!("/w/{missing}b"), &format!("/w/{missing}b"), 14);
    let there = "w/../".repeat(800);
    check(&format!("/{there}w"), "/w", 801);
    check(&format!("/{}b", "x/../".repeat(800)), "/b", 801);
}

#[test]
fn an_action_with_too_many_lookups_is_not_resolved() {
    let deep = format!("/{}", "a/".repeat(1900));
    let action = |count| Action {
        paths: (0..count).map(|number| PathBuf::from(format!("{deep}{number}"))).collect(),
        ..Action::new(Kind::Read)
    };
    let roots = ["/w".into()];
    assert!(!is_too_large(&action(4), &roots) && is_too_large(&action(20), &roots));
    let resolver = Counting::default();
    follow_links(action(20), &roots, &resolver);
    assert_eq!(resolver.0.load(Ordering::Relaxed), 0);
    let plain = (0..4000).map(|number| PathBuf::from(format!("/w/src/some/usual/path/{number}.rs")));
    let usual = Action { paths: plain.collect(), ..Action::new(Kind::Read) };
    assert!(!is_too_large(&usual, &roots));
}

/// Resolves a path like [`resolve_path`], but looks up each parent instead of searching.
fn slow(path: &Path, resolver: &dyn PathResolver) -> Option<PathBuf> {
    fn resolve(path: &Path, resolver: &dyn PathResolver) -> Option<PathBuf> {
        let mut rest = Vec::new();
        let mut now = path;
        loop {
            match resolver.canonicalize(now) {
                Ok(mut real) => {
                    real.extend(rest.iter().rev());
                    return Some(real);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && !is_link(now) => {}
                Err(_) => return None,
            }
            rest.push(now.file_name()?.to_owned());
            now = now.parent()?;
        }
    }
    if !path.components().any(|part| part == Component::ParentDir) {
        return resolve(&path.components().collect::<PathBuf>(), resolver);
    }
    let mut at = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::ParentDir => drop(at.pop()),
            Component::Normal(name) => at = resolve(&at.join(name), resolver)?,
            _ => {}
        }
    }
    Some(at)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn paths_resolve_as_if_each_parent_was_looked_up(
        names in prop::collection::vec(
            prop::sample::select(vec!["sub", "out", "..", "..", "up", "new", "dangling", "file", "loop", "a\0b"]),
            0..8,
        ),
    ) {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        std::fs::create_dir_all(home.join("root/sub/sub")).unwrap();
        std::fs::create_dir_all(home.join("out")).unwrap();
        std::fs::write(home.join("root/file"), "").unwrap();
        symlink(home.join("out"), home.join("root/out")).unwrap();
        symlink("..", home.join("root/sub/up")).unwrap();
        symlink("nowhere", home.join("root/dangling")).unwrap();
        symlink("loop", home.join("root/loop")).unwrap();
        let path = home.join("root").join(names.join("/"));
        prop_assert_eq!(resolve_path(&path, &SystemPathResolver), slow(&path, &SystemPathResolver), "{}", path.display());
    }
}
