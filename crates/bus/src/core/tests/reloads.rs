//! Pools that a reload changes, moves, adds and takes away, and whoever has them.

use super::*;

/// A pool of this name whose workers run `program`.
fn named(name: &str, program: &str, share: Share) -> Pool {
    Pool { share, ..Pool::new(name, vec![program.into()]) }
}

impl Scene {
    fn reload(&mut self, pools: Vec<Pool>) {
        self.core.reload(self.now, &config(pools), &mut self.sight);
    }

    /// The name of the pool that a client has.
    fn pool_of(&self, client: u32) -> Option<&str> {
        let pool = self.core.clients.get(client as usize)?.pool?;
        Some(&self.core.pool_of(pool).settings.name)
    }
}

#[test]
fn the_first_pool_of_the_file_serves_whoever_names_none() {
    /// `files` are read one after the other; each is a list of pools with what they run.
    #[track_caller]
    fn check(files: &[&str]) {
        for share in [Share::All, Share::Connection, Share::Session] {
            let pools = |file: &str| -> Vec<Pool> {
                let words = file.split(' ').map(|word| word.split_once('=').unwrap_or((word, "x")));
                words.map(|(name, program)| named(name, program, share)).collect()
            };
            let mut scene = Scene::new(&config(pools(files[0])));
            for (number, file) in files.iter().enumerate() {
                if number > 0 {
                    scene.reload(pools(file));
                }
                let names: Vec<String> = pools(file).into_iter().map(|pool| pool.name).collect();
                let client = scene.open();
                scene.ask(client, 1, "initialize", &json!({"protocolVersion": 1}));
                assert_eq!(scene.pool_of(client), Some(&*names[0]), "{files:?}, {file}, {share:?}");
                let status = scene.core.status(scene.now).pools;
                let there = status.into_iter().filter(|pool| pool.state != "leaving");
                assert_eq!(there.map(|pool| pool.name).collect::<Vec<_>>(), names, "{files:?}, {file}");
            }
        }
    }
    check(&["a b", "a=y b"]);
    check(&["a b", "a=y b", "a=y b=y", "b=y a=y"]);
    check(&["a b", "b a", "a b"]);
    check(&["a b", "new a b", "new=y a b"]);
    check(&["a b c", "b c", "c a b"]);
    check(&["a", "b", "a"]);
}
