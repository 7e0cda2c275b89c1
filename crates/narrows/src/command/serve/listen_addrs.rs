//! The listeners of a server, from the arguments and the manifest.

use std::path::Path;

use narrows_bus::config::{ListenAddr, ListenerAuth, ListenerSettings, Tls, Web};
use narrows_manifest::types::acp::{Role, Transport};
use narrows_remote::server_tls;
use narrows_remote::tokens::Tokens;

use super::manifest::LoadedManifest;
use crate::cli::{ListenerArgs, Serve};
use crate::command::web::{self, find_duplicate_listener};
use crate::failure::Failure;

/// The default listener of a manifest that requires WebSocket.
const DEFAULT_URL: &str = "ws://127.0.0.1:8787/acp";

/// Returns all listeners. An empty list means stdio.
pub(super) fn resolve(manifest: &LoadedManifest, args: &Serve) -> Result<Vec<ListenerSettings>, Failure> {
    let mut listeners = args.listen.clone();
    // A bus has its own listeners, and `--approve` only pins the manifest.
    let serves = !args.approve && !args.for_bus && manifest.bundle.role != Role::Client;
    let transports = manifest.bundle.acp.front.transport.as_slice();
    let is_web_only = transports.iter().all(|transport| *transport == Transport::Websocket);
    if manifest.bundle.role == Role::Client && !listeners.is_empty() {
        return Err(Failure::listener_for_client());
    }
    if serves && is_web_only && listeners.is_empty() {
        listeners.extend(ListenerSettings::parse(DEFAULT_URL));
    }
    if let Some(pool) = listeners.iter().find_map(|listener| listener.pool.as_deref()) {
        return Err(Failure::pool_without_bus(pool));
    }
    if let Some((one, other)) = find_duplicate_listener(&listeners) {
        return Err(Failure::duplicate_listener(one, other));
    }
    let webs: Vec<&mut Web> = listeners
        .iter_mut()
        .filter_map(|listener| match &mut listener.addr {
            ListenAddr::Web(web) => Some(&mut **web),
            _ => None,
        })
        .collect();
    if webs.is_empty() {
        if args.web != ListenerArgs::default() {
            return Err(Failure::no_web_listener());
        }
        if serves && is_web_only {
            return Err(Failure::websocket_required());
        }
    }
    reject_files_in_workspace(&manifest.root, &args.web)?;
    apply_web_args(webs, &args.web)?;
    check_credentials(&listeners)?;
    Ok(listeners)
}

/// Rejects credential files in the workspace, where the agent could read or change them.
fn reject_files_in_workspace(root: &Path, args: &ListenerArgs) -> Result<(), Failure> {
    let files = [
        ("--tokens", &args.tokens),
        ("--cert", &args.cert),
        ("--key", &args.key),
        ("--client-ca", &args.client_ca),
    ];
    for (flag, path) in files {
        if let Some(path) = path
            && is_in_directory(root, path)
        {
            return Err(Failure::file_in_workspace(flag, path));
        }
    }
    Ok(())
}

/// Returns `true` if a file, or a link on the way to it, is in a directory.
fn is_in_directory(root: &Path, path: &Path) -> bool {
    let mut on_the_way = path.ancestors();
    on_the_way.any(|step| {
        let above = step.parent().map(|above| if above == Path::new("") { Path::new(".") } else { above });
        let paths = [Some(step), above.filter(|_| step.is_symlink())];
        paths.into_iter().flatten().any(|path| path.canonicalize().is_ok_and(|real| real.starts_with(root)))
    })
}

/// Reports unusable credential files before anything is trusted or recorded.
fn check_credentials(listeners: &[ListenerSettings]) -> Result<(), Failure> {
    for listener in listeners {
        let ListenAddr::Web(web) = &listener.addr else { continue };
        if let Some(tokens) = &web.tokens {
            Tokens::read(tokens).map_err(|error| Failure::token_file_invalid(tokens, &error))?;
        }
        if let Some(files) = web::tls_files(web) {
            server_tls::server_config(&files).map_err(|error| Failure::certificate_invalid(&error))?;
        }
    }
    Ok(())
}

fn apply_web_args(webs: Vec<&mut Web>, args: &ListenerArgs) -> Result<(), Failure> {
    let ListenerArgs { tokens, cert, key, client_ca, hosts, origins, .. } = args;
    if cert.is_some() && !webs.iter().any(|web| web.secure) && !webs.is_empty() {
        return Err(Failure::certificate_unused());
    }
    for web in webs {
        if web.secure {
            let (Some(cert), Some(key)) = (cert.clone(), key.clone()) else {
                return Err(Failure::certificate_missing(web));
            };
            web.tls = Some(Tls { cert, key, client_ca: client_ca.clone() });
        }
        web.tokens.clone_from(tokens);
        web.auth = match (tokens, client_ca) {
            (Some(_), _) => ListenerAuth::Token,
            (None, Some(_)) if web.secure => ListenerAuth::Mtls,
            _ => ListenerAuth::None,
        };
        web.hosts.clone_from(hosts);
        web.origins.clone_from(origins);
        if !web.is_loopback() && (web.auth == ListenerAuth::None || !web.secure) {
            return Err(Failure::unauthenticated_listener(web));
        }
        if web.lacks_host_name() {
            tracing::warn!(
                "{web} refuses clients of other machines with 403; add --host NAME for each name that they use"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the resulting listeners, or the beginning of the error message.
    #[track_caller]
    fn check(urls: &[&str], args: &ListenerArgs, expected: Result<&[&str], &str>) {
        let mut listeners: Vec<ListenerSettings> =
            urls.iter().map(|url| ListenerSettings::parse(url).expect(url)).collect();
        let webs = listeners.iter_mut().filter_map(|listener| match &mut listener.addr {
            ListenAddr::Web(web) => Some(&mut **web),
            _ => None,
        });
        let furnished = apply_web_args(webs.collect(), args);
        let told: Vec<String> = listeners
            .iter()
            .map(|listener| match &listener.addr {
                ListenAddr::Web(web) => {
                    format!("{} {}", web.auth.name(), if web.tls.is_some() { "tls" } else { "-" })
                }
                address => address.to_string(),
            })
            .collect();
        match (furnished, expected) {
            (Ok(()), Ok(expected)) => assert_eq!(told, expected, "{urls:?} {args:?}"),
            (Err(failure), Err(words)) => {
                assert!(failure.message().contains(words), "{urls:?} {args:?}: {}", failure.message());
            }
            (found, _) => panic!("{urls:?} {args:?}: {:?}", found.map_err(|failure| failure.message())),
        }
    }

    #[test]
    fn a_link_in_the_workspace_counts_as_inside() {
        let dir = tempfile::tempdir().expect("a directory");
        let [inside, outside] = ["in", "out"].map(|name| dir.path().join(name));
        for directory in [&inside, &outside] {
            std::fs::create_dir(directory).expect("a directory");
            std::fs::write(directory.join("file"), "").expect("a file");
        }
        std::os::unix::fs::symlink(outside.join("file"), inside.join("link")).expect("a link");
        std::os::unix::fs::symlink(&outside, inside.join("way")).expect("a link");
        std::os::unix::fs::symlink(inside.join("file"), outside.join("back")).expect("a link");
        let root = inside.canonicalize().expect("the workspace");
        for (path, expected) in [
            (inside.join("file"), true),
            (inside.join("link"), true),
            (inside.join("way/file"), true),
            (outside.join("back"), true),
            (outside.join("file"), false),
            (dir.path().join("none"), false),
        ] {
            assert_eq!(is_in_directory(&root, &path), expected, "{}", path.display());
        }
    }

    #[test]
    fn remote_clients_need_a_proof_and_encryption() {
        let file = |name: &str| Some(name.into());
        let none = ListenerArgs::default();
        let tokens = ListenerArgs { tokens: file("t"), ..none.clone() };
        let tls = ListenerArgs { cert: file("c"), key: file("k"), ..none.clone() };
        let both = ListenerArgs { tokens: file("t"), ..tls.clone() };
        let mtls = ListenerArgs { client_ca: file("a"), ..tls.clone() };
        let (here, safe) = ("ws://127.0.0.1:1", "wss://127.0.0.1:1");
        let (far, far_safe) = ("http://0.0.0.0:1", "https://0.0.0.0:1");
        check(&[here], &none, Ok(&["none -"]));
        check(&[here, "unix:s"], &tokens, Ok(&["token -", "unix:s"]));
        check(&[here], &tls, Err("--cert"));
        check(&[safe], &none, Err("needs a certificate"));
        check(&[safe, here], &tls, Ok(&["none tls", "none -"]));
        check(&[safe, here], &mtls, Ok(&["mtls tls", "none -"]));
        check(&[far], &none, Err("is reachable from other machines"));
        check(&[far], &tokens, Err("is reachable from other machines"));
        check(&[far_safe], &tls, Err("is reachable from other machines"));
        check(&[far_safe], &both, Ok(&["token tls"]));
        check(&[far_safe], &mtls, Ok(&["mtls tls"]));
        check(&[far_safe, far], &both, Err("is reachable from other machines"));
        check(&["unix:s"], &none, Ok(&["unix:s"]));
    }
}
