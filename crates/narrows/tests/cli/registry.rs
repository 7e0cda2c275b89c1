//! Compares the registry entry and the table of providers with the binary.

use narrows_model::Provider;
use serde_json::{Map, Value};
use url::Url;

const ENTRY: &str = include_str!("../../../../registry/agent.json");
const ICON: &str = include_str!("../../../../registry/icon.svg");
const SETTINGS_PAGE: &str = include_str!("../../../../docs/reference/narrows-toml.md");

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().expect("an object")
}

fn text<'a>(of: &'a Map<String, Value>, name: &str) -> &'a str {
    of.get(name).and_then(Value::as_str).expect(name)
}

#[track_caller]
fn assert_known_keys(of: &Map<String, Value>, known: &[&str]) {
    for name in of.keys() {
        assert!(known.contains(&name.as_str()), "`{name}` is not in the registry's schema");
    }
}

#[test]
fn the_entry_has_the_form_of_the_registry() {
    let entry: Value = serde_json::from_str(ENTRY).expect("JSON");
    let entry = object(&entry);
    let optional = ["repository", "authors", "license", "icon"];
    assert_known_keys(
        entry,
        &[["id", "name", "version", "description", "distribution"].as_slice(), &optional].concat(),
    );
    let id = text(entry, "id");
    let follows = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    assert!(id.starts_with(|c: char| c.is_ascii_lowercase()) && id.chars().all(follows), "{id}");
    assert!(!text(entry, "name").is_empty());
    assert!(!text(entry, "description").is_empty());
    assert_eq!(text(entry, "version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(text(entry, "license"), "Apache-2.0");
    assert_eq!(text(entry, "icon"), "icon.svg");
    let numbers: Vec<&str> = text(entry, "version").split('.').collect();
    assert!(numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok()), "{numbers:?}");
}

#[test]
fn the_entry_is_started_as_the_agent() {
    let entry: Value = serde_json::from_str(ENTRY).expect("JSON");
    let distribution = object(&entry["distribution"]);
    assert_known_keys(distribution, &["binary"]);
    let platforms = object(&distribution["binary"]);
    // Only Linux is supported.
    assert_eq!(platforms.keys().collect::<Vec<_>>(), ["linux-x86_64", "linux-aarch64"]);
    for (platform, binary) in platforms {
        let binary = object(binary);
        assert_known_keys(binary, &["archive", "cmd", "args", "env"]);
        let archive = text(binary, "archive");
        let url = Url::parse(archive).expect("a URL");
        assert_eq!(url.scheme(), "https");
        assert!(archive.contains(env!("CARGO_PKG_VERSION")) && archive.contains(platform), "{archive}");
        assert!(!archive.contains("latest"), "{archive}");
        assert_eq!((text(binary, "cmd"), &binary["args"]), ("./narrows", &serde_json::json!(["acp"])));
    }
}

#[test]
fn the_icon_is_small_and_has_one_color() {
    assert!(ICON.starts_with("<svg ") && ICON.trim_end().ends_with("</svg>"));
    for attribute in [r#"width="16""#, r#"height="16""#, r#"viewBox="0 0 16 16""#] {
        assert!(ICON.contains(attribute), "{attribute}");
    }
    let colours = ["fill=\"", "stroke=\""].iter().flat_map(|name| ICON.split(name).skip(1));
    let colours: Vec<&str> = colours.filter_map(|rest| rest.split('"').next()).collect();
    assert!(colours.contains(&"currentColor"));
    assert!(colours.iter().all(|colour| ["currentColor", "none"].contains(colour)), "{colours:?}");
    for forbidden in ["style", "<script", "href", "#"] {
        assert!(!ICON.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn every_provider_is_documented_and_recognized_by_its_url() {
    let section = SETTINGS_PAGE.split("\n## Providers\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let section = section.expect("a section on providers");
    let rows = section.lines().filter(|line| line.starts_with("| `") && !line.starts_with("| `provider`"));
    let mut documented = Vec::new();
    for row in rows {
        let cells: Vec<&str> =
            row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let provider =
            Provider::from_name(cells[0]).unwrap_or_else(|| panic!("no provider is called {}", cells[0]));
        let url = Url::parse(cells[2]).unwrap_or_else(|error| panic!("{error}: {row}"));
        assert_eq!(Provider::from_url(&url), provider, "{row}");
        documented.push(provider);
    }
    let all = Provider::all().filter(|provider| !matches!(provider, Provider::Demo | Provider::Other));
    assert_eq!(documented, all.collect::<Vec<_>>());
}
