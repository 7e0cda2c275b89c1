//! The bus, workers and clients of a run.

use std::time::Duration;

use narrows_bus::config::{
    AdminConfig, BusLimits, Config, ListenAddr, ListenerAuth, ListenerSettings, Pool, PoolProtocol, ShareMode,
};

use crate::oracle::Kind;
use crate::random::Random;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolTraits {
    pub(crate) share: ShareMode,
    pub(crate) protocol: PoolProtocol,
    pub(crate) load: bool,
    pub(crate) resume: bool,
    pub(crate) mixed: bool,
    pub(crate) narrow: bool,
    pub(crate) announces: bool,
}

impl PoolTraits {
    pub(crate) fn version(self) -> u32 {
        if self.protocol == PoolProtocol::V2 { 2 } else { 1 }
    }

    pub(crate) fn is_plain(self) -> bool {
        self.protocol == PoolProtocol::JsonRpc
    }

    pub(crate) fn kind(self) -> Kind {
        Kind {
            per_connection: self.share == ShareMode::Connection,
            per_session: self.share == ShareMode::Session,
            plain: self.is_plain(),
            mixed: self.mixed,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) config: Config,
    pub(crate) traits_of: Vec<PoolTraits>,
    /// Number of bytes that a worker's pipe holds.
    pub(crate) pipe: usize,
    pub(crate) identities: u32,
    pub(crate) clients: usize,
    pub(crate) steps: usize,
    /// One step in this many is a fault. 0: no faults.
    pub(crate) faults: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    pub(crate) shares: &'static [ShareMode],
    pub(crate) protocols: &'static [PoolProtocol],
}

impl Scenario {
    pub(crate) fn new(family: Family, seed: u64, calm: bool) -> Self {
        let random = &mut Random::new(seed ^ 0x5EED);
        let count = 1 + random.below(3);
        let mut traits_of = Vec::new();
        let mut pools = Vec::new();
        for at in 0..count {
            let protocol = random.pick(family.protocols);
            let traits = PoolTraits {
                share: random.pick(family.shares),
                protocol,
                load: protocol == PoolProtocol::V1 && random.one_in(2),
                resume: protocol == PoolProtocol::V2 || random.one_in(3),
                mixed: random.one_in(3),
                narrow: random.one_in(3),
                announces: protocol == PoolProtocol::V2 || protocol == PoolProtocol::V1 && random.one_in(2),
            };
            let mut pool = Pool::new(format!("p{at}"), vec!["agent".to_owned()]);
            pool.client_meta = vec!["n".to_owned()];
            pool.instances = 1 + u32::try_from(random.below(3)).unwrap_or(0);
            pool.max_instances = if calm { 64 } else { random.pick(&[4, 16, 64]) };
            pool.share = traits.share;
            pool.protocol = traits.protocol;
            pool.mix_identities = traits.mixed;
            if traits.announces {
                pool.client_capabilities = serde_json::json!({"subagents": {}});
            }
            traits_of.push(traits);
            pools.push(pool);
        }
        // Clients may use every pool, because agents of different pools use equal names.
        let all: Vec<String> = (0..count).map(|at| format!("p{at}")).collect();
        let listen = all
            .iter()
            .map(|name| ListenerSettings {
                pool: Some(name.clone()),
                pools: Some(all.clone()),
                ..ListenerSettings::new(ListenAddr::Stdio)
            })
            .collect();
        let tight = !calm && random.one_in(3);
        let limits = BusLimits {
            max_line: 1 << 16,
            max_batch: 6,
            max_connections: 12,
            queue_bytes: if tight { 2_000 + random.below(4_000) } else { 1 << 20 },
            disconnect_grace: Duration::from_secs(random.pick(&[0, 0, 5])),
            restart_budget: if random.one_in(2) { 5 } else { 1_000 },
            ..BusLimits::default()
        };
        let mut scenario = Self {
            config: Config { listen, pools, limits, admin: AdminConfig::default() },
            traits_of,
            pipe: if tight { 200 + random.below(800) } else { 1 << 16 },
            identities: if random.one_in(2) { 1 } else { 2 },
            clients: 2 + random.below(5),
            steps: 300 + random.below(500),
            faults: if calm { 0 } else { random.pick(&[2, 3, 3, 6, 20]) },
        };
        if random.one_in(3) {
            scenario.require_authentication();
        }
        scenario
    }

    /// Makes clients authenticate, so that sessions have owners and no observers.
    fn require_authentication(&mut self) {
        for listen in &mut self.config.listen {
            let Ok(ListenerSettings { addr: ListenAddr::Web(mut web), .. }) =
                ListenerSettings::parse("http://127.0.0.1:1/acp")
            else {
                return;
            };
            web.auth = ListenerAuth::Token;
            listen.addr = ListenAddr::Web(web);
        }
        self.config.limits.replay_bytes = 0;
    }
}
