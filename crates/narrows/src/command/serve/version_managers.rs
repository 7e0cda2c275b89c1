//! Shims: programs of version managers that look up and start the real program.

use std::fmt;
use std::path::Path;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shim {
    program: String,
    manager: Option<&'static str>,
}

/// Directories of version managers, and their names.
const MANAGERS: [(&str, &str); 8] = [
    (".pyenv", "pyenv"),
    (".rbenv", "rbenv"),
    (".nodenv", "nodenv"),
    (".jenv", "jenv"),
    (".asdf", "asdf"),
    ("asdf", "asdf"),
    ("mise", "mise"),
    (".volta", "volta"),
];

impl Shim {
    pub(super) fn at_path(path: &Path) -> Option<Self> {
        let above = path.parent()?;
        let names = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let manager = above.ancestors().filter_map(names).find_map(|name| {
            MANAGERS.iter().find(|(directory, _)| *directory == name).map(|(_, manager)| *manager)
        });
        // Volta has its shims in `bin`.
        let is_one = names(above)? == "shims" || manager == Some("volta") && names(above)? == "bin";
        is_one.then_some(Self { program: names(path)?, manager })
    }

    pub(super) fn hint(&self) -> String {
        let Self { program, manager } = self;
        match manager {
            Some(manager) => format!("use the path that `{manager} which {program}` prints"),
            None => "use the path of the program itself".to_owned(),
        }
    }
}

impl fmt::Display for Shim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, manager } = self;
        let manager = manager.unwrap_or("a version manager");
        write!(
            out,
            "{program:?} in PATH is a shim of {manager}, which needs a home directory that is not in the sandbox"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_is_distinguished_from_a_program() {
        let check = |path: &str, expected: Option<&str>| {
            let found = Shim::at_path(Path::new(path)).map(|shim| shim.hint());
            assert_eq!(found.as_deref(), expected, "{path}");
        };
        check("/home/me/.pyenv/shims/aider", Some("use the path that `pyenv which aider` prints"));
        check("/home/me/.asdf/shims/node", Some("use the path that `asdf which node` prints"));
        check("/home/me/.local/share/mise/shims/x", Some("use the path that `mise which x` prints"));
        check("/home/me/.volta/bin/node", Some("use the path that `volta which node` prints"));
        check("/srv/tools/shims/x", Some("use the path of the program itself"));
        check("/home/me/.pyenv/versions/3.12.1/bin/aider", None);
        check("/home/me/.nvm/versions/node/v20.1.0/bin/node", None);
        check("/usr/bin/env", None);
        check("x", None);
    }
}
