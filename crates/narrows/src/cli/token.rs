//! `narrows token`: who may come in over the network.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::help;

/// Make, list and revoke the tokens of clients of a bus
///
/// By a token a client proves who it is. A file of tokens has a name and a hash for each, never a token. A bus whose `[[listen]]` has auth = "token" reads it, and
/// reads it again when it changes: whoever has a token that was revoked is hung up on.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::TOKEN))]
pub(crate) struct Token {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

/// What to do with tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    New(TokenNew),
    List(TokenList),
    Revoke(TokenRevoke),
}

/// Make a token and print it: this is the only time that it is shown
///
/// Sessions belong to the NAME: a new token of the same name sees what the old one saw. A file that the shell makes (`> FILE`) has the
/// mode that your umask says, which mostly lets others read it; --out FILE makes one that is yours alone.
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::TOKEN_NEW))]
pub(crate) struct TokenNew {
    /// Whose it is: letters, digits, `.`, `_`, `-`, `@` and `+`, at most 64
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// What it is narrowed to in pools with a manifest: a tool, SERVER/TOOL, SERVER/* or kind:read; can be given several times [default: everything]
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Vec<String>,

    /// The only pool of a bus that it may use; can be given several times [default: every pool]
    #[arg(long, value_name = "POOL")]
    pub(crate) pool: Vec<String>,

    /// The file of tokens, which is made if it is not there
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Write the token to a new file that nobody else can read, in place of printing it; its directory is made if it is not there
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Print a JSON object: `name`, `scopes`, `pools`, and the `token` or with --out the file that it is in, `out`
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print the names, scopes and pools of a file of tokens, and when each was made
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::TOKEN_LIST))]
pub(crate) struct TokenList {
    /// The file of tokens
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take a token out of a file; whoever has it is let in no more
#[derive(Args, Debug)]
#[command(after_help = help::examples(help::TOKEN_REVOKE))]
pub(crate) struct TokenRevoke {
    /// Whose it is
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// The file of tokens
    #[arg(long, value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
