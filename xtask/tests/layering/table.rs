//! The layers: the crates that each crate may use. A new crate needs a row.

pub(crate) struct Layer {
    /// Directory of the crate. Its package is `narrows-` and this name.
    pub(crate) name: &'static str,
    pub(crate) may_use: MayUse,
}

pub(crate) enum MayUse {
    /// Only these, which must be above it in the table.
    Only(&'static [&'static str]),
    /// All crates above it in the table.
    All,
}

use MayUse::{All, Only};

/// All crates from the leaves to the binary. A crate may only use crates above it, and of those only the
/// named ones.
pub(crate) const LAYERS: &[Layer] = &[
    Layer { name: "base", may_use: Only(&[]) },
    Layer { name: "config", may_use: Only(&["base"]) },
    Layer { name: "wire", may_use: Only(&["base"]) },
    Layer { name: "process", may_use: Only(&["base"]) },
    Layer { name: "policy", may_use: Only(&["base", "config"]) },
    Layer { name: "audit", may_use: Only(&["base"]) },
    Layer { name: "egress", may_use: Only(&["base"]) },
    Layer { name: "model", may_use: Only(&["base"]) },
    Layer { name: "store", may_use: Only(&["base"]) },
    Layer { name: "mcp", may_use: Only(&["base", "process"]) },
    Layer { name: "acp", may_use: Only(&["base", "wire"]) },
    Layer { name: "link", may_use: Only(&["base", "wire", "process"]) },
    Layer { name: "remote", may_use: Only(&["base", "config", "wire", "acp", "link", "policy"]) },
    Layer { name: "rpc", may_use: Only(&["base", "wire", "acp", "link"]) },
    Layer { name: "manifest", may_use: Only(&["base", "policy"]) },
    Layer {
        name: "agent",
        may_use: Only(&["base", "wire", "acp", "link", "rpc", "model", "store", "mcp", "process"]),
    },
    Layer {
        name: "client",
        may_use: Only(&["base", "wire", "acp", "rpc", "link", "process", "policy", "mcp"]),
    },
    Layer { name: "govern", may_use: Only(&["base", "wire", "acp", "link", "policy", "audit", "manifest"]) },
    Layer { name: "fake", may_use: Only(&["base", "config", "wire", "acp", "rpc"]) },
    Layer { name: "bus", may_use: Only(&["base", "config", "wire", "acp", "link", "process"]) },
    Layer { name: "narrows", may_use: All },
    Layer { name: "testkit", may_use: All },
];

/// Packages of the workspace outside `crates/`. `true` if they may use the crates inside.
pub(crate) const TOOLS: &[(&str, bool)] =
    &[("narrows-bench", true), ("narrows-fuzz-targets", true), ("xtask", false)];

pub(crate) struct Reserved {
    pub(crate) covers: fn(&str) -> bool,
    pub(crate) to: &'static [&'static str],
    pub(crate) reason: &'static str,
}

pub(crate) const RESERVED: &[Reserved] = &[
    Reserved {
        // The schema crate contains only types, and every crate may use it.
        covers: |name| name.starts_with("agent-client-protocol") && name != "agent-client-protocol-schema",
        to: &["narrows-testkit", "narrows-bench", "narrows-fuzz-targets"],
        reason: "the official SDK is the independent peer of the tests, its queues are unbounded",
    },
    Reserved {
        covers: |name| name == "sonic-rs",
        to: &["narrows-testkit", "narrows-bench", "narrows-fuzz-targets"],
        reason: "it is only for comparisons; narrows-wire reads messages",
    },
    Reserved {
        covers: |name| matches!(name, "clap" | "clap_complete" | "anyhow"),
        to: &["narrows"],
        reason: "arguments belong to the binary, and errors are typed everywhere else",
    },
];

/// External crates that a crate must not use, with the reason.
pub(crate) const BANNED: &[(&str, &str, &str)] =
    &[("narrows-wire", "tokio", "it is bytes in and bytes out, usable from any runtime and from none")];

/// Returns the row of a package and its position.
pub(crate) fn layer(package: &str) -> Option<(usize, &'static Layer)> {
    let directory = if package == "narrows" { package } else { package.strip_prefix("narrows-")? };
    // The binary's directory is `narrows`, but its package is not `narrows-narrows`.
    LAYERS.iter().enumerate().find(|(_, layer)| layer.name == directory && package_of(layer) == package)
}

pub(crate) fn package_of(layer: &Layer) -> String {
    if layer.name == "narrows" { layer.name.to_owned() } else { format!("narrows-{}", layer.name) }
}

#[test]
fn crates_use_only_crates_above_them() {
    for (row, layer) in LAYERS.iter().enumerate() {
        let Only(names) = layer.may_use else { continue };
        for name in names {
            let above = LAYERS[..row].iter().any(|other| other.name == *name);
            assert!(above, "`{}` may not use `{name}`: it is not above in the table", layer.name);
        }
    }
}
