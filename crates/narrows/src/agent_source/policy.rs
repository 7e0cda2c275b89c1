//! The policy of the arguments.

use std::path::Path;

use narrows_policy::{Access, Header, Narrowing, Policy, Rules};

use super::AgentDefaults;
use crate::cli::SessionArgs;
use crate::environment;
use crate::failure::Failure;
use crate::text_input;

/// Combines access preset, flags and rule file. Each restriction of a flag or of the file applies. The preset
/// of a flag wins over that of the file, and the preset of the file over the default of the agent.
pub(super) fn policy(args: &SessionArgs, defaults: &AgentDefaults) -> Result<Policy, Failure> {
    let file = args.policy.as_deref().or(defaults.policy.as_deref());
    let by = defaults.named_by(args.policy.is_some(), "--policy", "policy");
    let read = file.map(|file| rules(file, &by)).transpose()?.unwrap_or_default();
    let named = args.policy.as_ref().and(read.1.access);
    let access = args.access.or(named).or(defaults.access);
    let flags = Narrowing { network: !args.no_network, web_search: !args.no_web_search };
    Ok(combine(read, access, flags))
}

pub(crate) fn combine((rules, header): (Rules, Header), access: Option<Access>, flags: Narrowing) -> Policy {
    let access = access.or(header.access).unwrap_or_default();
    let narrowing = Narrowing {
        network: flags.network && header.network.unwrap_or(true),
        web_search: flags.web_search && header.web_search.unwrap_or(true),
    };
    let policy = Policy::new(access, narrowing).with_rules(rules);
    match environment::lookup(environment::HOME.as_ref()) {
        Some(home) => policy.with_home(home),
        None => policy,
    }
}

fn rules(path: &Path, by: &str) -> Result<(Rules, Header), Failure> {
    let text = text_input::read_file(path).map_err(|error| Failure::file_unreadable(by, path, &error))?;
    Rules::parse(&text, &path.display().to_string()).map_err(|error| Failure::rules_invalid(&error))
}
