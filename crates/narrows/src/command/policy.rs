//! `narrows policy`: what rules say, before an agent finds out.

mod check;
mod explain;
mod replay;
mod test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use narrows_client::{Confinement, ProtectedFiles};
use narrows_policy::{Confined, Header, Narrowing, Policy as Rulebook, Rules, Scene};

use crate::cli::{Circumstances, Policy, PolicyCommand};
use crate::drive;
use crate::environment;
use crate::failure::Failure;

/// Does what was asked for.
pub(super) fn execute(args: &Policy) -> Result<ExitCode, Failure> {
    match &args.command {
        PolicyCommand::Explain(explain) => explain::execute(explain),
        PolicyCommand::Check(check) => check::execute(check),
        PolicyCommand::Test(test) => test::execute(test),
    }
}

/// What decides, and where.
struct Court {
    policy: Rulebook,
    files: ProtectedFiles,
    roots: Vec<PathBuf>,
    confined: Confined,
}

impl Court {
    /// With the rules of `file`, if there is one, as `narrows run` would have them with these flags.
    fn new(file: Option<&Path>, args: &Circumstances) -> Result<Self, Failure> {
        let read = file.map(rules).transpose()?.unwrap_or_default();
        let flags = Narrowing { network: !args.no_network, web_search: !args.no_web_search };
        let policy = drive::combined(read, args.access, flags);
        let cwd = args.cwd.as_deref().unwrap_or(Path::new("."));
        let roots = std::iter::once(cwd).chain(args.add_dir.iter().map(PathBuf::as_path));
        let roots = roots.map(drive::directory).collect::<Result<Vec<_>, _>>()?;
        let files = ProtectedFiles::new(Arc::new(policy.clone()), &roots, &environment::git_settings());
        let confined = confined(&policy, &files, args)?;
        Ok(Self { policy, files, roots, confined })
    }

    /// The surroundings of a request.
    fn scene(&self) -> Scene<'_> {
        Scene { roots: &self.roots, confined: self.confined, ..Scene::default() }
    }
}

/// What a sandbox keeps commands from: the one that `narrows run` would have here, unless another is assumed.
fn confined(policy: &Rulebook, files: &ProtectedFiles, args: &Circumstances) -> Result<Confined, Failure> {
    if args.no_sandbox {
        return Ok(Confined::default());
    }
    if args.sandboxed {
        // It takes the network from commands only if they are not to have it.
        return Ok(Confined {
            files: true,
            network: !policy.narrowing().network,
            protected: narrows_policy::Protection::Kept,
        });
    }
    let confinement = Confinement::new(files.clone(), Arc::default());
    super::block_on(async { confinement.now().await.1 })
}

/// The rules of a file.
fn rules(path: &Path) -> Result<(Rules, Header), Failure> {
    Rules::parse(&text(path)?, &path.display().to_string()).map_err(|error| Failure::wrong_rules(&error))
}

fn text(path: &Path) -> Result<String, Failure> {
    crate::text_input::read_file(path).map_err(|error| Failure::unreadable("the rules", path, &error))
}
