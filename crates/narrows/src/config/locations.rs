//! Locations of the configuration file, the data and the sockets, in the user's directories.

use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::endpoint_settings::Key;
use super::error::{ConfigError, Origin};
use super::file::NarrowsToml;
use super::variables::Variables;
use crate::environment as env;

const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// The configuration file. `None` if the file does not exist.
    pub(crate) file: Option<NarrowsToml>,
    pub(crate) warnings: Vec<String>,
}

/// Reads the configuration file: the one that an option or a variable names, otherwise the default one, if it
/// exists.
pub(crate) fn load(named: Option<&Path>, variables: &Variables) -> Result<Loaded, ConfigError> {
    let (path, named) = match (named, variables.get(env::CONFIG)) {
        (Some(path), _) => (path.to_owned(), Some(Origin::Flag("--config"))),
        (None, Some(path)) => (path.into(), Some(Origin::variable(env::CONFIG))),
        (None, None) => match default_file(variables) {
            Some(path) => (path, None),
            None => return Ok(Loaded::default()),
        },
    };
    let (text, open) = match read(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => {
            return Ok(Loaded::default());
        }
        Err(error) => {
            let origin = named.unwrap_or_else(|| Origin::File { path: path.clone(), line: 1 });
            return Err(ConfigError::new(origin, format!("cannot read {path:?}: {error}")));
        }
    };
    // The path appears in errors, so it must not depend on the current directory.
    let path = std::path::absolute(&path).unwrap_or(path);
    let file = NarrowsToml::parse(&path, &text, home(variables))?;
    let holds_keys = file.endpoints.iter().any(|entry| matches!(entry.settings.key, Some(Key::Inline(_))));
    let mut warnings = Vec::new();
    if open && holds_keys {
        warnings.push(format!(
            "{} holds an API key and other users can read it: run chmod 600, or use key_env",
            path.display()
        ));
    }
    if let [first, others @ ..] = &*file.warnings {
        let more = match others.len() {
            0 => String::new(),
            count => format!(" ({count} more: narrows check {})", path.display()),
        };
        warnings.push(format!("{first}{more}"));
    }
    Ok(Loaded { file: Some(file), warnings })
}

pub(crate) fn default_file(variables: &Variables) -> Option<PathBuf> {
    Some(narrows_dir(variables, env::CONFIG_HOME, ".config")?.join("narrows.toml"))
}

/// Reads a file. Returns its text, and `true` if users other than its owner can read it.
fn read(path: &Path) -> io::Result<(String, bool)> {
    let file = std::fs::File::open(path)?;
    let mode = file.metadata()?.permissions().mode();
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the file is longer than 1 MiB"));
    }
    Ok((text, mode & 0o044 != 0))
}

/// Returns the default directory of stored sessions.
pub(crate) fn data_dir(variables: &Variables) -> Option<PathBuf> {
    narrows_dir(variables, env::DATA_HOME, ".local/share")
}

pub(crate) fn runtime_dir(variables: &Variables) -> Option<PathBuf> {
    narrows_dir(variables, env::RUNTIME_DIR, ".local/state")
}

pub(super) fn home(variables: &Variables) -> Option<&Path> {
    variables.get(env::HOME).map(Path::new).filter(|home| home.is_absolute())
}

/// Returns the directory `narrows` in the directory that `variable` names, otherwise in `in_home` of the home
/// directory.
fn narrows_dir(variables: &Variables, variable: &str, in_home: &str) -> Option<PathBuf> {
    // The XDG specification says to ignore relative paths.
    let named = variables.get(variable).map(Path::new).filter(|path| path.is_absolute());
    let directory = named.map_or_else(|| Some(home(variables)?.join(in_home)), |path| Some(path.to_owned()));
    Some(directory?.join("narrows"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::variables::variables;

    #[test]
    fn directories_are_those_of_the_user() {
        #[track_caller]
        fn check(pairs: &[(&str, &str)], expected: Option<&str>) {
            assert_eq!(data_dir(&variables(pairs)).as_deref(), expected.map(Path::new), "{pairs:?}");
        }
        check(&[("HOME", "/home/me")], Some("/home/me/.local/share/narrows"));
        check(&[("HOME", "/home/me"), ("XDG_DATA_HOME", "/data")], Some("/data/narrows"));
        check(&[("HOME", "/home/me"), ("XDG_DATA_HOME", "data")], Some("/home/me/.local/share/narrows"));
        check(&[("HOME", "/home/me"), ("XDG_DATA_HOME", "")], Some("/home/me/.local/share/narrows"));
        check(&[("HOME", "me")], None);
        check(&[], None);
    }

    #[test]
    fn the_default_file_is_in_the_config_directory_and_can_be_overridden() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("narrows");
        std::fs::create_dir(&directory).unwrap();
        let vars = variables(&[("XDG_CONFIG_HOME", home.path().to_str().unwrap())]);
        assert!(load(None, &vars).unwrap().file.is_none());
        let file = directory.join("narrows.toml");
        std::fs::write(&file, "system = \"a\"\n[endpoint.a]\nbase_url = \"http://a\"\nkey = \"k\"\n")
            .unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let loaded = load(None, &vars).unwrap();
        assert_eq!(loaded.file.unwrap().system_prompt.as_deref(), Some("a"));
        assert!(loaded.warnings[0].contains("holds an API key"), "{:?}", loaded.warnings);
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(load(None, &vars).unwrap().warnings, [""; 0]);
        let other = home.path().join("other.toml");
        std::fs::write(&other, "system = \"b\"").unwrap();
        let found = load(Some(&other), &vars).unwrap().file.unwrap();
        assert_eq!(found.system_prompt.as_deref(), Some("b"));
        let named = variables(&[("NARROWS_CONFIG", other.to_str().unwrap())]);
        assert_eq!(load(None, &named).unwrap().file.unwrap().system_prompt.as_deref(), Some("b"));
    }

    #[test]
    fn a_named_file_must_exist() {
        let error = load(Some(Path::new("/nowhere/narrows.toml")), &Variables::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--config: cannot read \"/nowhere/narrows.toml\": No such file or directory (os error 2)"
        );
        let error = load(None, &variables(&[("NARROWS_CONFIG", "/nowhere/x")])).unwrap_err();
        assert!(error.to_string().starts_with("NARROWS_CONFIG: "), "{error}");
    }
}
