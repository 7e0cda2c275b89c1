//! Environment variables that a request sets for a command.
//!
//! A variable can decide which program runs, the code it loads and the settings it uses, and no list of
//! such names is complete. So only names that are known to be harmless are ignored; with any other, a
//! command matches a rule only if the rule lists the variable.

/// A variable that a request sets. The name is empty if the assignment cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variable {
    pub name: String,
    pub value: String,
}

/// Variables that only change the language or color of a program's output.
const HARMLESS: &str = "\
    CI CLICOLOR CLICOLOR_FORCE COLORTERM COLUMNS FORCE_COLOR LANG LC_ADDRESS LC_ALL LC_COLLATE LC_CTYPE \
    LC_IDENTIFICATION LC_MEASUREMENT LC_MESSAGES LC_MONETARY LC_NAME LC_NUMERIC LC_PAPER LC_TELEPHONE LC_TIME LINES \
    NO_COLOR PYTHONUNBUFFERED RUST_BACKTRACE TERM";

/// Maximum length of a value that counts as harmless. Usual values of the variables in `HARMLESS` are
/// shorter.
const MAX_HARMLESS_BYTES: usize = 64;

impl Variable {
    /// Creates a variable with this name and value.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }

    /// Returns `true` if the variable cannot change the programs, code or settings that a program uses.
    /// `LANG` and `TERM` name files of the system, so a value that could lead to another directory is not
    /// harmless.
    pub(crate) fn is_harmless(&self) -> bool {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.@+:,".contains(&byte);
        HARMLESS.split_whitespace().any(|name| name == self.name)
            && self.value.len() <= MAX_HARMLESS_BYTES
            && self.value.bytes().all(plain)
            && !self.value.contains("..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, value: &str, expected: bool) {
        assert_eq!(Variable::new(name, value).is_harmless(), expected, "{name}={value}");
    }

    #[test]
    fn only_listed_names_with_plain_values_are_harmless() {
        for (name, value) in [
            ("LANG", "C.UTF-8"),
            ("LC_ALL", "de_DE.UTF-8@euro"),
            ("TERM", "xterm-256color"),
            ("NO_COLOR", ""),
            ("CI", "true"),
            ("COLUMNS", "80"),
        ] {
            check(name, value, true);
        }
        for name in [
            "",
            "PATH",
            "HOME",
            "LD_PRELOAD",
            "XDG_CONFIG_HOME",
            "GIT_SSH_COMMAND",
            "PAGER",
            "EDITOR",
            "MAKEFLAGS",
            "npm_config_script_shell",
            "PYTHONPATH",
            "RUSTC_WRAPPER",
            "lang",
            "LC_",
            "LC_X",
            "LANGUAGE",
            "TERMINFO",
            "X",
        ] {
            check(name, "1", false);
        }
        check("LANG", "../../evil", false);
        check("LANG", "/tmp/evil", false);
        check("TERM", "a..b", false);
        check("CI", "$(id)", false);
        check("CI", &"1".repeat(65), false);
    }
}
