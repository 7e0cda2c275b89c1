//! The null router: the cost of the bus driver with a core that decides nothing.
//!
//! It is the driver with another core. Lines of a client go to the worker of its slot, unparsed. The client
//! for a worker's line cannot be known without parsing. So the router reads one field of fixed width: the
//! client's number in the tag at the end of every line of the load. It scans no JSON and rewrites no id.

use std::io;
use std::net::SocketAddr;

use narrows_bus::config::{AdminConfig, BusLimits, Config, ListenAddr, ListenerSettings, Pool, ShareMode};
use narrows_bus::core::{
    ClientId, ClientInfo, CoreAction, CoreOutput, PoolId, StuckReason, Time, WorkerExit, WorkerId,
};
use narrows_bus::driver::Router;
use narrows_bus::{Bus, BusOutcome};
use narrows_wire::LineRef;

use super::message::{TAG, TAIL, Tag, number};

/// Listens at an address and starts workers: `bus-null ADDRESS WORKERS`.
pub(crate) fn serve(arguments: &[String]) -> io::Result<()> {
    let [address, workers] = arguments else {
        return Err(io::Error::other("the null router takes an address and a number of workers"));
    };
    let address: SocketAddr = address.parse().map_err(|_| io::Error::other("the address is invalid"))?;
    let workers = workers.parse().map_err(|_| io::Error::other("the number is invalid"))?;
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    let pool = Pool {
        instances: workers,
        share: ShareMode::All,
        ..Pool::new("null", vec![program, "bus-worker".into()])
    };
    let config = Config {
        listen: vec![ListenerSettings::new(ListenAddr::Tcp(address.to_string()))],
        pools: vec![pool],
        limits: BusLimits::default(),
        admin: AdminConfig::default(),
    };
    let bus = Bus::start_with(config, Vec::new(), |config| Null::new(&config.pools[0]))
        .map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    match runtime.block_on(bus.finished()) {
        BusOutcome::Done => Ok(()),
        BusOutcome::Failed(reason) => Err(io::Error::other(reason)),
    }
}

/// A core that routes by fixed positions instead of parsing.
struct Null {
    pool: Pool,
    /// `Some` for a taken slot; `true` if the client has sent its identity.
    clients: Vec<Option<bool>>,
    /// The slot of each client by the number in its tags.
    slots: Vec<u32>,
}

impl Null {
    fn new(pool: &Pool) -> Self {
        Self { pool: pool.clone(), clients: Vec::new(), slots: Vec::new() }
    }

    fn introduce(&mut self, client: ClientId, line: &[u8]) {
        let Some(introduced @ false) = self.clients[client.0 as usize].as_mut() else { return };
        if let Some(tag) = Tag::parse(line) {
            let number = tag.client as usize;
            self.slots.resize(self.slots.len().max(number + 1), u32::MAX);
            self.slots[number] = client.0;
            *introduced = true;
        }
    }
}

impl Router for Null {
    type Status = ();

    fn start(&mut self, _: Time, out: &mut impl CoreOutput) {
        for worker in 0..self.pool.instances {
            out.perform(CoreAction::Spawn { worker: WorkerId(worker), pool: PoolId(0) });
        }
    }

    fn client_open(&mut self, _: Time, _: ClientInfo<'_>, _: &mut impl CoreOutput) -> Option<ClientId> {
        let free = self.clients.iter().position(Option::is_none).unwrap_or(self.clients.len());
        self.clients.resize(self.clients.len().max(free + 1), None);
        self.clients[free] = Some(false);
        u32::try_from(free).ok().map(ClientId)
    }

    #[inline]
    fn client_line(&mut self, _: Time, client: ClientId, line: LineRef<'_>, out: &mut impl CoreOutput) {
        let LineRef::Whole(line) = line else { return };
        self.introduce(client, line);
        out.to_worker(WorkerId(client.0 % self.pool.instances), &[line]);
    }

    fn client_eof(&mut self, _: Time, client: ClientId, out: &mut impl CoreOutput) {
        out.perform(CoreAction::Close { client, reason: narrows_bus::core::ClientCloseReason::Served });
    }

    fn client_gone(&mut self, _: Time, client: ClientId, _: &mut impl CoreOutput) {
        self.clients[client.0 as usize] = None;
    }

    fn client_drained(&mut self, _: Time, _: ClientId, _: &mut impl CoreOutput) {}

    fn worker_up(&mut self, _: Time, _: WorkerId, _: u32, _: &mut impl CoreOutput) {}

    #[inline]
    fn worker_line(&mut self, _: Time, _: WorkerId, line: LineRef<'_>, out: &mut impl CoreOutput) {
        let LineRef::Whole(line) = line else { return };
        if let Some(slot) = client_of(line).and_then(|client| self.slots.get(client)) {
            out.to_client(ClientId(*slot), &[line]);
        }
    }

    fn worker_drained(&mut self, _: Time, _: WorkerId, _: &mut impl CoreOutput) {}

    fn worker_stuck(&mut self, _: Time, _: WorkerId, _: StuckReason, out: &mut impl CoreOutput) {
        out.perform(CoreAction::Finished);
    }

    fn worker_gone(&mut self, _: Time, _: WorkerId, _: &WorkerExit, out: &mut impl CoreOutput) {
        out.perform(CoreAction::Finished);
    }

    fn tick(&mut self, _: Time, _: &mut impl CoreOutput) {}

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn drain(&mut self, _: Time, out: &mut impl CoreOutput) {
        out.perform(CoreAction::Finished);
    }

    fn reload(&mut self, _: Time, _: &Config, _: &mut impl CoreOutput) {}

    fn set_pressure(&mut self, _: bool) {}

    fn status(&self, _: Time) {}

    fn pool(&self, _: PoolId) -> Option<&Pool> {
        Some(&self.pool)
    }

    fn has_pending_work(&self, _: WorkerId) -> bool {
        false
    }
}

/// Parses the five digits of the client at their fixed position from the end.
fn client_of(line: &[u8]) -> Option<usize> {
    let tag = line.len().checked_sub(TAG + TAIL.len())?;
    number(&line[tag..tag + 5]).and_then(|number| usize::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_its_client() {
        let tag = Tag { client: 7, request: 1, chunk: 0 };
        let line = format!("text{}{}", tag.text(), String::from_utf8_lossy(TAIL));
        assert_eq!(client_of(line.as_bytes()), Some(7));
        assert_eq!(client_of(b"short"), None);
    }
}
