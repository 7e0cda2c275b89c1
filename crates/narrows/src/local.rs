//! Model servers on this machine, found by asking at the ports where they usually are.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cli::value;

/// How long all of them together may take to answer.
const PATIENCE: Duration = Duration::from_millis(150);

/// How much of an answer is read.
const LONGEST: u64 = 256 << 10;

/// Who usually listens where; the likeliest first.
const USUAL: [(u16, &str); 5] =
    [(11434, "Ollama"), (1234, "LM Studio"), (8080, "llama.cpp"), (8000, "vLLM"), (4000, "LiteLLM")];

/// A server that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// What it usually is.
    pub(crate) name: &'static str,
    /// Where it is.
    pub(crate) port: u16,
    /// The first of its models, if it has one.
    pub(crate) model: Option<String>,
}

impl Server {
    /// The flags that use it.
    pub(crate) fn flags(&self) -> String {
        let model = match &self.model {
            Some(model) if model.chars().all(is_plain) && value::model(model).is_ok() => model.as_str(),
            // Nothing that a server says is worth quoting for a shell, nor what would be refused.
            _ => "MODEL",
        };
        format!("--base-url http://localhost:{}/v1 --model {model}", self.port)
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.:/@".contains(c)
}

/// A server that answers at its usual port.
pub(crate) async fn find() -> Option<Server> {
    among(&USUAL).await
}

/// The first of these servers that answers, however soon others do.
async fn among(places: &[(u16, &'static str)]) -> Option<Server> {
    let mut asked = JoinSet::new();
    for (rank, &(port, name)) in places.iter().enumerate() {
        asked.spawn(async move {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let model = timeout(PATIENCE, ask(address)).await.ok()??;
            Some((rank, Server { name, port, model }))
        });
    }
    let found = asked.join_all().await.into_iter().flatten();
    found.min_by_key(|(rank, _)| *rank).map(|(_, server)| server)
}

/// Asks for the list of models. `None`: nobody is there, or it is something else.
async fn ask(address: SocketAddr) -> Option<Option<String>> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!(
        "GET /v1/models HTTP/1.1\r\nHost: localhost:{}\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
        address.port()
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    // Whoever keeps the connection open does not hide what it has said.
    let mut stream = stream.take(LONGEST);
    loop {
        let read = stream.read_buf(&mut answer).await.ok()?;
        if let Some(found) = models(&answer) {
            return Some(found);
        }
        if read == 0 {
            return None;
        }
    }
}

/// The first model of a whole answer that is a list of models.
fn models(answer: &[u8]) -> Option<Option<String>> {
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
    // However it was cut into pieces, it is one object, and nothing stands between pieces but their lengths.
    let is_chunked = head.lines().any(|line| {
        let line = line.to_ascii_lowercase();
        line.starts_with("transfer-encoding:") && line.contains("chunked")
    });
    let body = if is_chunked { joined(body)? } else { body.to_owned() };
    let list: List = serde_json::from_str(&body).ok()?;
    // A server without a model has nothing to offer, and some write that as null.
    Some(list.data?.into_iter().next().map(|model| model.id))
}

/// A body that was sent in pieces.
fn joined(mut rest: &str) -> Option<String> {
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
        let found = models(answer.replace('\n', "\r\n").as_bytes());
        assert_eq!(found.as_ref().map(Option::as_deref), expected, "{answer}");
    }

    #[test]
    fn a_list_of_models_looks_like_one() {
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
        let server = |model: Option<&str>| Server { name: "x", port: 1, model: model.map(str::to_owned) };
        assert_eq!(server(Some("a/b:1.5")).flags(), "--base-url http://localhost:1/v1 --model a/b:1.5");
        assert_eq!(server(Some("a; rm *")).flags(), "--base-url http://localhost:1/v1 --model MODEL");
        assert_eq!(server(Some("default")).flags(), "--base-url http://localhost:1/v1 --model MODEL");
        assert_eq!(server(None).flags(), "--base-url http://localhost:1/v1 --model MODEL");
    }

    #[tokio::test]
    async fn a_server_is_asked_in_http() {
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
        let ((request, _stream), found) = tokio::join!(serve, ask(address));
        assert!(request.starts_with("GET /v1/models HTTP/1.1\r\n"), "{request}");
        assert!(request.ends_with("\r\n\r\n"), "{request}");
        assert_eq!(found, Some(Some("m".to_owned())));
    }

    #[tokio::test]
    async fn who_says_nothing_hides_nobody() {
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
            among(&places),
            serve(&web, "HTTP/1.1 200 OK\r\n\r\n<html></html>"),
            serve(&models, "HTTP/1.1 200 OK\r\n\r\n{\"data\":[{\"id\":\"m\"}]}"),
        );
        let expected = Server { name: "models", port: port(&models), model: Some("m".to_owned()) };
        assert_eq!(found, Some(expected));
        assert_eq!(among(&[]).await, None);
    }

    #[tokio::test]
    async fn nobody_is_no_server() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(ask(address).await, None);
    }
}
