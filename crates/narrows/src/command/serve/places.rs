//! Where clients come in, as the arguments and the manifest say.

use std::path::Path;

use narrows_bus::config::{Auth, Door, Listen, Tls, Web};
use narrows_manifest::types::acp::{Kind, Transport};
use narrows_remote::tls;
use narrows_remote::tokens::Tokens;

use super::charge::Charge;
use crate::cli::{Serve, WebArgs};
use crate::command::web::{self, listened_twice};
use crate::failure::Failure;

/// Where a manifest that is for WebSocket only is served if nobody says where.
const USUAL: &str = "ws://127.0.0.1:8787/acp";

/// All places. None is stdin and stdout alone.
pub(super) fn of(charge: &Charge, args: &Serve) -> Result<Vec<Listen>, Failure> {
    let mut places = args.listen.clone();
    // A bus has transports of its own, and who approves serves nothing.
    let serves = !args.approve && !args.for_bus && charge.bundle.role != Kind::Client;
    let transports = charge.bundle.acp.front.transport.as_slice();
    let is_web_only = transports.iter().all(|transport| *transport == Transport::Websocket);
    if charge.bundle.role == Kind::Client && !places.is_empty() {
        return Err(Failure::nobody_comes_in());
    }
    if serves && is_web_only && places.is_empty() {
        places.extend(Listen::parse(USUAL));
    }
    if let Some(pool) = places.iter().find_map(|place| place.pool.as_deref()) {
        return Err(Failure::pool_of_nobody(pool));
    }
    if let Some((one, other)) = listened_twice(&places) {
        return Err(Failure::listened_twice(one, other));
    }
    let webs: Vec<&mut Web> = places
        .iter_mut()
        .filter_map(|place| match &mut place.at {
            Door::Web(web) => Some(&mut **web),
            _ => None,
        })
        .collect();
    if webs.is_empty() {
        if args.web != WebArgs::default() {
            return Err(Failure::no_web_place());
        }
        if serves && is_web_only {
            return Err(Failure::websocket_only());
        }
    }
    keep_outside(&charge.root, &args.web)?;
    furnish(webs, &args.web)?;
    check_files(&places)?;
    Ok(places)
}

/// What decides who comes in, and what proves who we are, must not be for the agent to read or to change.
fn keep_outside(root: &Path, args: &WebArgs) -> Result<(), Failure> {
    let files = [
        ("--tokens", &args.tokens),
        ("--cert", &args.cert),
        ("--key", &args.key),
        ("--client-ca", &args.client_ca),
    ];
    for (flag, path) in files {
        if let Some(path) = path
            && lies_in(root, path)
        {
            return Err(Failure::inside(flag, path));
        }
    }
    Ok(())
}

/// Whether a file lies there, or a link on the way to it does.
fn lies_in(root: &Path, path: &Path) -> bool {
    let mut on_the_way = path.ancestors();
    on_the_way.any(|step| {
        let above = step.parent().map(|above| if above == Path::new("") { Path::new(".") } else { above });
        let places = [Some(step), above.filter(|_| step.is_symlink())];
        places
            .into_iter()
            .flatten()
            .any(|place| place.canonicalize().is_ok_and(|real| real.starts_with(root)))
    })
}

/// What is wrong with files is told before anything is trusted or recorded.
fn check_files(places: &[Listen]) -> Result<(), Failure> {
    for place in places {
        let Door::Web(web) = &place.at else { continue };
        if let Some(tokens) = &web.tokens {
            Tokens::read(tokens).map_err(|error| Failure::tokens(tokens, &error))?;
        }
        if let Some(files) = web::tls_files(web) {
            tls::server_config(&files).map_err(|error| Failure::certificate(&error))?;
        }
    }
    Ok(())
}

/// Puts what the arguments say into every place for HTTP and WebSocket.
fn furnish(webs: Vec<&mut Web>, args: &WebArgs) -> Result<(), Failure> {
    let WebArgs { tokens, cert, key, client_ca, hosts, origins, .. } = args;
    if cert.is_some() && !webs.iter().any(|web| web.secure) && !webs.is_empty() {
        return Err(Failure::certificate_for_nothing());
    }
    for web in webs {
        if web.secure {
            let (Some(cert), Some(key)) = (cert.clone(), key.clone()) else {
                return Err(Failure::no_certificate(web));
            };
            web.tls = Some(Tls { cert, key, client_ca: client_ca.clone() });
        }
        web.tokens.clone_from(tokens);
        web.auth = match (tokens, client_ca) {
            (Some(_), _) => Auth::Token,
            (None, Some(_)) if web.secure => Auth::Mtls,
            _ => Auth::None,
        };
        web.hosts.clone_from(hosts);
        web.origins.clone_from(origins);
        if !web.is_loopback() && (web.auth == Auth::None || !web.secure) {
            return Err(Failure::unguarded(web));
        }
        if web.is_nameless() {
            tracing::warn!(
                "{web} can be called by nobody on another machine, who gets 403: --host NAME for each name that clients use"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of these places with these arguments: their words, or the beginning of the complaint.
    #[track_caller]
    fn check(urls: &[&str], args: &WebArgs, expected: Result<&[&str], &str>) {
        let mut places: Vec<Listen> = urls.iter().map(|url| Listen::parse(url).expect(url)).collect();
        let webs = places.iter_mut().filter_map(|place| match &mut place.at {
            Door::Web(web) => Some(&mut **web),
            _ => None,
        });
        let furnished = furnish(webs.collect(), args);
        let told: Vec<String> = places
            .iter()
            .map(|place| match &place.at {
                Door::Web(web) => {
                    format!("{} {}", web.auth.name(), if web.tls.is_some() { "tls" } else { "-" })
                }
                door => door.to_string(),
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
    fn a_link_in_the_workspace_is_in_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let [inside, outside] = ["in", "out"].map(|name| dir.path().join(name));
        for place in [&inside, &outside] {
            std::fs::create_dir(place).expect("a directory");
            std::fs::write(place.join("file"), "").expect("a file");
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
            assert_eq!(lies_in(&root, &path), expected, "{}", path.display());
        }
    }

    #[test]
    fn who_comes_from_elsewhere_proves_who_they_are_in_secret() {
        let file = |name: &str| Some(name.into());
        let none = WebArgs::default();
        let tokens = WebArgs { tokens: file("t"), ..none.clone() };
        let tls = WebArgs { cert: file("c"), key: file("k"), ..none.clone() };
        let both = WebArgs { tokens: file("t"), ..tls.clone() };
        let mtls = WebArgs { client_ca: file("a"), ..tls.clone() };
        let (here, safe) = ("ws://127.0.0.1:1", "wss://127.0.0.1:1");
        let (far, far_safe) = ("http://0.0.0.0:1", "https://0.0.0.0:1");
        check(&[here], &none, Ok(&["none -"]));
        check(&[here, "unix:s"], &tokens, Ok(&["token -", "unix:s"]));
        check(&[here], &tls, Err("--cert"));
        check(&[safe], &none, Err("needs a certificate"));
        check(&[safe, here], &tls, Ok(&["none tls", "none -"]));
        check(&[safe, here], &mtls, Ok(&["mtls tls", "none -"]));
        check(&[far], &none, Err("can be reached from other machines"));
        check(&[far], &tokens, Err("can be reached from other machines"));
        check(&[far_safe], &tls, Err("can be reached from other machines"));
        check(&[far_safe], &both, Ok(&["token tls"]));
        check(&[far_safe], &mtls, Ok(&["mtls tls"]));
        check(&[far_safe, far], &both, Err("can be reached from other machines"));
        check(&["unix:s"], &none, Ok(&["unix:s"]));
    }
}
