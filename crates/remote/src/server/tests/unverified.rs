//! A token file that can no longer be read: connected clients stay, and no new ones are admitted.

use super::super::HttpLimits;
use super::super::token_store::MAX_READ_FAILURES;
use super::kit::{JSON, ask, initialize, receive, send, start_with_token, web};
use crate::tokens;

#[tokio::test]
async fn an_unreadable_token_file_admits_no_new_client() {
    let (running, file, token) = start_with_token(HttpLimits::default());
    let at = running.address;
    let other = tokens::add(&file, "two", None, std::time::SystemTime::UNIX_EPOCH).unwrap();
    running.handle.reload().unwrap();
    let (known, other) = (format!("Bearer {token}"), format!("Bearer {other}"));
    let (proof, other) = (("authorization", &*known), ("authorization", &*other));
    let (mut socket, _) = web(at, &[proof]).await.unwrap();
    let opened = ask(at, "POST", &[JSON, proof], &initialize(1)).await;
    let connection = ("acp-connection-id", opened.header("acp-connection-id").unwrap());
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    (0..MAX_READ_FAILURES).for_each(|_| running.handle.check_files());
    let refused = ask(at, "POST", &[JSON, proof], &initialize(2)).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("10")));
    // The name of an open connection in the header does not admit an `initialize`, which opens a new one.
    assert_eq!(ask(at, "POST", &[JSON, proof, connection], &initialize(3)).await.status, 503);
    assert_eq!(web(at, &[proof]).await.err(), Some(503));
    assert_eq!(web(at, &[("authorization", "Bearer nrw_wrong")]).await.err(), Some(401));
    let counted: Vec<_> = running.handle.refused().into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [("token", 4)]);
    // Open connections continue.
    let echo = serde_json::json!({"jsonrpc": "2.0", "id": 7, "method": "_x"});
    send(&mut socket, &echo).await;
    assert_eq!(receive(&mut socket).await.unwrap()["id"], 7);
    assert_eq!(ask(at, "POST", &[JSON, proof, connection], &echo.to_string()).await.status, 202);
    // Once the file is readable again, its tokens decide which clients stay.
    std::fs::write(&file, &text[text.rfind("\n[[token]]").unwrap()..]).unwrap();
    running.handle.check_files();
    assert_eq!(receive(&mut socket).await, Err(4401));
    assert_eq!(web(at, &[proof]).await.err(), Some(401));
    assert!(web(at, &[other]).await.is_ok());
}
