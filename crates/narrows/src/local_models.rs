//! Finds model servers on this machine at their default ports.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cli::value;

/// Time for all servers to answer.
const PROBE_TIMEOUT: Duration = Duration::from_millis(150);

const MAX_RESPONSE_BYTES: u64 = 256 << 10;

/// Default ports, the most likely first.
const KNOWN_PORTS: [(u16, &str); 5] =
    [(11434, "Ollama"), (1234, "LM Studio"), (8080, "llama.cpp"), (8000, "vLLM"), (4000, "LiteLLM")];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalServer {
    pub(crate) name: &'static str,
    pub(crate) port: u16,
    pub(crate) model: Option<String>,
}

impl LocalServer {
    pub(crate) fn flags(&self) -> String {
        let model = match &self.model {
            Some(model) if model.chars().all(is_plain) && value::model(model).is_ok() => model.as_str(),
            // Names that need quoting in a shell, or would be rejected, are not shown.
            _ => "MODEL",
        };
        format!("--base-url http://localhost:{}/v1 --model {model}", self.port)
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.:/@".contains(c)
}

/// Returns the first server that answers at its default port.
pub(crate) async fn find() -> Option<LocalServer> {
    first_of(&KNOWN_PORTS).await
}

/// Returns the first of `places` at which a server answers, even if later ones answer sooner.
async fn first_of(places: &[(u16, &'static str)]) -> Option<LocalServer> {
    let mut asked = JoinSet::new();
    for (rank, &(port, name)) in places.iter().enumerate() {
        asked.spawn(async move {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let model = timeout(PROBE_TIMEOUT, fetch_models(address)).await.ok()??;
            Some((rank, LocalServer { name, port, model }))
        });
    }
    let found = asked.join_all().await.into_iter().flatten();
    found.min_by_key(|(rank, _)| *rank).map(|(_, server)| server)
}

/// Requests the model list of a server. `None` if nothing answers, or no model server; `Some(None)` if it has
/// no models.
async fn fetch_models(address: SocketAddr) -> Option<Option<String>> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!(
        "GET /v1/models HTTP/1.1\r\nHost: localhost:{}\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
        address.port()
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    // The response is parsed after each read, because the server may keep the connection open.
    let mut stream = stream.take(MAX_RESPONSE_BYTES);
    loop {
        let read = stream.read_buf(&mut answer).await.ok()?;
        if let Some(found) = parse_models(&answer) {
            return Some(found);
        }
        if read == 0 {
            return None;
        }
    }
}

/// Returns the first model of a complete response with a model list. `Some(None)` if the list is empty.
fn parse_models(answer: &[u8]) -> Option<Option<String>> {
    #[derive(Deserialize)]
    struct List {
        data: Option<Vec<Model>>,
    }
    #[derive(Deserialize)]
    struct Model {
        id: String,
    }
    let answer = std::str::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split_whitespace().nth(1)?;
    if status != "200" {
        return None;
    }
    // The body is one object, so chunks can be joined by dropping their lengths.
    let is_chunked = head.lines().any(|line| {
        let line = line.to_ascii_lowercase();
        line.starts_with("transfer-encoding:") && line.contains("chunked")
    });
    let body = if is_chunked { decode_chunked(body)? } else { body.to_owned() };
    let list: List = serde_json::from_str(&body).ok()?;
    // Some servers without models send null.
    Some(list.data?.into_iter().next().map(|model| model.id))
}

fn decode_chunked(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (length, after) = rest.split_once("\r\n")?;
        let length = usize::from_str_radix(length.split(';').next()?.trim(), 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.push_str(after.get(..length)?);
        rest = after.get(length..)?.strip_prefix("\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[track_caller]
    fn check(answer: &str, expected: Option<Option<&str>>) {
        let found = parse_models(answer.replace('\n', "\r\n").as_bytes());
        assert_eq!(found.as_ref().map(Option::as_deref), expected, "{answer}");
    }

    #[test]
    fn only_a_model_list_is_accepted() {
        let ok = "HTTP/1.1 200 OK\nContent-Type: application/json\n\n";
        let list = r#"{"object":"list","data":[{"id":"llama3.2:latest","object":"model"},{"id":"b"}]}"#;
        check(&format!("{ok}{list}"), Some(Some("llama3.2:latest")));
        check(&format!("HTTP/1.0 200 Fine\n\n{list}"), Some(Some("llama3.2:latest")));
        check(&format!("{ok}{{\"data\":[]}}"), Some(None));
        check(&format!("{ok}{{\"object\":\"list\",\"data\":null}}"), None);
        check(&format!("{ok}{{}}"), None);
        check(&format!("{ok}[1]"), None);
        check(&format!("{ok}<html>"), None);
        check(&format!("HTTP/1.1 404 No\n\n{list}"), None);
        check(&format!("SSH-2.0-x\n\n{list}"), None);
        check("", None);
        let chunked = "HTTP/1.1 200 OK\ntransfer-encoding: Chunked\n\n10;a=b\n{\"data\":[{\"id\":\"\n4\nx\"}]\n1\n}\n0\n\n";
        check(chunked, Some(Some("x")));
        check(chunked.trim_end_matches("0\n\n"), None);
    }

    #[test]
    fn flags_are_safe_to_copy() {
        let server =
            |model: Option<&str>| LocalServer { name: "x", port: 1, model: model.map(str::to_owned) };
        assert_eq!(server(Some("a/b:1.5")).flags(), "--base-url http://localhost:1/v1 --model a/b:1.5");
        assert_eq!(server(Some("a; rm *")).flags(), "--base-url http://localhost:1/v1 --model MODEL");
        assert_eq!(server(Some("default")).flags(), "--base-url http://localhost:1/v1 --model MODEL");
        assert_eq!(server(None).flags(), "--base-url http://localhost:1/v1 --model MODEL");
    }

    #[tokio::test]
    async fn a_server_is_queried_over_http() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8(request[..length].to_vec()).unwrap();
            let (first, second) = ("HTTP/1.1 200 OK\r\n\r\n{\"data\":[{\"id\"", ":\"m\"}]}");
            stream.write_all(first.as_bytes()).await.unwrap();
            stream.write_all(second.as_bytes()).await.unwrap();
            // The connection stays open.
            (request, stream)
        };
        let ((request, _stream), found) = tokio::join!(serve, fetch_models(address));
        assert!(request.starts_with("GET /v1/models HTTP/1.1\r\n"), "{request}");
        assert!(request.ends_with("\r\n\r\n"), "{request}");
        assert_eq!(found, Some(Some("m".to_owned())));
    }

    #[tokio::test]
    async fn a_silent_server_does_not_hide_others() {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let (silent, web, models) =
            (listen().await.unwrap(), listen().await.unwrap(), listen().await.unwrap());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let places = [(port(&silent), "silent"), (port(&web), "web"), (port(&models), "models")];
        let serve = async |listener: &TcpListener, answer: &str| {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let (found, (), ()) = tokio::join!(
            first_of(&places),
            serve(&web, "HTTP/1.1 200 OK\r\n\r\n<html></html>"),
            serve(&models, "HTTP/1.1 200 OK\r\n\r\n{\"data\":[{\"id\":\"m\"}]}"),
        );
        let expected = LocalServer { name: "models", port: port(&models), model: Some("m".to_owned()) };
        assert_eq!(found, Some(expected));
        assert_eq!(first_of(&[]).await, None);
    }

    #[tokio::test]
    async fn a_closed_port_is_not_a_server() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(fetch_models(address).await, None);
    }
}
