//! Reads `[[listen]]` for HTTP and WebSocket: authentication, TLS, origins and host names.

use narrows_config::{PathBase, SettingValue, Table, ValueKind};

use super::super::read::RequiredFile;
use super::super::web::{ListenerAuth, PEM_HINT, TOKENS_HINT, Tls, Web, host, origin};
use super::ListenAddr;

const TLS_KEYS: &[&str] = &["cert", "key", "client_ca"];

const HTTP_ONLY_KEYS: &[&str] = &["tokens", "origins", "hosts", "tls"];

/// Warning for a listener whose host name cannot be used by clients of other machines.
const NO_HOST_NAME_WARNING: &str = "cannot be reached from other machines, which get 403: list the names and addresses that \
                        clients use, such as hosts = [\"bus.example\"]";

const ALL_USERS_WARNING: &str = "admits every user of this machine, who can then use the agents as the user of the bus: write \"user\" for yourself alone";

pub(super) fn read_plain(table: Table<'_>, at: &ListenAddr) -> ListenerAuth {
    for item in HTTP_ONLY_KEYS.iter().filter_map(|key| table.get(key)) {
        item.error_with_name("has an effect only with http://, https://, ws:// or wss:// in the `url`", None);
    }
    let Some(item) = table.get("auth") else { return ListenerAuth::User };
    if matches!(&item.node.kind, ValueKind::Text(text) if [ListenerAuth::Token, ListenerAuth::Mtls].iter().any(|auth| auth.name() == text))
    {
        item.error_with_name(
            "must be \"user\" or \"none\": only http, https, ws and wss take tokens and certificates",
            None,
        );
        return ListenerAuth::User;
    }
    let auths = [ListenerAuth::User, ListenerAuth::None].map(|auth| (auth.name(), auth));
    let auth = item.one_of(&auths).unwrap_or(ListenerAuth::User);
    match (auth, at) {
        (ListenerAuth::None, ListenAddr::Tcp(_)) => item.warn(ALL_USERS_WARNING),
        (ListenerAuth::None, _) => {
            item.warn("has no effect here: only the user of the bus and root are admitted");
        }
        _ => {}
    }
    auth
}

/// Reads the settings of an HTTP listener other than its URL. Returns the files that the listener needs.
pub(super) fn read(
    table: Table<'_>,
    web: &mut Web,
    url: SettingValue<'_>,
    path_base: PathBase<'_>,
) -> Vec<RequiredFile> {
    let auths = [ListenerAuth::User, ListenerAuth::None, ListenerAuth::Token, ListenerAuth::Mtls]
        .map(|auth| (auth.name(), auth));
    if let Some(item) = table.get("auth") {
        let Some(auth) = item.one_of(&auths) else { return Vec::new() };
        web.auth = auth;
        if auth == ListenerAuth::None {
            item.warn(ALL_USERS_WARNING);
        }
    }
    let mut files = Vec::new();
    let mut file = |item: SettingValue<'_>, hint: &'static str| {
        let path = item.path(path_base)?;
        files.push(RequiredFile { path: path.clone(), at: item.node.at, hint });
        Some(path)
    };
    web.tokens = table.get("tokens").and_then(|item| file(item, TOKENS_HINT));
    if let Some(item) = table.get("tls").and_then(SettingValue::table) {
        item.only(TLS_KEYS, &[("ca", "did you mean `client_ca`?")]);
        let mut needed = |key: &str| match item.get(key) {
            Some(item) => file(item, PEM_HINT),
            None => {
                let hint = "write tls = { cert = \"cert.pem\", key = \"key.pem\" }";
                item.error(format!("`{key}` is missing in `tls`"), Some(hint))
            }
        };
        let (cert, key) = (needed("cert").unwrap_or_default(), needed("key").unwrap_or_default());
        let client_ca = item.get("client_ca").and_then(|item| file(item, PEM_HINT));
        web.tls = Some(Tls { cert, key, client_ca });
    }
    web.origins = texts(table, "origins", "write origins = [\"https://app.example\"]", origin);
    web.hosts = texts(table, "hosts", "write hosts = [\"bus.example\"]", host);
    if let Some((key, what)) = web.problem() {
        table.get(key).unwrap_or(url).error_with_name(what, None);
    } else if web.lacks_host_name() {
        url.warn(NO_HOST_NAME_WARNING);
    }
    files
}

fn texts(
    table: Table<'_>,
    key: &str,
    hint: &str,
    reading: fn(&str) -> Result<String, &'static str>,
) -> Vec<String> {
    let items = table.get(key).and_then(|item| item.list(hint));
    items.into_iter().flatten().filter_map(|item| item.parsed(reading)).collect()
}
