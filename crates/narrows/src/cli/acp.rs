//! The arguments of `narrows acp`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{ModelArgs, help};

/// Be an agent for any Chat Completions endpoint, on stdin and stdout
///
/// For editors and other clients of the Agent Client Protocol, which start it by themselves. Every model that speaks
/// Chat Completions is its model: OpenAI, Azure, Bedrock, OpenRouter, Ollama, vLLM, LiteLLM, llama.cpp, and others.
///
/// Settings come from narrows.toml, over them the variables, over them these flags. Flags that it does not know it
/// ignores, with a line in the log.
///
/// Where NARROWS_CONNECT or `connect` in the table `[acp]` of narrows.toml has a URL, and there are no flags, it is `narrows
/// connect` to that URL instead.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::ACP), after_long_help = help::settings(help::ACP))]
pub(crate) struct Acp {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// How a client hears of a model that failed [default: text]
    #[arg(long, value_enum, value_name = "FORM", hide_short_help = true, help_heading = "Sessions")]
    pub(crate) errors: Option<Errors>,

    /// Where sessions are kept [default: narrows in your data directory]
    #[arg(long, value_name = "DIR", help_heading = "Sessions")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Keep no sessions: they end with the process
    #[arg(long, conflicts_with = "data_dir", help_heading = "Sessions")]
    pub(crate) no_store: bool,

    /// MCP servers that clients may name: `none`, or `any` for an agent of your own editor [default: any]
    ///
    /// With `any` a client can start every command as your user, as editors do. Take `none` where the client is somebody
    /// else: behind a socket of another program. Servers that run in the client itself are always used.
    #[arg(long, value_enum, value_name = "WHICH", hide_short_help = true, help_heading = "Sessions")]
    pub(crate) mcp: Option<McpChoice>,

    /// Be the agent that is built in, even where NARROWS_CONNECT or narrows.toml names a remote one
    #[arg(long, hide_short_help = true)]
    pub(crate) local: bool,

    /// What was among the arguments and means nothing here.
    #[arg(skip)]
    pub(crate) ignored: Vec<String>,
}

/// Which MCP servers clients may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum McpChoice {
    /// None that the agent would start or connect to
    None,
    /// Every one
    Any,
}

/// How a client hears of a model that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Errors {
    /// As text in the answer, which every client shows
    Text,
    /// As a JSON-RPC error in place of an answer
    Rpc,
}

impl Errors {
    /// Their names.
    pub(crate) const NAMES: [&str; 2] = ["text", "rpc"];

    /// The one of this name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "rpc" => Some(Self::Rpc),
            _ => None,
        }
    }
}
