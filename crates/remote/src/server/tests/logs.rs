//! No log message contains a token, neither of this crate nor of a library.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::super::{ClientAuth, HttpLimits, HttpListenerConfig};
use super::kit::{JSON, ask, initialize, listener, receive, send, start, start_with_token, web};
use super::secure::{authority, files};
use crate::tokens;

/// All log messages of every level.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<String>>);

impl Visit for &Logs {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        writeln!(self.0.lock().unwrap(), "{field}={value:?}").unwrap();
    }
}

impl Subscriber for Logs {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut &*self);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut &*self);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn no_token_is_logged() {
    let logs = Logs::default();
    let _guard = tracing::subscriber::set_default(logs.clone());
    let (running, _, token) = start_with_token(HttpLimits { max_failures: 2, ..HttpLimits::default() });
    // The log messages of the test's own WebSocket client are not recorded.
    let known = format!("Bearer {token}");
    assert_eq!(
        ask(running.address, "POST", &[JSON, ("authorization", &known)], &initialize(1)).await.status,
        200
    );
    let (mut socket, _) = {
        let _quiet = tracing::subscriber::set_default(tracing::subscriber::NoSubscriber::default());
        web(running.address, &[("sec-websocket-protocol", &format!("acp, narrows.bearer.{token}"))])
            .await
            .unwrap()
    };
    send(&mut socket, &serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "_x"})).await;
    receive(&mut socket).await.unwrap();
    for _ in 0..4 {
        let wrong = "Bearer nrw_wrongwrongwrong";
        assert_ne!(
            ask(running.address, "POST", &[JSON, ("authorization", wrong)], &initialize(1)).await.status,
            200
        );
    }
    let logs = logs.0.lock().unwrap();
    assert!(logs.contains("request refused"), "{logs}");
    assert!(!logs.contains(&token[4..]) && !logs.contains("wrongwrong"), "{logs}");
    for expected in ["unknown token", "address locked out"] {
        assert_eq!(logs.matches(expected).count(), 1, "{logs}");
    }
    assert!(logs.contains("peer=127.0.0.1"), "{logs}");
}

#[tokio::test]
async fn an_invalid_file_is_logged_and_its_previous_content_kept() {
    let Some(directory) = authority() else { return };
    let file = directory.path().join("tokens.toml");
    tokens::add(&file, "one", None, std::time::SystemTime::UNIX_EPOCH).unwrap();
    let tls = files(directory.path(), false);
    let cert = tls.cert.clone();
    let running = start(
        HttpListenerConfig { auth: ClientAuth::Token(file.clone()), tls: Some(tls), ..listener() },
        HttpLimits::default(),
    );
    let logs = Logs::default();
    let _guard = tracing::subscriber::set_default(logs.clone());
    // The periodic check cannot run in between: the loop does not await.
    for (path, expected) in
        [(&file, "token file invalid"), (&cert, "TLS files invalid, keeping the previous ones")]
    {
        std::fs::write(path, "broken, and of another length").unwrap();
        running.handle.check_files();
        let said = std::mem::take(&mut *logs.0.lock().unwrap());
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.matches("previous").count(), 1, "nothing else is logged: {said}");
    }
}
