//! Compares random trees of links with the system's `realpath`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;

use super::{RESOLVERS, fast_directory};
use crate::host::files::walk::PathResolver;
use crate::host::files::{FileErrorKind, Files, Limits, Roots};

/// An entry that is created unless the path exists already.
#[derive(Clone, Debug)]
enum Node {
    Directory,
    File,
    /// A link to this relative path.
    Relative(String),
    /// A link to this path, made absolute with the directory above the root.
    Absolute(String),
}

/// Only a few names, so that paths collide.
fn name() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "c", "root", "out"]).prop_map(str::to_owned)
}

/// A path with detours.
fn path_text() -> impl Strategy<Value = String> {
    let step = prop_oneof![5 => name(), 3 => Just("..".to_owned()), 1 => Just(".".to_owned())];
    prop::collection::vec(step, 1..6).prop_map(|steps| steps.join("/"))
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        2 => Just(Node::Directory),
        2 => Just(Node::File),
        4 => path_text().prop_map(Node::Relative),
        3 => path_text().prop_map(Node::Absolute),
    ]
}

fn tree() -> impl Strategy<Value = Vec<(String, Node)>> {
    let place = (prop::sample::select(vec!["root", "root", "out"]), prop::collection::vec(name(), 1..4));
    let place = place.prop_map(|(top, names)| format!("{top}/{}", names.join("/")));
    prop::collection::vec((place, node()), 1..16)
}

fn build(top: &Path, tree: &[(String, Node)]) {
    for directory in ["root", "out"] {
        fs::create_dir(top.join(directory)).unwrap();
    }
    for (place, node) in tree {
        let path = top.join(place);
        // Skips entries that cannot be created, or that a link would create elsewhere.
        let parent = path.parent().unwrap();
        let _ = fs::create_dir_all(parent);
        if !parent.canonicalize().is_ok_and(|parent| parent.starts_with(top)) {
            continue;
        }
        let _ = match node {
            Node::Directory => fs::create_dir(&path),
            Node::File if path.symlink_metadata().is_ok() => Ok(()),
            Node::File => fs::write(&path, place),
            Node::Relative(target) => symlink(target, &path),
            Node::Absolute(target) => symlink(top.join(target), &path),
        };
    }
}

/// Returns all entries outside of the root with their content.
fn outside(top: &Path) -> BTreeMap<PathBuf, Option<String>> {
    let mut all = BTreeMap::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if path == top.join("root") {
                continue;
            }
            if kind.is_dir() {
                open.push(path.clone());
            }
            let content = kind.is_file().then(|| fs::read_to_string(&path).unwrap());
            all.insert(path, content);
        }
    }
    all
}

enum Verdict {
    Text(String),
    Directory,
    Outside,
    /// An error, because the file does not exist.
    Nothing,
}

fn judge(root: &Path, path: &Path) -> Verdict {
    match path.canonicalize() {
        Err(_) => Verdict::Nothing,
        Ok(real) if !real.starts_with(root) => Verdict::Outside,
        Ok(real) if real.is_dir() => Verdict::Directory,
        Ok(real) => Verdict::Text(fs::read_to_string(real).unwrap()),
    }
}

fn agrees(resolver: PathResolver, tree: &[(String, Node)], paths: &[String]) -> Result<(), TestCaseError> {
    let directory = fast_directory();
    let top = directory.path().canonicalize().unwrap();
    build(&top, tree);
    let root = top.join("root");
    let roots = Arc::new(Roots::open_with(resolver, std::slice::from_ref(&root)).unwrap());
    let files = Files::new(roots, Limits::default()).without_sync();
    let before = outside(&top);
    for below in paths {
        let path = root.join(below);
        let read = files.read(&path, None, None).map_err(|error| error.kind().clone());
        let verdict = judge(&root, &path);
        // A path that ends with a dot names a directory or nothing, and neither can be read.
        let dotted = below.ends_with("/.") || below == ".";
        match &verdict {
            _ if dotted => prop_assert!(read.is_err()),
            Verdict::Text(text) => {
                prop_assert_eq!(read.as_ref(), Ok(text), "{}", below);
                let found = files.find(&path).unwrap();
                prop_assert_eq!(found.path(), path.canonicalize().unwrap());
            }
            Verdict::Directory => {
                prop_assert_eq!(read, Err(FileErrorKind::NotRegular("a directory")), "{}", below);
            }
            Verdict::Outside => prop_assert_eq!(read, Err(FileErrorKind::Outside), "{}", below),
            Verdict::Nothing => prop_assert!(read.is_err(), "{}", below),
        }
        let text = format!("written to {below}");
        let wrote = files.write(&path, &text).map_err(|error| error.kind().clone());
        match verdict {
            Verdict::Text(_) if !dotted => prop_assert_eq!(&wrote, &Ok(()), "{}", below),
            Verdict::Outside | Verdict::Directory => prop_assert!(wrote.is_err(), "{}", below),
            Verdict::Text(_) | Verdict::Nothing => {}
        }
        if wrote.is_ok() {
            let real = path.canonicalize().unwrap();
            prop_assert!(real.starts_with(&root), "{}", below);
            prop_assert_eq!(fs::read_to_string(real).unwrap(), text);
        }
    }
    prop_assert_eq!(outside(&top), before);
    Ok(())
}

proptest! {
    #[test]
    fn paths_resolve_as_the_kernel_resolves_them(tree in tree(), paths in prop::collection::vec(path_text(), 1..8)) {
        for resolver in RESOLVERS {
            agrees(*resolver, &tree, &paths)?;
        }
    }
}
