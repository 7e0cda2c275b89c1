//! The environment of a worker, and the program behind its command.

use std::ffi::OsString;
use std::path::PathBuf;

use narrows_process::{AllowList, Environment, SpawnError, Spec};

use super::Pool;

impl Pool {
    /// Returns the environment of the pool's workers. `bus_env` is the environment of the bus, from which the
    /// pool selects variables.
    #[must_use]
    pub fn environment(&self, bus_env: &[(OsString, OsString)]) -> Environment {
        let passed = match self.whole_env {
            true => AllowList::new(["*"]),
            false => AllowList::default().and(self.pass_env.iter().cloned()),
        };
        let mut environment = Environment::filtered(bus_env.iter().cloned(), &passed);
        environment.extend(&self.env);
        environment
    }

    /// Returns the file that would be executed for a worker now. `bus_env` is the environment of the bus.
    ///
    /// # Errors
    /// If there is no such file, the file cannot be executed, or the working directory of the pool cannot be
    /// used.
    pub fn program(&self, bus_env: &[(OsString, OsString)]) -> Result<PathBuf, SpawnError> {
        let program = self.command.first().map(String::as_str).unwrap_or_default();
        let spec = Spec { cwd: self.cwd.clone(), env: self.environment(bus_env), ..Spec::new(program) };
        narrows_process::find(&spec)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn workers_get_basic_variables_and_the_configured_ones() {
        #[track_caller]
        fn check(pool: &Pool, expected: &[&str]) {
            let bus_env = ["PATH", "OPENAI_API_KEY", "OTHER"].map(|name| (name.into(), "ours".into()));
            let environment = pool.environment(&bus_env);
            let text: Vec<String> = environment
                .iter()
                .map(|(name, value)| format!("{}={}", name.display(), value.display()))
                .collect();
            assert_eq!(text, expected);
        }
        let mut pool = Pool::new("a", vec!["a".to_owned()]);
        check(&pool, &["PATH=ours"]);
        pool.pass_env = vec!["OPENAI_*".to_owned()];
        pool.env.insert("PATH".to_owned(), "theirs".to_owned());
        check(&pool, &["OPENAI_API_KEY=ours", "PATH=theirs"]);
        pool.whole_env = true;
        check(&pool, &["OPENAI_API_KEY=ours", "OTHER=ours", "PATH=theirs"]);
        pool.whole_env = false;
        pool.pass_env = vec!["*".to_owned()];
        check(&pool, &["OPENAI_API_KEY=ours", "OTHER=ours", "PATH=theirs"]);
    }

    #[test]
    fn a_program_is_searched_in_the_path_of_its_worker() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("agent");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o700)).unwrap();
        let mut pool = Pool::new("a", vec!["agent".to_owned()]);
        let bus_env = [("PATH".into(), "/nowhere".into())];
        assert!(matches!(pool.program(&bus_env), Err(SpawnError::NotFound { .. })));
        pool.env.insert("PATH".to_owned(), place.path().to_str().unwrap().to_owned());
        assert_eq!(pool.program(&bus_env).unwrap(), file);
        pool.cwd = Some(place.path().join("missing"));
        assert!(matches!(pool.program(&bus_env), Err(SpawnError::Cwd { .. })));
        pool.cwd = Some(place.path().to_owned());
        pool.command = vec!["./agent".to_owned()];
        assert!(pool.program(&bus_env).is_ok());
    }
}
