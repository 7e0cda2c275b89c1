//! The environment of an agent.

use narrows_process::{AllowList, Environment};

use crate::cli::{AgentArgs, Variable};
use crate::config::AgentEntry;
use crate::environment;
use crate::failure::Failure;

/// Builds the environment of an agent: all variables of the user, or with `clean_env` only the ordinary ones,
/// the allowed ones and those in `needed`. Variables that are set for the agent are added.
pub(super) fn build(
    args: &AgentArgs,
    entry: Option<&AgentEntry>,
    needed: &[&str],
) -> Result<Environment, Failure> {
    let is_clean = args.clean_env || entry.is_some_and(|entry| entry.clean_env);
    let passed = entry.map_or(&[][..], |entry| &entry.pass_env);
    let allowed = match is_clean {
        true => AllowList::default().and(passed).and(&args.pass_env).and(needed.iter().copied()),
        false => AllowList::new(["*"]),
    };
    let mut env = Environment::filtered(environment::variables(), &allowed);
    for (name, value) in entry.map_or(&[][..], |entry| &entry.env) {
        env.set(name, value);
    }
    for Variable { name, value } in &args.env {
        let value = value.clone().or_else(|| environment::lookup(name));
        let value = value.ok_or_else(|| Failure::unset_variable(&name.to_string_lossy()))?;
        env.set(name, value);
    }
    Ok(env)
}
