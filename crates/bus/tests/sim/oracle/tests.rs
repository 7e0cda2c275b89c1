//! Tests of the oracle itself: what it permits and what it reports.

use narrows_wire::View;

use super::{ClientMessage, ConnIndex, Kind, Oracle, Tag, WorkerIndex, WorkerMessage, stripped};

const OWN_WORKERS: Kind = Kind { per_connection: true, per_session: false, plain: false, mixed: false };

fn request(oracle: &mut Oracle, conn: ConnIndex, tag: Tag, method: &'static str, line: &str) {
    let view = View::parse(line.as_bytes());
    let session = view.session().map(std::borrow::Cow::into_owned);
    let id = format!("{tag}").into_bytes();
    let said = vec![ClientMessage::Request { tag, id, method, session, text: stripped(view) }];
    oracle.record_client_line(conn, said, false);
}

/// Returns an oracle with a worker of its own for a connection, in which a session opens after the timeout of
/// the request, or before it.
fn opened(is_late: bool) -> (Oracle, WorkerIndex) {
    let mut oracle = Oracle::new(false);
    let worker = oracle.worker_started(OWN_WORKERS);
    let conn = oracle.conn_open(0);
    let line = r##"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"n":"#1#"}}"##;
    request(&mut oracle, conn, 1, "session/new", line);
    oracle.check_worker_line(worker, 0, line.as_bytes());
    if is_late {
        let refusal = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-32011,"message":"late"}}"#;
        oracle.check_client_line(conn, refusal);
    }
    let (opens, text) = (Some((0, "s1".to_owned())), b"{}".to_vec());
    let said = WorkerMessage::Answer { id: b"1".to_vec(), opens, closes: None, text };
    oracle.record_worker_line(worker, vec![said], false);
    assert!(oracle.wrongs.is_empty(), "{:?}", oracle.wrongs);
    (oracle, worker)
}

#[test]
fn only_a_session_without_a_client_is_closed_in_the_worker_of_another_connection() {
    for (is_late, identity, is_permitted) in [(true, 0, true), (true, 1, false), (false, 0, false)] {
        for method in ["session/close", "session/delete"] {
            let (mut oracle, worker) = opened(is_late);
            let other = oracle.conn_open(identity);
            let line = format!(
                r##"{{"jsonrpc":"2.0","id":2,"method":"{method}","params":{{"sessionId":"s1","n":"#2#"}}}}"##
            );
            request(&mut oracle, other, 2, method, &line);
            oracle.check_worker_line(worker, 100, line.as_bytes());
            let serves = |wrong: &String| wrong.starts_with("worker 0 serves two");
            let reported = oracle.wrongs.iter().any(serves);
            assert_eq!(reported, !is_permitted, "{method} {is_late} {identity}: {:?}", oracle.wrongs);
        }
    }
}
