//! The rules, as functions from one manifest to the sentences that describe its problems.

use crate::table::{BANNED, LAYERS, MayUse, RESERVED, TOOLS, layer, package_of};

pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of `[dependencies]`, `[build-dependencies]` or `[dev-dependencies]`.
pub(crate) struct Dependency {
    /// Name of the package, not the name it is renamed to.
    pub(crate) name: String,
    pub(crate) dev: bool,
}

/// Returns the problems of `package`, one sentence each.
pub(crate) fn problems(package: &Package) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(problem) = place(package) {
        problems.push(problem);
    }
    for dependency in &package.dependencies {
        problems.extend(own(package, dependency));
        problems.extend(foreign(package, dependency));
    }
    problems
}

/// Checks that the package has a row and is in the directory of its name.
fn place(package: &Package) -> Option<String> {
    let Package { name, manifest, .. } = package;
    if let Some((_, layer)) = layer(name) {
        let expected = format!("/crates/{}/Cargo.toml", layer.name);
        return (!manifest.ends_with(&expected))
            .then(|| format!("`{name}` must be in crates/{}, but is in {manifest}.", layer.name));
    }
    if manifest.contains("/crates/") || !TOOLS.iter().any(|(tool, _)| tool == name) {
        return Some(format!(
            "`{name}` is not known: give it a row in xtask/tests/layering/table.rs, and say there what it may use."
        ));
    }
    None
}

/// Checks that the package uses only the workspace crates that its row allows.
fn own(package: &Package, dependency: &Dependency) -> Option<String> {
    let Dependency { name: used, dev } = dependency;
    let (used_row, used_layer) = layer(used)?;
    let user = &package.name;
    if used_layer.name == "testkit" && *dev {
        return None;
    }
    let (row, user_layer) = match layer(user) {
        Some(found) => found,
        None if TOOLS.contains(&(user, true)) => return None,
        None => return Some(format!("`{user}` must not use `{used}`: it is outside the product.")),
    };
    let kind = if *dev { "even in tests, where only narrows-testkit is free to all" } else { "as it does" };
    match user_layer.may_use {
        MayUse::All if used_row < row => None,
        MayUse::Only(names) if names.contains(&used_layer.name) => None,
        MayUse::All => Some(format!("`{user}` must not use `{used}` {kind}: it is below in the table.")),
        MayUse::Only(names) => {
            let allowed: Vec<String> =
                LAYERS.iter().filter(|layer| names.contains(&layer.name)).map(package_of).collect();
            let allowed = if allowed.is_empty() {
                "no crates of this workspace".to_owned()
            } else {
                allowed.join(", ")
            };
            Some(format!(
                "`{user}` must not use `{used}` {kind}: it may use {allowed}. Move the shared part up, or change \
                 the table in xtask/tests/layering/table.rs together with ARCHITECTURE.md."
            ))
        }
    }
}

/// Checks that the package uses no external crate that is banned or reserved for other crates.
fn foreign(package: &Package, dependency: &Dependency) -> Option<String> {
    let user = package.name.as_str();
    let used = dependency.name.as_str();
    let reserved = RESERVED.iter().find(|reserved| (reserved.covers)(used) && !reserved.to.contains(&user));
    if let Some(reserved) = reserved {
        let to = reserved.to.join(", ");
        return Some(format!("`{user}` must not use `{used}`, only {to} may: {}.", reserved.reason));
    }
    let (_, _, reason) = BANNED.iter().find(|(banned_for, name, _)| (*banned_for, *name) == (user, used))?;
    Some(format!("`{user}` must not use `{used}`: {reason}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the problem of a package in the right directory with one dependency. The prefix `dev:` means
    /// a development dependency.
    #[track_caller]
    fn check(name: &str, dependency: &str, expected: Option<&str>) {
        let directory = match name {
            "narrows-bench" | "xtask" | "narrows-fuzz-targets" => name.to_owned(),
            "narrows" => "crates/narrows".to_owned(),
            _ => format!("crates/{}", name.trim_start_matches("narrows-")),
        };
        let dev = dependency.starts_with("dev:");
        let dependency = Dependency { name: dependency.trim_start_matches("dev:").to_owned(), dev };
        let package = Package {
            name: name.to_owned(),
            manifest: format!("/somewhere/{directory}/Cargo.toml"),
            dependencies: vec![dependency],
        };
        match (problems(&package).as_slice(), expected) {
            ([], None) => {}
            ([problem], Some(expected)) => assert!(problem.contains(expected), "{problem}"),
            (problems, _) => panic!("expected {expected:?}, found {problems:#?}"),
        }
    }

    #[test]
    fn crates_use_what_their_row_names() {
        check("narrows-acp", "narrows-wire", None);
        check("narrows-base", "narrows-wire", Some("it may use no crates of this workspace."));
        check("narrows-rpc", "narrows-link", None);
        check(
            "narrows-rpc",
            "narrows-process",
            Some("it may use narrows-base, narrows-wire, narrows-acp, narrows-link."),
        );
        check("narrows-wire", "narrows-process", Some("it may use narrows-base."));
        check("narrows-link", "narrows-rpc", Some("`narrows-link` must not use `narrows-rpc` as it does"));
        check("narrows-rpc", "dev:narrows-fake", Some("even in tests"));
        check("narrows", "narrows-bus", None);
    }

    #[test]
    fn testkit_is_for_tests_only() {
        check("narrows-rpc", "dev:narrows-testkit", None);
        check("narrows-rpc", "narrows-testkit", Some("must not use `narrows-testkit`"));
        check("narrows", "dev:narrows-testkit", None);
        check("narrows", "narrows-testkit", Some("it is below in the table"));
        check("narrows-testkit", "narrows-fake", None);
    }

    #[test]
    fn tools_are_outside_the_layers() {
        check("narrows-bench", "narrows-wire", None);
        check("narrows-fuzz-targets", "narrows-wire", None);
        check("xtask", "narrows-wire", Some("it is outside the product"));
        check("narrows-wire", "serde_json", None);
    }

    #[test]
    fn an_unknown_crate_needs_a_row() {
        check("narrows-helm", "bytes", Some("`narrows-helm` is not known: give it a row"));
        check("narrows-narrows", "bytes", Some("`narrows-narrows` is not known"));
        let moved = Package {
            name: "narrows-wire".to_owned(),
            manifest: "/somewhere/crates/frames/Cargo.toml".to_owned(),
            dependencies: Vec::new(),
        };
        assert!(problems(&moved)[0].contains("must be in crates/wire"));
    }

    #[test]
    fn the_sdk_and_the_rival_parser_are_for_comparison() {
        check("narrows-testkit", "agent-client-protocol", None);
        check("narrows-bench", "sonic-rs", None);
        check("narrows-acp", "agent-client-protocol-schema", None);
        check("narrows-rpc", "dev:agent-client-protocol", Some("the official SDK is the independent peer"));
        check("narrows-link", "agent-client-protocol-http", Some("only narrows-testkit, narrows-bench"));
        check("narrows-wire", "sonic-rs", Some("must not use `sonic-rs`"));
    }

    #[test]
    fn arguments_and_loose_errors_belong_to_the_binary() {
        check("narrows", "clap", None);
        check("narrows", "anyhow", None);
        check("narrows-fake", "clap", Some("only narrows may"));
        check("narrows-process", "dev:anyhow", Some("errors are typed everywhere else"));
    }

    #[test]
    fn wire_has_no_runtime() {
        check("narrows-wire", "tokio", Some("bytes in and bytes out"));
        check("narrows-wire", "dev:tokio", Some("bytes in and bytes out"));
        check("narrows-process", "tokio", None);
    }
}
