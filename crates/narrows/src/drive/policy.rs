//! The policy that the arguments mean.

use std::path::Path;

use narrows_policy::{Access, Header, Narrowing, Policy, Rules};

use super::Usual;
use crate::cli::SessionArgs;
use crate::environment;
use crate::failure::Failure;
use crate::text_input;

/// The policy of a session: the preset and the flags, and the rules of a file. What narrows, narrows wherever it stands;
/// a flag about access wins over the file, and both win over what is `usual` for the agent.
pub(super) fn policy(args: &SessionArgs, usual: &Usual) -> Result<Policy, Failure> {
    let file = args.policy.as_deref().or(usual.policy.as_deref());
    let by = usual.named_by(args.policy.is_some(), "--policy", "policy");
    let read = file.map(|file| rules(file, &by)).transpose()?.unwrap_or_default();
    let named = args.policy.as_ref().and(read.1.access);
    let access = args.access.or(named).or(usual.access);
    let flags = Narrowing { network: !args.no_network, web_search: !args.no_web_search };
    Ok(combined(read, access, flags))
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
fn rules(path: &Path, by: &str) -> Result<(Rules, Header), Failure> {
    let text = text_input::read_file(path).map_err(|error| Failure::unreadable(by, path, &error))?;
    Rules::parse(&text, &path.display().to_string()).map_err(|error| Failure::bad_rules(&error))
}
