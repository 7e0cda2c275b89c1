//! The policy that the arguments mean.

use std::path::Path;

use narrows_policy::{Access, Header, Narrowing, Policy, Rules};

use crate::cli::SessionArgs;
use crate::environment;
use crate::failure::Failure;

/// The policy of a session: the preset and the flags, and the rules of a file. What narrows, narrows wherever it stands;
/// a flag about access wins over the file.
pub(crate) fn policy(args: &SessionArgs) -> Result<Policy, Failure> {
    let read = args.policy.as_deref().map(rules).transpose()?;
    let flags = Narrowing { network: !args.no_network, web_search: !args.no_web_search };
    Ok(combined(read.unwrap_or_default(), args.access, flags))
}

/// The policy that comes of a file of rules and the flags beside it.
pub(crate) fn combined((rules, header): (Rules, Header), access: Option<Access>, flags: Narrowing) -> Policy {
    let access = access.or(header.access).unwrap_or_default();
    let narrowing = Narrowing {
        network: flags.network && header.network.unwrap_or(true),
        web_search: flags.web_search && header.web_search.unwrap_or(true),
    };
    let policy = Policy::new(access, narrowing).with_rules(rules);
    match environment::named(environment::HOME.as_ref()) {
        Some(home) => policy.with_home(home),
        None => policy,
    }
}

/// The rules of a file.
pub(crate) fn rules(path: &Path) -> Result<(Rules, Header), Failure> {
    let text =
        std::fs::read_to_string(path).map_err(|error| Failure::unreadable("--policy", path, &error))?;
    Rules::parse(&text, &path.display().to_string()).map_err(|error| Failure::bad_rules(&error))
}
