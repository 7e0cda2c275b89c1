//! From TOML to rules.

use narrows_base::suggest::nearest;

use super::node::{Fields, File, Node, Read};
use super::{Header, Rule, Rules, example};
use crate::access::Access;
use crate::address::UrlPattern;
use crate::command::{CommandPattern, split};
use crate::decision::{RuleName, Verdict, shown};
use crate::kind::Kind;
use crate::path::PathPattern;

/// Fields by which a rule matches.
pub(super) const CONDITIONS: [&str; 6] = ["kind", "tool", "path", "command", "url", "server"];

pub(super) fn file(text: &str, name: &str) -> Read<(Rules, Header)> {
    File { name, text }.document(|fields| {
        fields.only(&["access", "network", "web_search", "rule"])?;
        let header = Header {
            access: fields.get("access").map(access).transpose()?,
            network: fields.get("network").map(Node::flag).transpose()?,
            web_search: fields.get("web_search").map(Node::flag).transpose()?,
        };
        let list = fields.get("rule").map_or(Ok(Vec::new()), rules)?;
        Ok((Rules { list }, header))
    })
}

fn access(node: Node<'_>) -> Read<Access> {
    let text = node.string()?;
    text.parse().map_err(|_| unknown(node, "access", text, &["low", "medium", "high"]))
}

fn rules(node: Node<'_>) -> Read<Vec<Rule>> {
    if !node.is_list() {
        return Err(node.fail("`rule` must be a list of tables", Some("write [[rule]], with two brackets")));
    }
    node.list()?.into_iter().enumerate().map(|(index, node)| rule(node.table()?, index + 1)).collect()
}

fn rule(fields: Fields<'_>, number: usize) -> Read<Rule> {
    let mut known = vec!["effect", "name", "because", "match", "not_match", "env"];
    known.extend(CONDITIONS);
    fields.only(&known)?;
    let effect = fields.need("effect", "write effect = \"deny\", \"ask\" or \"allow\"")?;
    let rule = Rule {
        name: RuleName {
            file: fields.file.name.to_owned(),
            line: fields.line(),
            number,
            name: fields.string("name")?,
            reason: fields.string("because")?,
        },
        effect: verdict(effect)?,
        kinds: each(fields, "kind", kinds)?.into_iter().flatten().collect(),
        tools: each(fields, "tool", name)?,
        servers: each(fields, "server", name)?,
        paths: each(fields, "path", |node| {
            PathPattern::parse(node.string()?).map_err(|what| node.fail(what, None))
        })?,
        commands: each(fields, "command", command)?,
        urls: each(fields, "url", |node| {
            UrlPattern::parse(node.string()?).map_err(|what| node.fail(what, None))
        })?,
        env: each(fields, "env", name)?,
    };
    if let Some(env) = fields.get("env").filter(|_| rule.effect == Verdict::Deny) {
        let hint = "leave it out: a deny rule matches whatever variables a command sets";
        return Err(env.fail("`env` is for rules that allow or ask", Some(hint)));
    }
    if CONDITIONS.iter().all(|field| fields.get(field).is_none()) {
        let hint = format!("give it one of {}, for instance kind = \"*\"", CONDITIONS.join(", "));
        return Err(fields.fail("this rule would match everything", Some(&hint)));
    }
    example::check(&rule, fields)?;
    Ok(rule)
}

/// The value of `key`, or each in its list, read by `reading`.
fn each<'a, T>(fields: Fields<'a>, key: &str, reading: impl Fn(Node<'a>) -> Read<T>) -> Read<Vec<T>> {
    let Some(node) = fields.get(key) else { return Ok(Vec::new()) };
    node.any_of()?.into_iter().map(reading).collect()
}

fn verdict(node: Node<'_>) -> Read<Verdict> {
    let text = node.string()?;
    [Verdict::Deny, Verdict::Ask, Verdict::Allow]
        .into_iter()
        .find(|verdict| verdict.name() == text)
        .ok_or_else(|| unknown(node, "effect", text, &["deny", "ask", "allow"]))
}

/// A kind, or all of them.
fn kinds(node: Node<'_>) -> Read<Vec<Kind>> {
    let text = node.string()?;
    if text == "*" { Ok(Kind::ALL.to_vec()) } else { kind(node).map(|kind| vec![kind]) }
}

pub(super) fn kind(node: Node<'_>) -> Read<Kind> {
    let text = node.string()?;
    let known = Kind::ALL.into_iter().find(|kind| kind.name() == text);
    known.ok_or_else(|| unknown(node, "kind", text, &Kind::ALL.map(Kind::name)))
}

fn name(node: Node<'_>) -> Read<String> {
    let text = node.string()?;
    if text.is_empty() {
        return Err(node.fail("a name must not be empty", Some("write \"*\" for any")));
    }
    Ok(text.to_owned())
}

/// One command: a line of words, or a list of them.
fn command(node: Node<'_>) -> Read<CommandPattern> {
    CommandPattern::new(words(node)?).map_err(|what| node.fail(what, None))
}

pub(super) fn words(node: Node<'_>) -> Read<Vec<String>> {
    if node.is_string() {
        split(node.string()?).map_err(|what| node.fail(what, None))
    } else {
        node.list()?.into_iter().map(|word| word.string().map(str::to_owned)).collect()
    }
}

/// The complaint that `text` is none of `known`.
fn unknown(node: Node<'_>, field: &str, text: &str, known: &[&str]) -> super::RulesError {
    let hint = nearest(text, known.iter().copied()).map(|near| format!("did you mean \"{near}\"?"));
    let what = format!("`{field}` must be one of {}, not \"{}\"", known.join(", "), shown(text));
    node.fail(what, hint.as_deref())
}
