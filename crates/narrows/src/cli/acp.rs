//! The arguments of `narrows acp`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{ModelArgs, help};

/// Run the built-in agent on stdio, for any Chat Completions endpoint
///
/// Editors and other ACP clients start this command themselves. Any endpoint that speaks Chat Completions works:
/// OpenAI, Azure, Bedrock, OpenRouter, Ollama, vLLM, LiteLLM, llama.cpp and others.
///
/// Options win over environment variables, and environment variables over narrows.toml. Unknown options are ignored
/// and logged.
///
/// If NARROWS_CONNECT, or `connect` in the table `[acp]` of narrows.toml, has a URL and no options are given, this
/// command runs `narrows connect` with that URL.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::ACP), after_long_help = help::settings(help::ACP))]
pub(crate) struct Acp {
    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// How model errors reach the client [default: text]
    #[arg(long, value_enum, value_name = "FORM", hide_short_help = true, help_heading = "Sessions")]
    pub(crate) errors: Option<Errors>,

    /// Directory for sessions [default: narrows in your data directory]
    #[arg(long, value_name = "DIR", help_heading = "Sessions")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Do not store sessions: they end with the process
    #[arg(long, conflicts_with = "data_dir", help_heading = "Sessions")]
    pub(crate) no_store: bool,

    /// MCP servers that clients may name: `any` or `none` [default: any]
    ///
    /// With `any`, a client can start any command as your user, as editors do. Use `none` if other users or programs
    /// can connect, for example through a socket. MCP servers inside the client itself are used with either
    /// value.
    #[arg(long, value_enum, value_name = "WHICH", hide_short_help = true, help_heading = "Sessions")]
    pub(crate) mcp: Option<McpChoice>,

    /// Run the built-in agent, even if NARROWS_CONNECT or narrows.toml names a remote one
    #[arg(long, hide_short_help = true)]
    pub(crate) local: bool,

    #[arg(skip)]
    pub(crate) ignored: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum McpChoice {
    /// Only servers inside the client itself
    None,
    /// All servers
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Errors {
    /// As text in the answer, which every client displays
    Text,
    /// As a JSON-RPC error instead of an answer
    Rpc,
}

impl Errors {
    pub(crate) const NAMES: [&str; 2] = ["text", "rpc"];

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "rpc" => Some(Self::Rpc),
            _ => None,
        }
    }
}
