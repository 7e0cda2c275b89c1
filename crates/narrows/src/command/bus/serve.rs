//! Runs a bus from start to shutdown, and handles its signals.

use std::ffi::OsString;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use narrows_bus::admin::BusInfo;
use narrows_bus::config::{AdminConfig, Config, PoolProtocol, WORKER_STOP_TIMEOUT};
use narrows_bus::core::Status;
use narrows_bus::{Bus as Running, BusOutcome, Handle, StartOptions};
use narrows_config::Finding;
use tokio::time::{Instant, sleep_until, timeout};

use super::http_server::NetworkListeners;
use super::{admin_socket, settings};
use crate::cli::{Bus, LogFormat};
use crate::command::block_on;
use crate::config::{Variables, data_dir, runtime_dir};
use crate::failure::{ExitStatus, Failure};
use crate::interrupt::{Interrupts, Signal};
use crate::terminal::line;
use crate::{environment, output};

const STATUS_TIMEOUT: Duration = Duration::from_millis(500);

const OWNERS_FILE: &str = "owners.jsonl";

/// Prints notices to stderr, as JSON if the log is JSON.
pub(super) struct Notifier(LogFormat);

impl Notifier {
    pub(super) fn print(&self, text: &str) {
        match self.0 {
            LogFormat::Text => output::write_stderr_bounded(format!("{}\n", line(text))),
            LogFormat::Json => tracing::info!("{}", line(text)),
        }
    }
}

pub(super) fn run(args: &Bus) -> Result<ExitCode, Failure> {
    let (config, warnings) = settings::load(args).map_err(settings::SettingsError::into_failure)?;
    print_warnings(&warnings);
    let environment: Vec<_> = environment::variables().collect();
    block_on(serve(args, config, environment))?
}

fn print_warnings(warnings: &[Finding]) {
    for warning in warnings {
        tracing::warn!("{}", line(&warning.to_string()));
    }
}

async fn serve(
    args: &Bus,
    config: Config,
    environment: Vec<(OsString, OsString)>,
) -> Result<ExitCode, Failure> {
    // With a configuration file, SIGHUP means reload, even under `nohup`.
    let interrupts = if args.config.is_some() { Interrupts::listen_all() } else { Interrupts::listen() };
    let mut interrupts = interrupts.map_err(|error| Failure::setup("listen for signals", &error))?;
    let notifier = Notifier(args.log_format);
    let variables = Variables::of_process();
    let directory = runtime_dir(&variables);
    let admin = admin_socket::open(&config.admin, directory.as_deref())?;
    let drain = config.limits.drain_timeout;
    let http = NetworkListeners::bind(&config)?;
    let mut running =
        RunningBus { args, notifier, drain, admin: config.admin.clone(), config: config.clone() };
    // If a guardian is killed, its processes become children of this process, which ends them. This process
    // has no other children that it could mistake for them.
    if let Err(error) = narrows_process::adopt_orphans() {
        tracing::warn!(%error, "cannot adopt orphaned processes");
    }
    let edges = StartOptions {
        owners: data_dir(&variables).map(|directory| directory.join("bus").join(OWNERS_FILE)),
        hand_over: Some(http.hand_over()),
    };
    let bus = Running::start_with_options(config, environment, edges)
        .map_err(|error| settings::start_failure(args, &error))?;
    http.open(bus.handle());
    let addresses = bus.addresses().iter().enumerate();
    let addresses: Vec<String> = addresses.map(|(number, address)| http.address(number, address)).collect();
    for (address, listen) in addresses.iter().zip(&running.config.listen) {
        let first = running.config.pools.first().map(|pool| pool.name.as_str());
        let pool = listen.pool_names().next().or(first).unwrap_or_default();
        running.notifier.print(&format!("listening on {address}, pool {pool}"));
    }
    for address in admin.addresses() {
        running.notifier.print(&format!("admin API listening on {}", admin_socket::client_url(address)));
    }
    let limits = narrows_bus::worker_limits();
    let facts = BusInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        listen: addresses,
        worker_limits: limits
            .iter()
            .filter(|(_, can)| can.is_ok())
            .map(|(name, _)| name.to_string())
            .collect(),
        worker_limits_missing: limits
            .into_iter()
            .filter_map(|(name, can)| Some((name.to_string(), can.err()?.why)))
            .collect(),
    };
    // Memory of the start-up code is no longer needed.
    narrows_process::release_code();
    let mut admin = pin!(admin.serve(bus.handle(), facts, http.network()));
    let mut deadline: Option<Instant> = None;
    loop {
        let too_long = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ended = bus.finished() => {
                http.finish().await;
                return match ended {
                    BusOutcome::Done => Ok(ExitStatus::Success.exit_code()),
                    BusOutcome::Failed(reason) => Err(Failure::bus_failed(&reason)),
                };
            }
            signal = interrupts.next() => match signal {
                Signal::HangUp if args.config.is_some() => {
                    running.reload(&bus.handle());
                    http.reload();
                }
                // A second Ctrl-C exits immediately.
                Signal::Interrupt if deadline.is_some() => {
                    bus.remove_sockets();
                    return Err(Failure::forced_exit(signal));
                }
                _ if deadline.is_some() => {}
                _ => {
                    deadline = Some(Instant::now() + running.drain + WORKER_STOP_TIMEOUT);
                    running.drain(&bus.handle(), signal).await;
                }
            },
            () = too_long => {
                // The clients were notified; remaining agents end with this process.
                tracing::warn!("drain timeout exceeded, exiting");
                bus.remove_sockets();
                return Ok(ExitStatus::Success.exit_code());
            }
            () = &mut admin => {}
        }
    }
}

struct RunningBus<'a> {
    args: &'a Bus,
    notifier: Notifier,
    drain: Duration,
    /// The settings of the opened admin sockets, which a reload does not change.
    admin: AdminConfig,
    config: Config,
}

impl RunningBus<'_> {
    async fn drain(&self, bus: &Handle, signal: Signal) {
        let status = timeout(STATUS_TIMEOUT, bus.status()).await;
        bus.drain();
        // The bus does not count turns of protocol version 2, only sessions.
        let v2 = self.config.pools.iter().any(|pool| pool.protocol == PoolProtocol::V2);
        let idle = |status: &Status| status.pending == 0 && (status.sessions == 0 || !v2);
        if matches!(&status, Ok(Ok(status)) if idle(status)) {
            return self.notifier.print("shutting down: no active requests");
        }
        let drain = self.drain;
        let again = match signal {
            Signal::Interrupt => " (Ctrl-C again to exit now)",
            Signal::Terminate | Signal::HangUp => "",
        };
        self.notifier.print(&format!("shutting down: waiting up to {drain:?} for active turns{again}"));
    }

    /// Reloads the configuration file. On an error the bus keeps its configuration.
    fn reload(&mut self, bus: &Handle) {
        let (config, warnings) = match settings::load(self.args) {
            Ok(loaded) => loaded,
            Err(wrong) => {
                for mistake in wrong.lines() {
                    tracing::error!("{mistake}");
                }
                tracing::error!("reload failed, keeping the current configuration");
                return;
            }
        };
        print_warnings(&warnings);
        if config.admin != self.admin {
            let (old, new) = (admin_socket::describe(&self.admin), admin_socket::describe(&config.admin));
            let what = format!("changed admin sockets need a restart: {old} until then, {new} afterwards");
            tracing::warn!("{}", line(&what));
        }
        match bus.reload(config.clone()) {
            Ok(differences) => {
                for listener in differences {
                    tracing::warn!("{}", line(&listener.to_string()));
                }
                self.drain = config.limits.drain_timeout;
                self.config = config;
                self.notifier.print("configuration reloaded");
            }
            Err(error) => {
                let failure = settings::start_failure(self.args, &error);
                tracing::error!("{}", failure.message());
                tracing::error!("reload failed, keeping the current configuration");
            }
        }
    }
}
