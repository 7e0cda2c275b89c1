//! `narrows policy`: evaluates rules without an agent.

mod check;
mod explain;
mod replay;
mod test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use narrows_client::{CommandSandbox, ProtectedFiles};
use narrows_policy::{Confined, Header, Narrowing, Policy as Rulebook, RequestContext, Rules};

use crate::agent_source;
use crate::cli::{Circumstances, Policy, PolicyCommand};
use crate::environment;
use crate::failure::Failure;

pub(super) fn execute(args: &Policy) -> Result<ExitCode, Failure> {
    match &args.command {
        PolicyCommand::Explain(explain) => explain::execute(explain),
        PolicyCommand::Check(check) => check::execute(check),
        PolicyCommand::Test(test) => test::execute(test),
    }
}

/// A policy and everything else that decisions depend on.
struct Evaluator {
    policy: Rulebook,
    files: ProtectedFiles,
    roots: Vec<PathBuf>,
    confined: Confined,
}

impl Evaluator {
    /// Reads the rules of `file`, if given. Applies the flags as `narrows run` does.
    fn new(file: Option<&Path>, args: &Circumstances) -> Result<Self, Failure> {
        let read = file.map(rules).transpose()?.unwrap_or_default();
        let flags = Narrowing { network: !args.no_network, web_search: !args.no_web_search };
        let policy = agent_source::combine(read, args.access, flags);
        let cwd = args.cwd.as_deref().unwrap_or(Path::new("."));
        let roots = std::iter::once(cwd).chain(args.add_dir.iter().map(PathBuf::as_path));
        let roots = roots.map(agent_source::absolute_dir).collect::<Result<Vec<_>, _>>()?;
        let files = ProtectedFiles::new(Arc::new(policy.clone()), &roots, &environment::git_settings());
        let confined = confined(&policy, &files, args)?;
        Ok(Self { policy, files, roots, confined })
    }

    fn request_context(&self) -> RequestContext<'_> {
        RequestContext { roots: &self.roots, confined: self.confined, ..RequestContext::default() }
    }
}

/// Returns the restrictions of the sandbox: those of `narrows run` on this machine, unless flags state
/// others.
fn confined(policy: &Rulebook, files: &ProtectedFiles, args: &Circumstances) -> Result<Confined, Failure> {
    if args.no_sandbox {
        return Ok(Confined::default());
    }
    if args.sandboxed {
        // The sandbox blocks the network only if the policy denies network access.
        return Ok(Confined {
            files: true,
            network: !policy.narrowing().network,
            protected: narrows_policy::Protection::Kept,
        });
    }
    let command_sandbox = CommandSandbox::new(files.clone(), Arc::default());
    super::block_on(async { command_sandbox.prepare().await.1 })
}

fn rules(path: &Path) -> Result<(Rules, Header), Failure> {
    Rules::parse(&text(path)?, &path.display().to_string()).map_err(|error| Failure::config_finding(&error))
}

fn text(path: &Path) -> Result<String, Failure> {
    crate::text_input::read_file(path).map_err(|error| Failure::file_unreadable("the rules", path, &error))
}
