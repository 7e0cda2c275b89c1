//! Builds a tree from YAML events, within limits. Aliases and duplicate keys are errors.

use granit_parser::{Event, Options, Parser, ScalarStyle, Span};

use super::scalar::resolve;
use super::{Content, Key, Node, SourcePos};
use crate::code::Code;
use crate::finding::Draft;

const MAX_DEPTH: usize = 32;

const MAX_NODES: usize = 20_000;

/// Parses YAML that begins on `line` of its file. Problems are added to `findings`. If no tree is returned,
/// at least one of them is an error.
pub(crate) fn parse(yaml: &str, line: usize, findings: &mut Vec<Draft>) -> Option<Node> {
    let mut options = Options::default();
    options.flow_nesting_limit = MAX_DEPTH * 2;
    options.block_nesting_limit = MAX_DEPTH * 2;
    options.disallow_directives = true;
    let mut builder = Builder {
        line: line - 1,
        lines: yaml.lines().count(),
        open: Vec::new(),
        root: None,
        nodes: 0,
        findings,
    };
    for event in Parser::new_from_str_with_options(yaml, options) {
        let taken = match event {
            Ok((event, span)) => builder.take(event, span),
            Err(error) => {
                let at = builder.place(error.marker().line(), error.marker().col());
                let message = format!("invalid YAML: {}", narrows_base::text::quoted(&error.info(), 120));
                let hint = "check the indentation, and quote strings that contain `: ` or ` #`";
                Err(Draft::error(Code::Syntax, at, message).hint(hint))
            }
        };
        if let Err(draft) = taken {
            findings.push(draft);
            return None;
        }
    }
    builder.root.take()
}

struct Builder<'a> {
    /// Number of lines in the file before the YAML.
    line: usize,
    lines: usize,
    open: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
    findings: &'a mut Vec<Draft>,
}

struct Open {
    at: SourcePos,
    content: Content,
    /// Key of the next value, and `true` if the map already has this key.
    key: Option<(Key, bool)>,
}

impl Builder<'_> {
    fn place(&self, line: usize, column: usize) -> SourcePos {
        // The YAML may end on the line after its last line, where the closing fence is.
        SourcePos { line: self.line + line.clamp(1, self.lines + 1), column: column + 1 }
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Draft> {
        let at = self.place(span.start.line(), span.start.col());
        if let Some(tag) = event.tag().filter(|tag| !tag.is_yaml_core_schema_tag("str")) {
            let at = span.tag_start().map_or(at, |start| self.place(start.line(), start.col()));
            let message = format!("a tag (`{}`)", narrows_base::text::quoted(&tag.original(), 40));
            let draft = Draft::error(Code::Tag, at, message);
            return Err(draft.hint("remove it; quote the value if it is a string"));
        }
        match event {
            Event::Scalar(text, style, _, tag) => {
                // A missing value is represented by an empty text.
                let text = if style == ScalarStyle::Plain && span.is_empty() { "".into() } else { text };
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let content = if plain { resolve(&text) } else { Content::Text(text.into_owned()) };
                self.put(Node { at, content })
            }
            Event::SequenceStart(..) => self.descend(at, Content::List(Vec::new())),
            Event::MappingStart(..) => self.descend(at, Content::Map(Vec::new())),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => self.put(Node { at: open.at, content: open.content }),
                None => Ok(()),
            },
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                let draft = Draft::error(Code::Alias, at, "aliases (`*name`) are not supported");
                Err(draft.hint("write the value in full, or quote a string that begins with `*`"))
            }
            Event::DocumentStart(..) if self.root.is_some() => {
                Err(Draft::error(Code::Syntax, at, "a second document begins here")
                    .hint("put all keys into one front matter"))
            }
            _ => Ok(()),
        }
    }

    fn descend(&mut self, at: SourcePos, content: Content) -> Result<(), Draft> {
        if self.open.len() == MAX_DEPTH {
            let message = format!("values are nested more than {MAX_DEPTH} deep");
            return Err(Draft::error(Code::TooDeep, at, message).hint("reduce the nesting"));
        }
        if self.open.last().is_some_and(|open| matches!(open.content, Content::Map(_)) && open.key.is_none())
        {
            return Err(Draft::error(Code::Key, at, "a key must not be a list or a map")
                .hint("write a string as key"));
        }
        self.open.push(Open { at, content, key: None });
        Ok(())
    }

    fn put(&mut self, node: Node) -> Result<(), Draft> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let message = format!("there are more than {MAX_NODES} values");
            return Err(Draft::error(Code::TooLong, node.at, message).hint("reduce the number of values"));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut open.content {
            Content::List(items) => items.push(node),
            Content::Map(entries) => match open.key.take() {
                None => open.key = Some(key(&node, entries, self.findings)?),
                // The duplicate key was reported, and the first value of the key counts.
                Some((_, true)) => {}
                Some((key, false)) => {
                    // A missing value has no position, so it gets the position of its key.
                    let empty = matches!(&node.content, Content::Null(raw) if raw.is_empty());
                    let at = if empty { key.at } else { node.at };
                    entries.push((key, Node { at, ..node }));
                }
            },
            _ => {}
        }
        Ok(())
    }
}

fn key(node: &Node, entries: &[(Key, Node)], findings: &mut Vec<Draft>) -> Result<(Key, bool), Draft> {
    let Some(text) = node.raw().map(ToOwned::to_owned) else {
        return Err(Draft::error(Code::Key, node.at, "a key must not be a list or a map")
            .hint("write a string as key"));
    };
    if text == "<<" {
        let draft = Draft::error(Code::Alias, node.at, "merge keys (`<<`) are not supported");
        return Err(draft.hint("write the keys in full"));
    }
    let first = entries.iter().find(|(key, _)| key.text == text).map(|(key, _)| key.at);
    if let Some(first) = first {
        let message = format!(
            "`{}` is a duplicate key, first on line {}",
            narrows_base::text::quoted(&text, 80),
            first.line
        );
        findings.push(Draft::error(Code::Duplicate, node.at, message).value(&text).hint("keep one of them"));
    }
    Ok((Key { text, at: node.at }, first.is_some()))
}
