//! The only way out of a sandbox, and a line in the log for whoever was turned back there.

use std::collections::HashSet;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use narrows_audit::{Event, Log};
use narrows_egress::{Denial, HostAllowList, Options, SystemResolver, serve};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How many denials may wait to be logged.
const WAITING: usize = 64;
/// How many different ones are logged: an agent must not be able to fill the log.
const MOST: usize = 256;

/// An open way out. It closes when this is dropped, with everything that goes through it.
#[derive(Debug)]
pub(super) struct WayOut {
    proxy: JoinHandle<()>,
}

impl Drop for WayOut {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

impl WayOut {
    /// Lets through what the list names. Each denial is logged once, as `event` with what it is about.
    pub(super) fn open(
        listener: TcpListener,
        list: HostAllowList,
        log: Option<Log>,
        event: Event,
    ) -> io::Result<Self> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (sender, denials) = mpsc::channel(WAITING);
        let proxy = tokio::spawn(serve(listener, list, Options::default(), Arc::new(SystemResolver), sender));
        // It ends with the proxy, which has the only sender, once everything is logged.
        tokio::spawn(report(denials, log, event));
        Ok(Self { proxy })
    }
}

async fn report(mut denials: mpsc::Receiver<Denial>, log: Option<Log>, event: Event) {
    let mut known = HashSet::new();
    while let Some(Denial { target, reason }) = denials.recv().await {
        let target = target.map(|target| target.to_string()).unwrap_or_default();
        if known.len() == MOST || !known.insert((target.clone(), reason)) {
            continue;
        }
        let Some(log) = &log else { continue };
        let mut event = event.clone();
        if let Some(about) = event.metadata.get_mut("aip44") {
            about["kind"] = json!("refusal");
            about["code"] = json!(reason.code());
            about["reason"] = json!(reason.to_string());
            about["is_last"] = json!(known.len() == MOST);
        }
        event.input = Some(json!({"target": target}));
        // Nothing was let through, so nothing depends on it.
        if let Err(error) = log.append(event).await {
            tracing::warn!(%error, "who was turned back could not be logged");
        }
    }
}
