//! A bus with real workers, and the code that kills them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use narrows_bus::config::{AdminConfig, BusLimits, Config, ListenAddr, ListenerSettings, Pool, ShareMode};
use narrows_bus::core::{Status, WorkerStatus};
use narrows_bus::{Bus, BusOutcome};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::leaks::{Holdings, none_alive, variable};

/// Longer than a bus may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(40);

pub(crate) struct Rig {
    pub(crate) bus: Bus,
    pub(crate) dir: TempDir,
    pub(crate) mark: String,
    runtime: Runtime,
    before: Holdings,
}

#[derive(Debug, Default)]
pub(crate) struct KillCounts {
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    pub(crate) busy: u64,
}

impl Rig {
    /// Starts a bus with three pools and a listener for each, on unix and TCP sockets.
    pub(crate) fn new(instances: u32) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let before = Holdings::now();
        let dir = tempfile::tempdir().unwrap();
        for name in ["log", "sessions"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mark = dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        let pool = |name: &str, share: ShareMode, resume: bool| {
            let mut pool = Pool { instances, share, ..Pool::new(name, vec![program()]) };
            pool.max_instances = 64;
            pool.client_meta = vec!["tag".into()];
            pool.env.insert("CHAOS_DIR".into(), dir.path().to_str().unwrap().into());
            pool.env.insert("CHAOS_MARK".into(), mark.clone());
            if resume {
                pool.env.insert("CHAOS_RESUME".into(), "1".into());
            }
            pool
        };
        let listen = |at: ListenAddr, pool: &str| ListenerSettings {
            pool: Some(pool.into()),
            ..ListenerSettings::new(at)
        };
        let config = Config {
            listen: vec![
                listen(ListenAddr::Tcp("127.0.0.1:0".into()), "all"),
                listen(ListenAddr::Unix(dir.path().join("session.sock")), "session"),
                listen(ListenAddr::Tcp("127.0.0.1:0".into()), "connection"),
                listen(ListenAddr::Unix(dir.path().join("all.sock")), "all"),
            ],
            pools: vec![
                Pool { mix_identities: true, ..pool("all", ShareMode::All, true) },
                pool("session", ShareMode::Session, true),
                pool("connection", ShareMode::Connection, false),
            ],
            limits: BusLimits {
                max_line: 64 << 10,
                // Larger than one read. Otherwise no client could be fast enough.
                queue_bytes: 512 << 10,
                initialize_timeout: Duration::from_secs(10),
                drain_timeout: Duration::from_secs(5),
                session_grace: Duration::from_secs(3),
                restart_budget: u32::MAX,
                ..BusLimits::default()
            },
            admin: AdminConfig::default(),
        };
        let path = [("PATH".into(), "/usr/bin:/bin".into())];
        let bus = Bus::start(config, path.into()).unwrap();
        Self { bus, dir, mark, runtime, before }
    }

    pub(crate) fn listener(&self, listener: usize) -> (&ListenAddr, bool) {
        (&self.bus.addresses()[listener], listener == 0 || listener == 3)
    }

    pub(crate) fn log(&self) -> std::path::PathBuf {
        self.dir.path().join("log")
    }

    pub(crate) fn status(&self) -> Status {
        self.runtime.block_on(self.bus.status()).unwrap()
    }

    /// Kills workers until the number is reached or a check has failed. Stops a few instead.
    pub(crate) fn kill_workers(
        &self,
        random: &mut Rng,
        kills: u64,
        stops: u64,
        enough: &AtomicBool,
    ) -> KillCounts {
        let mut counts = KillCounts::default();
        while counts.kills < kills && !enough.load(Ordering::SeqCst) {
            let workers: Vec<WorkerStatus> =
                self.status().pools.into_iter().flat_map(|pool| pool.workers).collect();
            let stop = counts.stops < stops && counts.kills >= (counts.stops + 1) * kills / (stops + 1);
            let signal = if stop { Signal::STOP } else { Signal::KILL };
            // Chooses mostly a busy worker, and sometimes several at once.
            let wants_busy = random.u32(0..4) > 0;
            let mut victims: Vec<&WorkerStatus> =
                workers.iter().filter(|worker| !wants_busy || worker.pending > 0).collect();
            random.shuffle(&mut victims);
            let several = if random.u32(0..20) == 0 && !stop { 4 } else { 1 };
            for victim in victims.into_iter().take(several) {
                if self.signal(victim.pid, signal) {
                    counts.busy += u64::from(victim.pending > 0);
                    counts.stops += u64::from(stop);
                    counts.kills += u64::from(!stop);
                }
            }
            let pause = random.u64(5..90);
            std::thread::sleep(Duration::from_millis(pause)); // sleep: between two blows there is some time
        }
        counts
    }

    pub(crate) fn signal(&self, pid: u32, signal: Signal) -> bool {
        let Some(number) = Pid::from_raw(pid.cast_signed()) else { return false };
        let Ok(process) = pidfd_open(number, PidfdFlags::empty()) else { return false };
        variable(pid, "CHAOS_MARK").as_deref() == Some(&self.mark)
            && pidfd_send_signal(process, signal).is_ok()
    }

    pub(crate) fn finish(self) -> Result<TempDir, String> {
        self.bus.drain();
        let ended = self
            .runtime
            .block_on(async { tokio::time::timeout(STOP_TIMEOUT, self.bus.finished()).await })
            .map_err(|_| "the bus does not end".to_owned())?;
        if ended != BusOutcome::Done {
            return Err(format!("the bus has ended badly: {ended:?}"));
        }
        none_alive(&self.mark)?;
        drop(self.bus);
        self.before.restored()?;
        Ok(self.dir)
    }
}

/// Returns the path of `examples/chaos_worker.rs`, which cargo builds beside the tests.
fn program() -> String {
    let tests = std::env::current_exe().unwrap();
    let path = tests.ancestors().nth(2).unwrap().join("examples/chaos_worker");
    assert!(
        Path::new(&path).exists(),
        "`cargo build -p narrows-bus --examples` builds what this test starts"
    );
    path.into_os_string().into_string().unwrap()
}
