//! Parses rules from TOML.

use narrows_config::{Finding, Findings, Node, SettingValue, Table};

use super::{Header, Rule, Rules, example};
use crate::access::Access;
use crate::address::UrlPattern;
use crate::command::{CommandPattern, split};
use crate::decision::{RuleName, Verdict};
use crate::kind::Kind;
use crate::path::PathPattern;

pub(super) const CONDITIONS: [&str; 6] = ["kind", "tool", "path", "command", "url", "server"];

pub(super) fn file(text: &str, name: &str) -> Result<(Rules, Header), Finding> {
    Node::read_toml(&Findings::new(name, text).showing_values(), |table| {
        table.only(&["access", "network", "web_search", "rule"], &[]);
        let header = Header {
            access: table.get("access").and_then(access),
            network: table.get("network").and_then(SettingValue::flag),
            web_search: table.get("web_search").and_then(SettingValue::flag),
        };
        let rules = table.get("rule").and_then(SettingValue::tables).into_iter().flatten().enumerate();
        let list = rules.filter_map(|(index, table)| rule(table, index + 1)).collect();
        Some((Rules { list }, header))
    })
}

fn access(item: SettingValue<'_>) -> Option<Access> {
    item.named(|text| text.parse().ok(), &["low", "medium", "high"])
}

fn rule(table: Table<'_>, number: usize) -> Option<Rule> {
    let mut known = vec!["effect", "name", "because", "match", "not_match", "env"];
    known.extend(CONDITIONS);
    table.only(&known, &[]);
    let effect = table.required("effect", "write effect = \"deny\", \"ask\" or \"allow\"")?;
    let rule = Rule {
        name: RuleName {
            file: table.findings.file().to_owned(),
            line: table.findings.pos(table.at).line,
            number,
            name: table.string("name"),
            reason: table.string("because"),
        },
        effect: effect.one_of(&[Verdict::Deny, Verdict::Ask, Verdict::Allow].map(|it| (it.name(), it)))?,
        kinds: each(table, "kind", kinds).into_iter().flatten().collect(),
        tools: each(table, "tool", name),
        servers: each(table, "server", name),
        paths: each(table, "path", |item| pattern(item, PathPattern::parse(item.string()?))),
        commands: each(table, "command", command),
        urls: each(table, "url", |item| pattern(item, UrlPattern::parse(item.string()?))),
        env: each(table, "env", name),
    };
    if let Some(env) = table.get("env").filter(|_| rule.effect == Verdict::Deny) {
        let hint = "leave it out: a deny rule matches regardless of variables";
        return env.error("`env` is for rules that allow or ask", Some(hint));
    }
    if CONDITIONS.iter().all(|field| table.get(field).is_none()) {
        let hint = format!("give it one of {}, for instance kind = \"*\"", CONDITIONS.join(", "));
        return table.error("this rule would match everything", Some(&hint));
    }
    example::check(&rule, table)?;
    Some(rule)
}

/// Returns the values that `read` finds in `key`, or in each entry of its list.
fn each<'a, T>(table: Table<'a>, key: &str, read: impl Fn(SettingValue<'a>) -> Option<T>) -> Vec<T> {
    table.get(key).and_then(any_of).into_iter().flatten().filter_map(read).collect()
}

/// Returns the value, or the elements of a list, which must not be empty.
pub(super) fn any_of(item: SettingValue<'_>) -> Option<Vec<SettingValue<'_>>> {
    if !item.is_list() {
        return Some(vec![item]);
    }
    let list: Vec<_> = item.list("")?.collect();
    if list.is_empty() {
        return item.error(format!("`{}` must not be empty", item.name), Some("leave it out"));
    }
    Some(list)
}

fn pattern<T>(item: SettingValue<'_>, parsed: Result<T, impl Into<String>>) -> Option<T> {
    parsed.map_or_else(|what| item.error(what, None), Some)
}

fn kinds(item: SettingValue<'_>) -> Option<Vec<Kind>> {
    if item.string()? == "*" { Some(Kind::ALL.to_vec()) } else { kind(item).map(|kind| vec![kind]) }
}

pub(super) fn kind(item: SettingValue<'_>) -> Option<Kind> {
    item.string()?;
    item.one_of(&Kind::ALL.map(|kind| (kind.name(), kind)))
}

fn name(item: SettingValue<'_>) -> Option<String> {
    let text = item.string()?;
    if text.is_empty() {
        return item.error("a name must not be empty", Some("write \"*\" for any"));
    }
    Some(text.to_owned())
}

fn command(item: SettingValue<'_>) -> Option<CommandPattern> {
    pattern(item, CommandPattern::new(words(item)?))
}

pub(super) fn words(item: SettingValue<'_>) -> Option<Vec<String>> {
    if item.is_text() {
        pattern(item, split(item.string()?))
    } else {
        item.list("")?.map(|word| word.string().map(str::to_owned)).collect()
    }
}
