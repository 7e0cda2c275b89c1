//! Resolution of the paths in a configuration file.

use std::path::{Path, PathBuf};

/// The directories against which the paths in a configuration file are resolved.
#[derive(Clone, Copy, Debug)]
pub struct PathBase<'a> {
    /// The directory of the configuration file. Relative paths start from this directory.
    pub base: &'a Path,
    /// The home directory, which replaces `~`.
    pub home: Option<&'a Path>,
}

impl PathBase<'_> {
    /// Returns the path for the text of a setting. Environment variables are not expanded.
    ///
    /// # Errors
    /// If the text is empty, or needs an expansion that is not possible.
    pub fn resolve(self, text: &str) -> Result<PathBuf, &'static str> {
        if text.is_empty() {
            return Err("the path is empty");
        }
        if text.starts_with('$') {
            return Err("variables are not expanded: write the whole path");
        }
        let Some(rest) = text.strip_prefix('~') else { return Ok(self.base.join(text)) };
        let home = self.home.ok_or("`~` needs the environment variable HOME")?;
        match rest.strip_prefix('/') {
            Some(rest) => Ok(home.join(rest.trim_start_matches('/'))),
            None if rest.is_empty() => Ok(home.to_owned()),
            None => Err("only `~` and `~/` are expanded, not the home directory of another user"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_relative_to_the_file_or_the_home_directory() {
        let paths = PathBase { base: Path::new("/etc/bus"), home: Some(Path::new("/home/me")) };
        #[track_caller]
        fn check(paths: PathBase<'_>, text: &str, expected: Option<&str>) {
            assert_eq!(paths.resolve(text).ok().as_deref(), expected.map(Path::new), "{text}");
        }
        check(paths, "a/b", Some("/etc/bus/a/b"));
        check(paths, "/a", Some("/a"));
        check(paths, "~", Some("/home/me"));
        check(paths, "~/a", Some("/home/me/a"));
        check(paths, "~//etc/passwd", Some("/home/me/etc/passwd"));
        check(paths, "a~/b", Some("/etc/bus/a~/b"));
        for text in ["", "~other/a", "$HOME/a"] {
            check(paths, text, None);
        }
        check(PathBase { home: None, ..paths }, "~/a", None);
    }
}
