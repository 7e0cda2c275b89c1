//! Parses the head of a proxy request, as far as it determines the destination.

use crate::host::Target;

/// Limit of a head. Longer requests are refused.
pub(crate) const MAX_HEAD_BYTES: usize = 16 << 10;
const HTTP_PORT: u16 = 80;

/// A parsed request of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProxyRequest {
    Tunnel(Target),
    /// One request: `head` as the server receives it, and the length of its body.
    Request {
        target: Target,
        head: Vec<u8>,
        body: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("not a proxy request")]
    Malformed,
    #[error("invalid host address")]
    Target,
    #[error("only http URLs and CONNECT are supported")]
    Scheme,
    #[error("a request body needs a Content-Length")]
    Length,
}

/// Returns the length of the head with its final empty line, or `None` if the head is incomplete.
pub(crate) fn end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

pub(crate) fn read(head: &[u8]) -> Result<ProxyRequest, HeadError> {
    let text = std::str::from_utf8(head).map_err(|_| HeadError::Malformed)?;
    let text = text.strip_suffix("\r\n\r\n").ok_or(HeadError::Malformed)?;
    // Some servers treat a bare carriage return or line feed as a line end.
    if text.split("\r\n").any(|line| line.contains(['\r', '\n', '\0'])) {
        return Err(HeadError::Malformed);
    }
    let mut lines = text.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, address, "HTTP/1.1" | "HTTP/1.0"] = words[..] else { return Err(HeadError::Malformed) };
    if method.is_empty() || !method.bytes().all(is_token) {
        return Err(HeadError::Malformed);
    }
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(HeadError::Malformed)?;
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(HeadError::Malformed);
        }
        fields.push((name, value.trim_matches([' ', '\t'])));
    }
    if method == "CONNECT" {
        return Target::parse(address, None).map(ProxyRequest::Tunnel).map_err(|_| HeadError::Target);
    }
    request(method, address, &fields)
}

fn request(method: &str, address: &str, fields: &[(&str, &str)]) -> Result<ProxyRequest, HeadError> {
    let scheme = address.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let rest = scheme.and_then(|_| address.get(7..)).ok_or(HeadError::Scheme)?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let target = Target::parse(authority, Some(HTTP_PORT)).map_err(|_| HeadError::Target)?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    // The `Host` field names the host that was checked. `Connection: close` ends the connection after this
    // request.
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", authority_of(&target));
    let mut body = None;
    for (name, value) in fields {
        match name.to_ascii_lowercase().as_str() {
            "host" | "connection" | "keep-alive" | "te" | "trailer" | "upgrade" => {}
            name if name.starts_with("proxy-") => {}
            "transfer-encoding" => return Err(HeadError::Length),
            "content-length" => {
                let digits =
                    (1..=15).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_digit());
                let length = digits.then(|| value.parse::<u64>().ok()).flatten().ok_or(HeadError::Length)?;
                // A second length could hide another request in the body.
                if body.replace(length).is_some() {
                    return Err(HeadError::Length);
                }
                head.push_str(&format!("Content-Length: {length}\r\n"));
            }
            _ => head.push_str(&format!("{name}: {value}\r\n")),
        }
    }
    head.push_str("\r\n");
    Ok(ProxyRequest::Request { target, head: head.into_bytes(), body: body.unwrap_or(0) })
}

fn authority_of(target: &Target) -> String {
    if target.port == HTTP_PORT { target.host.to_string() } else { target.to_string() }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn describe(head: &str) -> String {
        match read(head.as_bytes()) {
            Ok(ProxyRequest::Tunnel(target)) => format!("tunnel {target}"),
            Ok(ProxyRequest::Request { target, head, body }) => {
                format!("request {target} {body} {}", String::from_utf8(head).unwrap().escape_debug())
            }
            Err(error) => format!("{error:?}"),
        }
    }

    #[test]
    fn a_head_is_parsed_unambiguously_or_refused() {
        for (head, expected) in [
            ("CONNECT api.example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n", "tunnel api.example.com:443"),
            ("CONNECT a.b:443 HTTP/1.0\r\n\r\n", "tunnel a.b:443"),
            (
                "GET http://A.b/x?y HTTP/1.1\r\nHost: evil\r\nProxy-Connection: keep-alive\r\nAccept: */*\r\n\r\n",
                "request a.b:80 0 GET /x?y HTTP/1.1\\r\\nHost: a.b\\r\\nConnection: close\\r\\nAccept: */*\\r\\n\\r\\n",
            ),
            (
                "POST http://a.b:81 HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
                "request a.b:81 5 POST / HTTP/1.1\\r\\nHost: a.b:81\\r\\nConnection: close\\r\\nContent-Length: 5\\r\\n\\r\\n",
            ),
            (
                "GET http://a.b?q HTTP/1.1\r\n\r\n",
                "request a.b:80 0 GET /?q HTTP/1.1\\r\\nHost: a.b\\r\\nConnection: close\\r\\n\\r\\n",
            ),
            ("CONNECT a.b HTTP/1.1\r\n\r\n", "Target"),
            ("CONNECT http://a.b:443 HTTP/1.1\r\n\r\n", "Target"),
            ("CONNECT user@a.b:443 HTTP/1.1\r\n\r\n", "Target"),
            ("GET http://user:pw@a.b/ HTTP/1.1\r\n\r\n", "Target"),
            ("GET https://a.b/ HTTP/1.1\r\n\r\n", "Scheme"),
            ("GET / HTTP/1.1\r\nHost: a.b\r\n\r\n", "Scheme"),
            ("GET é HTTP/1.1\r\n\r\n", "Scheme"),
            ("GET  http://a.b/ HTTP/1.1\r\n\r\n", "Malformed"),
            ("GET http://a.b/ HTTP/2\r\n\r\n", "Malformed"),
            ("GET http://a.b/ HTTP/1.1\r\nno colon\r\n\r\n", "Malformed"),
            ("GET http://a.b/ HTTP/1.1\r\n folded: x\r\n\r\n", "Malformed"),
            ("GET http://a.b/ HTTP/1.1\r\nA: b\nC: d\r\n\r\n", "Malformed"),
            ("GET http://a.b/ HTTP/1.1\r\nA: \0\r\n\r\n", "Malformed"),
            ("\r\n\r\n", "Malformed"),
            ("POST http://a.b/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "Length"),
            ("POST http://a.b/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "Length"),
            ("POST http://a.b/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "Length"),
        ] {
            assert_eq!(describe(head), expected, "{head:?}");
        }
        assert_eq!(end(b"GET / HTTP/1.1\r\n\r\nrest"), Some(18));
        assert_eq!(end(b"GET / HTTP/1.1\r\n\n"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn arbitrary_heads_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = read(&bytes);
        }

        /// For any field, one request is forwarded: one head, with the host that was checked.
        #[test]
        fn a_forwarded_head_is_exactly_one_request(name in "[A-Za-z-]{1,12}", value in "[ -~\r\n]{0,24}", path in "[ -~]{0,12}") {
            let head = format!("GET http://a.b/{path} HTTP/1.1\r\n{name}: {value}\r\n\r\n");
            if let Ok(ProxyRequest::Request { head, .. }) = read(head.as_bytes()) {
                prop_assert_eq!(end(&head), Some(head.len()));
                let text = String::from_utf8(head).unwrap().to_lowercase();
                let hosts = text.split("\r\n").filter(|line| line.starts_with("host:")).count();
                prop_assert_eq!(hosts, 1);
            }
        }
    }
}
