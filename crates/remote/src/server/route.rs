//! The routing table of a listener.
//!
//! A handler is reachable only through a row of the table: one without a row is dead code, which does not compile here.

use hyper::Method;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) method: Verb,
    /// `true` if the row is for upgrade requests only.
    pub(super) upgrade: bool,
    pub(super) access: Access,
    pub(super) handler: Handler,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Post,
    Get,
    Delete,
    Options,
}

impl Verb {
    fn from_method(method: &Method) -> Option<Self> {
        match *method {
            Method::POST => Some(Self::Post),
            Method::GET => Some(Self::Get),
            Method::DELETE => Some(Self::Delete),
            Method::OPTIONS => Some(Self::Options),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Known,
    /// A CORS preflight of an allowed origin, which browsers send without credentials; otherwise like
    /// [`Access::Known`].
    Page,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handler {
    Message,
    Events,
    WebSocket,
    End,
    Preflight,
}

/// The routing table. All rows are for the one path that a listener serves.
pub(super) const ROUTES: &[Route] = &[
    Route { method: Verb::Post, upgrade: false, access: Access::Known, handler: Handler::Message },
    Route { method: Verb::Get, upgrade: false, access: Access::Known, handler: Handler::Events },
    Route { method: Verb::Get, upgrade: true, access: Access::Known, handler: Handler::WebSocket },
    Route { method: Verb::Delete, upgrade: false, access: Access::Known, handler: Handler::End },
    Route { method: Verb::Options, upgrade: false, access: Access::Page, handler: Handler::Preflight },
];

pub(super) const METHODS: HeaderValue = HeaderValue::from_static("POST, GET, DELETE, OPTIONS");

pub(super) fn find(method: &Method, headers: &HeaderMap) -> Option<&'static Route> {
    let method = Verb::from_method(method)?;
    let upgrade = method == Verb::Get && is_upgrade(headers);
    ROUTES.iter().find(|route| route.method == method && route.upgrade == upgrade)
}

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
    fn only_a_preflight_needs_no_authentication() {
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
