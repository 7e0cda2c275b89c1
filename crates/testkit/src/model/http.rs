//! The part of HTTP/1.1 that the test server needs: reads requests, writes heads of responses.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

use super::{Framing, Reply, Step};

const MAX_HEAD_BYTES: usize = 64 << 10;

const MAX_BODY_BYTES: usize = 256 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// Reads the next request. Returns `None` at the end of the connection. `held` contains bytes that were
/// already read.
pub(super) async fn read(
    from: &mut (impl AsyncRead + Unpin),
    held: &mut Vec<u8>,
) -> io::Result<Option<Request>> {
    let end = loop {
        if let Some(end) = held.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if held.len() > MAX_HEAD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the head is too long"));
        }
        if from.read_buf(held).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&held[..end]).into_owned();
    let Some(mut request) = parse(&head) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not the head of a request"));
    };
    held.drain(..end + 4);
    let length = length(&request.headers)?;
    while held.len() < length {
        if from.read_buf(held).await? == 0 {
            return Ok(None);
        }
    }
    request.body = held.drain(..length).collect();
    Ok(Some(request))
}

fn parse(head: &str) -> Option<Request> {
    let mut lines = head.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if !version.starts_with("HTTP/1.") || words.next().is_some() {
        return None;
    }
    let headers = lines
        .map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        })
        .collect::<Option<Vec<_>>>()?;
    Some(Request { method: method.to_owned(), target: target.to_owned(), headers, body: Vec::new() })
}

/// Returns the length of the body. Chunked bodies are not supported, because the client sends none.
fn length(headers: &[(String, String)]) -> io::Result<usize> {
    let find = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
    if find("transfer-encoding").is_some() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a body in chunks"));
    }
    let Some(length) = find("content-length") else { return Ok(0) };
    match length.parse() {
        Ok(length) if length <= MAX_BODY_BYTES => Ok(length),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no Content-Length, or the body is too long")),
    }
}

pub(super) fn head(reply: &Reply) -> Vec<u8> {
    let reason = if reply.status < 400 { "OK" } else { "Refused" };
    let mut head = format!("HTTP/1.1 {} {reason}\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    match reply.framing {
        Framing::Chunked => head.push_str("transfer-encoding: chunked\r\n"),
        Framing::Length => head.push_str(&format!("content-length: {}\r\n", body_length(&reply.steps))),
        Framing::UntilClose => head.push_str("connection: close\r\n"),
    }
    head.push_str("\r\n");
    head.into_bytes()
}

fn body_length(steps: &[Step]) -> usize {
    let length = |step: &Step| match step {
        Step::Bytes(bytes) => bytes.len(),
        Step::Repeat(bytes, count) => bytes.len() * count,
        _ => 0,
    };
    steps.iter().map(length).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

    use super::*;

    /// Parses all requests in `bytes`, passed in pieces of `size` bytes, until the end or an error.
    fn all(bytes: &[u8], size: usize) -> Vec<Request> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
        runtime.block_on(async {
            let (mut to, mut from) = tokio::io::duplex(size);
            let mut held = Vec::new();
            let mut requests = Vec::new();
            let reading = async {
                while let Ok(Some(request)) = read(&mut from, &mut held).await {
                    requests.push(request);
                }
                drop(from);
            };
            let writing = async move {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut to, bytes).await;
            };
            tokio::join!(reading, writing);
            requests
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn requests_come_back_as_they_were_sent(
            method in "[A-Z]{1,7}",
            target in "/[!-~]{0,20}",
            headers in proptest::collection::vec(("x-[a-z]{1,8}", "[!-~]{0,12}"), 0..4),
            body in proptest::collection::vec(any::<u8>(), 0..300),
            size in 1_usize..80,
        ) {
            let mut headers = headers;
            headers.push(("content-length".to_owned(), body.len().to_string()));
            let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            let head = format!("{method} {target} HTTP/1.1\r\n{lines}\r\n");
            let one = [head.as_bytes(), &body].concat();
            let request = || Request {
                method: method.clone(), target: target.clone(), headers: headers.clone(), body: body.clone(),
            };
            prop_assert_eq!(all(&one.repeat(2), size), [request(), request()]);
        }

        #[test]
        fn arbitrary_input_is_read_or_refused(bytes in "([A-Za-z]{0,4}[ :]?(\r\n)?(HTTP/1.1|content-length|-?[0-9])?){0,30}") {
            let found = all(bytes.as_bytes(), 7);
            prop_assert_eq!(found.len(), all(bytes.as_bytes(), 1024).len());
        }
    }

    async fn check(bytes: &str, expected: Option<(&str, &str, &str)>) {
        let mut held = Vec::new();
        let request = read(&mut bytes.as_bytes(), &mut held).await.ok().flatten();
        let parts = request.map(|request| {
            (request.method, request.target, String::from_utf8(request.body).expect("text was sent"))
        });
        let expected =
            expected.map(|(method, target, body)| (method.to_owned(), target.to_owned(), body.to_owned()));
        assert_eq!(parts, expected, "{bytes:?}");
    }

    #[tokio::test]
    async fn requests_are_read() {
        check("GET /v1/models?a=b HTTP/1.1\r\nHost: x\r\n\r\n", Some(("GET", "/v1/models?a=b", ""))).await;
        check("POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}GET", Some(("POST", "/x", "{}"))).await;
        check("POST /x HTTP/1.1\r\ncontent-length: 3\r\n\r\n{}", None).await;
        check("POST /x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", None).await;
        check("POST /x HTTP/1.1\r\ncontent-length: many\r\n\r\n", None).await;
        check("POST /x HTTP/2\r\n\r\n", None).await;
        check("nonsense\r\n\r\n", None).await;
        check("GET / HTTP/1.1\r\nno colon\r\n\r\n", None).await;
        check("GET / HTTP/1.1\r\n", None).await;
    }

    #[tokio::test]
    async fn bytes_read_early_are_kept() {
        let mut held = Vec::new();
        let mut bytes: &[u8] = b"POST /a HTTP/1.1\r\ncontent-length: 1\r\n\r\n1GET /b HTTP/1.1\r\n\r\n";
        let first = read(&mut bytes, &mut held).await.expect("bytes can be read").expect("a request");
        let second = read(&mut bytes, &mut held).await.expect("bytes can be read").expect("another");
        assert_eq!((first.target.as_str(), second.target.as_str()), ("/a", "/b"));
        assert!(read(&mut bytes, &mut held).await.expect("bytes can be read").is_none());
    }
}
