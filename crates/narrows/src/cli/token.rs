//! The arguments of `narrows token`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::help;

/// Create, list and revoke tokens of network clients
///
/// A token authenticates a client. The token file contains a name and a hash for each token, never the token itself.
/// A bus whose `[[listen]]` has auth = "token" reloads the file when it changes, and disconnects clients whose token
/// was revoked.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::TOKEN))]
pub(crate) struct Token {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    New(TokenNew),
    List(TokenList),
    Revoke(TokenRevoke),
}

/// Create a token and print it once
///
/// Sessions belong to NAME: a new token with the same name has access to the sessions of the old one. A file that the
/// shell creates (`> FILE`) is usually readable by other users; --out FILE creates one that only you can read.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::TOKEN_NEW))]
pub(crate) struct TokenNew {
    /// Name of the identity: letters, digits, `.`, `_`, `-`, `@` and `+`, at most 64
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Scope in pools with a manifest: a tool, SERVER/TOOL, SERVER/* or kind:read; may be repeated [default:
    /// everything]
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Vec<String>,

    /// Pool that the token may use; may be repeated [default: every pool]
    #[arg(long, value_name = "POOL")]
    pub(crate) pool: Vec<String>,

    /// Token file, created if missing
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Write the token to a new file that only you can read, instead of printing it; missing directories are created
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Print a JSON object: `name`, `scopes`, `pools`, and `token`, or with --out the file that contains it, `out`
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the tokens of a file, with scopes, pools and creation times
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::TOKEN_LIST))]
pub(crate) struct TokenList {
    /// Token file
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,
}

/// Revoke a token and disconnect its clients
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::TOKEN_REVOKE))]
pub(crate) struct TokenRevoke {
    /// Name of the token
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Token file
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
