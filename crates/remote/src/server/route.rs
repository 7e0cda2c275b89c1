//! Everything that can be asked of a listener, in one table.
//!
//! There is no other way to a handler than through a row: one that no row names is dead code, which does not compile here.

use hyper::Method;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Its method.
    pub(super) method: Verb,
    /// Whether it is for requests that want another protocol on the same socket.
    pub(super) upgrade: bool,
    /// Who may ask.
    pub(super) access: Access,
    /// Who answers.
    pub(super) handler: Handler,
}

/// The methods that mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Post,
    Get,
    Delete,
    Options,
}

impl Verb {
    fn of(method: &Method) -> Option<Self> {
        match *method {
            Method::POST => Some(Self::Post),
            Method::GET => Some(Self::Get),
            Method::DELETE => Some(Self::Delete),
            Method::OPTIONS => Some(Self::Options),
            _ => None,
        }
    }
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Whoever is known.
    Known,
    /// A browser for a page of an allowed origin, which cannot say who is there; else as [`Access::Known`].
    Page,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handler {
    /// A message for the agents.
    Message,
    /// The events of a stream.
    Events,
    /// A WebSocket.
    WebSocket,
    /// The end of a connection.
    End,
    /// What a page may do.
    Preflight,
}

/// The table. All of it is on the one path of a listener.
pub(super) const ROUTES: &[Route] = &[
    Route { method: Verb::Post, upgrade: false, access: Access::Known, handler: Handler::Message },
    Route { method: Verb::Get, upgrade: false, access: Access::Known, handler: Handler::Events },
    Route { method: Verb::Get, upgrade: true, access: Access::Known, handler: Handler::WebSocket },
    Route { method: Verb::Delete, upgrade: false, access: Access::Known, handler: Handler::End },
    Route { method: Verb::Options, upgrade: false, access: Access::Page, handler: Handler::Preflight },
];

/// The methods of the table, as headers name them.
pub(super) const METHODS: HeaderValue = HeaderValue::from_static("POST, GET, DELETE, OPTIONS");

/// The row for a request on the path.
pub(super) fn find(method: &Method, headers: &HeaderMap) -> Option<&'static Route> {
    let method = Verb::of(method)?;
    let upgrade = method == Verb::Get && is_upgrade(headers);
    ROUTES.iter().find(|route| route.method == method && route.upgrade == upgrade)
}

/// Whether a request wants to go on as WebSocket.
fn is_upgrade(headers: &HeaderMap) -> bool {
    let has = |name, word: &str| {
        let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    has(CONNECTION, "upgrade") && has(UPGRADE, "websocket")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: &str, headers: &[(&'static str, &'static str)], expected: Option<Handler>) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        let found = find(&Method::from_bytes(method.as_bytes()).unwrap(), &map);
        assert_eq!(found.map(|route| route.handler), expected, "{method} {headers:?}");
    }

    #[test]
    fn rows() {
        check("POST", &[], Some(Handler::Message));
        check("GET", &[], Some(Handler::Events));
        check("DELETE", &[], Some(Handler::End));
        check("OPTIONS", &[], Some(Handler::Preflight));
        for method in ["HEAD", "PUT", "PATCH", "CONNECT", "TRACE", "WHATEVER"] {
            check(method, &[], None);
        }
        check(
            "GET",
            &[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")],
            Some(Handler::WebSocket),
        );
        check("GET", &[("connection", "upgrade"), ("upgrade", "h2c")], Some(Handler::Events));
        check("GET", &[("upgrade", "websocket")], Some(Handler::Events));
        check("POST", &[("connection", "upgrade"), ("upgrade", "websocket")], Some(Handler::Message));
    }

    #[test]
    fn only_a_preflight_can_be_asked_by_somebody_unknown() {
        for route in ROUTES {
            assert_eq!(route.access == Access::Page, route.handler == Handler::Preflight, "{route:?}");
        }
    }

    #[test]
    fn the_methods_are_those_of_the_table() {
        let methods = METHODS;
        let names = methods.to_str().unwrap();
        for name in names.split(", ") {
            assert!(find(&name.parse().unwrap(), &HeaderMap::new()).is_some(), "{name}");
        }
        assert_eq!(names.split(", ").count(), ROUTES.iter().filter(|route| !route.upgrade).count());
    }
}
