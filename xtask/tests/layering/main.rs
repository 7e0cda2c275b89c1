//! The allowed dependencies between crates. [`table`] lists them, and [`rules`] checks them.

mod rules;
mod table;

use std::process::Command;

use rules::{Dependency, Package};
use serde_json::Value;

/// Returns the packages of the workspace with their dependencies.
fn workspace() -> Vec<Package> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    metadata["packages"].as_array().expect("packages").iter().map(package).collect()
}

fn package(value: &Value) -> Package {
    let dependencies = value["dependencies"].as_array().expect("dependencies").iter();
    Package {
        name: text(&value["name"]),
        manifest: text(&value["manifest_path"]),
        dependencies: dependencies
            .map(|value| Dependency { name: text(&value["name"]), dev: value["kind"] == "dev" })
            .collect(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a string").to_owned()
}

#[test]
fn the_workspace_keeps_its_layers() {
    let packages = workspace();
    assert!(packages.iter().any(|package| package.name == "narrows-wire"), "the workspace was not read");
    let problems: Vec<String> = packages.iter().flat_map(rules::problems).collect();
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}
