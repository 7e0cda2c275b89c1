//! Rules from a file: deny, ask or allow, by kind, tool, path, command, address or MCP server.

mod example;
mod matching;
mod parse;

pub(crate) use matching::{Field, Fit, fit_text};

use narrows_config::Finding;

use crate::access::Access;
use crate::address::UrlPattern;
use crate::command::CommandPattern;
use crate::decision::{RuleName, Verdict};
use crate::kind::Kind;
use crate::path::PathPattern;

/// What a rule file says before its first rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// `access`.
    pub access: Option<Access>,
    /// `network`.
    pub network: Option<bool>,
    /// `web_search`.
    pub web_search: Option<bool>,
}

/// The rules of a file, or of several. Their order means nothing.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub(crate) list: Vec<Rule>,
}

impl Rules {
    /// Reads a rule file; `file_name` is what errors call it. The examples in it are tried.
    pub fn parse(text: &str, file_name: &str) -> Result<(Self, Header), Finding> {
        parse::file(text, file_name)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// One rule. A list that is empty was not written, and matches everything.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) name: RuleName,
    pub(crate) effect: Verdict,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) tools: Vec<String>,
    pub(crate) servers: Vec<String>,
    pub(crate) paths: Vec<PathPattern>,
    pub(crate) commands: Vec<CommandPattern>,
    pub(crate) urls: Vec<UrlPattern>,
    /// Names of variables that a command may set and still be what this rule is about.
    pub(crate) env: Vec<String>,
}
