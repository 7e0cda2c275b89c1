//! Rules from a file: deny, ask or allow, by kind, tool, path, command, URL or MCP server.

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

/// Settings of a rule file that precede its first rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    pub access: Option<Access>,
    pub network: Option<bool>,
    pub web_search: Option<bool>,
}

/// The rules of one or several files, in any order.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    pub(crate) list: Vec<Rule>,
}

impl Rules {
    /// Parses a rule file and checks its examples. `file_name` is the name of the file in findings.
    pub fn parse(text: &str, file_name: &str) -> Result<(Self, Header), Finding> {
        parse::file(text, file_name)
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns `true` if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// One rule. A field with an empty list is missing in the file, and matches everything.
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
    /// Names of variables that a command may set. A command that sets others does not match with certainty.
    pub(crate) env: Vec<String>,
}
