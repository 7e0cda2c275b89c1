//! Alternative names of subcommands: abbreviations and aliases.
//!
//! Only rules that forbid use them. An ambiguous abbreviation, which the program would refuse, does no harm
//! in such a rule.

use super::listed;

/// Programs that accept abbreviations of subcommands.
const ABBREVIATING: &str = "\
    artisan btrfs bundle bundler composer console darcs fossil gem gradle gradlew hg ip kitchen mysqladmin nmcli npm tc thor";

/// Programs of [`ABBREVIATING`] that also accept abbreviations of the words after the subcommand.
const NESTED: &str = "btrfs ip nmcli tc";

/// Programs whose arguments are tasks: `:app:publish` stands for `publish`, and `pTML` for
/// `publishToMavenLocal`.
const TASK_RUNNERS: &str = "gradle gradlew";

/// Subcommands that are a prefix of another one without being an abbreviation of it.
const WHOLE: &str = "branch build check star test";

/// Programs with aliases of their subcommands. Each line contains the names of one subcommand.
const ALIASES: &[(&str, &[&str])] = &[
    ("bun", NODE),
    ("bundle", &["i install"]),
    ("cargo", &["b build", "c check", "d doc", "r run", "remove rm", "t test"]),
    ("composer", &["i install", "r require", "rm remove", "u update upgrade"]),
    ("gem", &["i install"]),
    ("hg", &["checkout co up update", "ci commit", "in incoming", "out outgoing", "st status"]),
    ("npm", NODE),
    ("pnpm", NODE),
    ("svn", &["checkout co", "ci commit", "del delete remove rm", "sw switch", "up update"]),
    ("yarn", NODE),
    (
        "zypper",
        &[
            "dist-upgrade dup",
            "in install",
            "lu list-updates",
            "ref refresh",
            "remove rm",
            "se search",
            "up update",
        ],
    ),
];

/// Names of npm's subcommands with their aliases. Related programs have some of the same aliases.
const NODE: &[&str] = &[
    "add-user adduser login",
    "add i in ins inst insta instal install isnt isnta isntal isntall",
    "cit clean-install-test install-ci-test sit",
    "ci clean-install ic install-clean isntall-clean",
    "c config",
    "create init innit",
    "dist-tag dist-tags",
    "exec x",
    "find s se search",
    "info show v view",
    "install-test it",
    "link ln",
    "r remove rm un uninstall unlink",
    "rum run run-script urn",
    "t test tst",
    "udpate up update upgrade",
];

/// Returns `true` if `program` may accept `typed` instead of the subcommand word `wanted`. `position` counts
/// the subcommand words from 0. A `*` in `wanted` stands for any text.
pub(super) fn may_mean(program: &str, typed: &str, wanted: &str, position: usize) -> bool {
    if position > 0 && !listed(NESTED, program) {
        return false;
    }
    let is_task = listed(TASK_RUNNERS, program);
    let typed = if is_task { typed.rsplit(':').next().unwrap_or(typed) } else { typed };
    let known = wanted.split_once('*').map_or(wanted, |(known, _)| known);
    if is_task && (typed == wanted || are_humps(typed, known)) {
        return true;
    }
    let typed = typed.to_ascii_lowercase();
    let begins = |name: &str| !typed.is_empty() && name.starts_with(&typed);
    let lines = || ALIASES.iter().filter(|(name, _)| *name == program).flat_map(|(_, lines)| *lines);
    let is_whole = listed(WHOLE, &typed) || lines().any(|line| listed(line, &typed));
    let is_short = listed(ABBREVIATING, program) && !is_whole;
    let is_alias = |name: &str| name == typed || is_short && begins(name);
    is_short && begins(&known.to_ascii_lowercase())
        || lines().any(|line| listed(line, wanted) && line.split(' ').any(is_alias))
}

/// Returns `true` if `typed` consists of abbreviations of the first words in a camel-case name.
fn are_humps(typed: &str, name: &str) -> bool {
    let humps = |text: &str| {
        let mut humps: Vec<String> = vec![String::new()];
        for letter in text.chars() {
            if letter.is_uppercase() {
                humps.push(String::new());
            }
            humps.last_mut().expect("one from the beginning").push(letter);
        }
        humps
    };
    let (typed, name) = (humps(typed), humps(name));
    typed.len() > 1
        && typed.len() <= name.len()
        && typed.iter().zip(&name).all(|(typed, hump)| hump.starts_with(typed.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subcommand_is_known_by_its_beginning_and_its_aliases() {
        for (program, typed, wanted, expected) in [
            ("npm", "publ", "publish", true),
            ("npm", "PUB", "publish", true),
            ("npm", "publishx", "publish", false),
            ("npm", "isntall", "install", true),
            ("npm", "insta", "add", true),
            ("npm", "ci", "cit", false),
            ("npm", "clean-i", "ci", true),
            ("npm", "install", "install-test", false),
            ("npm", "pu", "publ*", true),
            ("npm", "", "publish", false),
            ("pnpm", "publ", "publish", false),
            ("pnpm", "i", "install", true),
            ("git", "pus", "push", false),
            ("hg", "pus", "push", true),
            ("gem", "pu", "push", true),
            ("gradlew", "publ", "publish", true),
            ("cargo", "r", "run", true),
            ("cargo", "publ", "publish", false),
            ("npm", "i", "info", false),
            ("npm", "c", "ci", false),
            ("gradle", ":app:publish", "publish", true),
            ("gradle", "pTML", "publishToMavenLocal", true),
            ("gradle", "build", "buildDependents", false),
            ("gradle", "bT", "publishToMavenLocal", false),
        ] {
            assert_eq!(may_mean(program, typed, wanted, 0), expected, "{program} {typed} {wanted}");
        }
        // A program does not accept abbreviations of script names.
        assert!(!may_mean("npm", "deploy", "deploy:all", 1) && may_mean("btrfs", "del", "delete", 1));
    }
}
