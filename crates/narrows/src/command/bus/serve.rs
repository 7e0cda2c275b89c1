//! A bus from its start to its end, and the signals in between.

use std::ffi::OsString;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use narrows_bus::admin::Facts;
use narrows_bus::config::{Admin, Config, LADDER, Protocol, Warning};
use narrows_bus::core::Status;
use narrows_bus::{Bus as Running, Ended, Handle, StartOptions};
use tokio::time::{Instant, sleep_until, timeout};

use super::front::Fronts;
use super::{doors, settings};
use crate::cli::{Bus, LogFormat};
use crate::command::block_on;
use crate::config::{Variables, data_dir, runtime_dir};
use crate::failure::{Code, Failure};
use crate::interrupt::{Interrupts, Signal};
use crate::terminal::line;
use crate::{environment, output};

/// How long a bus may take to tell whether it has something to finish.
const ASKING: Duration = Duration::from_millis(500);

/// Where it is written down whose sessions are.
const OWNERS: &str = "owners.jsonl";

/// What is told to whoever has started the bus. Among JSON it is JSON too.
pub(super) struct Voice(LogFormat);

impl Voice {
    /// Says a line.
    pub(super) fn say(&self, text: &str) {
        match self.0 {
            LogFormat::Text => output::complain_briefly(format!("{}\n", line(text))),
            LogFormat::Json => tracing::info!("{}", line(text)),
        }
    }
}

/// Runs a bus until it has ended.
pub(super) fn run(args: &Bus) -> Result<ExitCode, Failure> {
    let (config, warnings) = settings::load(args).map_err(settings::Wrong::into_failure)?;
    tell(&warnings);
    let environment: Vec<_> = environment::variables().collect();
    block_on(serve(args, config, environment))?
}

fn tell(warnings: &[Warning]) {
    for warning in warnings {
        tracing::warn!("{}", line(&warning.to_string()));
    }
}

async fn serve(
    args: &Bus,
    config: Config,
    environment: Vec<(OsString, OsString)>,
) -> Result<ExitCode, Failure> {
    // With a file SIGHUP does no harm, and under `nohup` it is still wanted.
    let interrupts = if args.config.is_some() { Interrupts::take_all() } else { Interrupts::take() };
    let mut interrupts = interrupts.map_err(|error| Failure::setup("get ready", &error))?;
    let voice = Voice(args.log_format);
    let variables = Variables::of_process();
    let directory = runtime_dir(&variables);
    let admin = doors::open(&config.admin, directory.as_deref())?;
    let drain = config.limits.drain_timeout;
    let fronts = Fronts::bind(&config)?;
    let mut serving = Serving { args, voice, drain, admin: config.admin.clone(), config: config.clone() };
    // What a killed guardian leaves is ended by us; we start nothing else that could be taken for it.
    if let Err(error) = narrows_process::adopt_orphans() {
        tracing::warn!(%error, "processes whose guardian is killed may go on");
    }
    let edges = StartOptions {
        owners: data_dir(&variables).map(|directory| directory.join("bus").join(OWNERS)),
        hand_over: Some(fronts.hand_over()),
    };
    let bus = Running::start_within(config, environment, edges)
        .map_err(|error| settings::unstartable(args, &error))?;
    fronts.open(bus.handle());
    let addresses = bus.addresses().iter().enumerate();
    let addresses: Vec<String> = addresses.map(|(number, door)| fronts.address(number, door)).collect();
    for (door, listen) in addresses.iter().zip(&serving.config.listen) {
        let first = serving.config.pools.first().map(|pool| pool.name.as_str());
        let pool = listen.named().next().or(first).unwrap_or_default();
        serving.voice.say(&format!("listening on {door}, pool {pool}"));
    }
    for door in admin.addresses() {
        serving.voice.say(&format!("operators come in at {}", doors::spoken(door)));
    }
    let limits = narrows_bus::worker_limits();
    let facts = Facts {
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
    // Settings, flags and all that is not said twice.
    narrows_process::release_code();
    let mut admin = pin!(admin.serve(bus.handle(), facts, fronts.network()));
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
                fronts.finish().await;
                return match ended {
                    Ended::Done => Ok(Code::Success.exit()),
                    Ended::Failed(reason) => Err(Failure::bus_failed(&reason)),
                };
            }
            signal = interrupts.next() => match signal {
                Signal::HangUp if args.config.is_some() => {
                    serving.reload(&bus.handle());
                    fronts.reload();
                }
                // Somebody who has said so twice does not want to wait.
                Signal::Interrupt if deadline.is_some() => {
                    bus.forsake();
                    return Err(Failure::left(signal));
                }
                _ if deadline.is_some() => {}
                _ => {
                    deadline = Some(Instant::now() + serving.drain + LADDER);
                    serving.drain(&bus.handle(), signal).await;
                }
            },
            () = too_long => {
                // Everybody was told; what is left of agents ends with us.
                tracing::warn!("not everything has ended in time");
                bus.forsake();
                return Ok(Code::Success.exit());
            }
            () = &mut admin => {}
        }
    }
}

/// What a bus was told, and by whom.
struct Serving<'a> {
    args: &'a Bus,
    voice: Voice,
    drain: Duration,
    /// Where operators come in, whatever the settings say by now.
    admin: Admin,
    config: Config,
}

impl Serving<'_> {
    async fn drain(&self, bus: &Handle, signal: Signal) {
        let status = timeout(ASKING, bus.status()).await;
        bus.drain();
        // Of turns of version 2 only their sessions are known.
        let v2 = self.config.pools.iter().any(|pool| pool.protocol == Protocol::V2);
        let idle = |status: &Status| status.pending == 0 && (status.sessions == 0 || !v2);
        if matches!(&status, Ok(Ok(status)) if idle(status)) {
            return self.voice.say("stopping: nothing is under way");
        }
        let drain = self.drain;
        let again = match signal {
            Signal::Interrupt => "; press Ctrl-C again to leave at once",
            Signal::Terminate | Signal::HangUp => "",
        };
        self.voice.say(&format!("stopping: running turns have {drain:?} to end{again}"));
    }

    /// Reads the file again. Whatever is wrong with it, the bus goes on.
    fn reload(&mut self, bus: &Handle) {
        let (config, warnings) = match settings::load(self.args) {
            Ok(loaded) => loaded,
            Err(wrong) => {
                for mistake in wrong.lines() {
                    tracing::error!("{mistake}");
                }
                tracing::error!("the settings stay as they are");
                return;
            }
        };
        tell(&warnings);
        if config.admin != self.admin {
            let (old, new) = (doors::named(&self.admin), doors::named(&config.admin));
            let what =
                format!("operators come in at {old} until the bus is started again, and then at {new}");
            tracing::warn!("{}", line(&what));
        }
        match bus.reload(config.clone()) {
            Ok(unmoved) => {
                for listener in unmoved {
                    tracing::warn!("{}", line(&listener.to_string()));
                }
                self.drain = config.limits.drain_timeout;
                self.config = config;
                self.voice.say("the settings were read again");
            }
            Err(error) => {
                let failure = settings::unstartable(self.args, &error);
                tracing::error!("{}", failure.message());
                tracing::error!("the settings stay as they are");
            }
        }
    }
}
