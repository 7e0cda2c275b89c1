//! Who may come in, and what they may cause: the user as whom we run, and those that a file names.
//!
//! The file is read again for every client, so what was taken from somebody is gone for their next connection. A connection
//! ends when the file says something else about its client.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narrows_govern::{Lobby, Method, Principal};
use narrows_link::{Link, Options};
use narrows_manifest::types::governance::Approver;
use narrows_policy::{ScopeError, check_scope};
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use toml::Spanned;

use super::charge::Charge;
use super::peer;
use super::person::{name_of, roles_of, uid_of, users};
use super::stand;
use crate::command::check;
use crate::failure::Failure;

/// Somebody on this machine, who cannot be told from anybody else.
const ANYBODY: &str = "tcp:loopback";

/// How long somebody is told how to come in who may not.
const LOBBY: Duration = Duration::from_secs(60);

/// What is held of the input of a client that is not admitted. Anybody on this machine may be one.
const MAX_NOT_ADMITTED_BYTES: usize = 64 << 10;

/// The link of a client that is not admitted, or has no slot.
pub(super) const NOT_ADMITTED_OPTIONS: Options = Options {
    max_line: MAX_NOT_ADMITTED_BYTES,
    queue_bytes: MAX_NOT_ADMITTED_BYTES,
    guard_first_line: false,
};

/// How often the file is read for a connection that is open. What it says has to be there twice: it may be half written.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The file of `--identities`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    #[serde(default)]
    identity: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    who: Spanned<String>,
    #[serde(default)]
    scopes: Option<Vec<Spanned<String>>>,
}

/// What is wrong with such a file, and where.
#[derive(Debug, thiserror::Error)]
#[error("{line}:{column}: {fault}")]
pub(crate) struct GuestsError {
    line: usize,
    column: usize,
    fault: Fault,
}

/// What is wrong with such a file.
#[derive(Debug, thiserror::Error)]
enum Fault {
    /// It is no such file.
    #[error("{0}")]
    Form(String),
    /// Nobody is called so.
    #[error(
        "who = {0:?} is neither user:NAME nor uid:NUMBER nor token:NAME nor cert:NAME nor bus:token:NAME nor bus:cert:NAME \
         nor {ANYBODY}"
    )]
    Who(String),
    /// It says twice what somebody may.
    #[error("who = {0:?} stands there twice")]
    Twice(String),
    /// No tool is called so.
    #[error(transparent)]
    Scope(#[from] ScopeError),
}

/// Somebody whom the file names.
#[derive(Clone, Debug)]
struct Named {
    who: String,
    /// Its line and column.
    at: (usize, usize),
    scopes: Option<Vec<String>>,
}

/// Who may come in.
#[derive(Debug)]
pub(super) struct Guests {
    /// As whom we run.
    ours: u32,
    users: String,
    file: Option<PathBuf>,
    /// Whom the file named at the start.
    named: Vec<Named>,
    approvers: Vec<Approver>,
}

impl Guests {
    /// Those of a file, or without one only the user as whom we run.
    pub(super) fn load(file: Option<&Path>, charge: &Charge) -> Result<Self, Failure> {
        let named = match file {
            None => Vec::new(),
            Some(path) => {
                // What it says who may must not be for the agent to say.
                if path.canonicalize().is_ok_and(|real| real.starts_with(&charge.root)) {
                    return Err(Failure::identities_inside(path));
                }
                read(path)?
            }
        };
        let governance = charge.bundle.governance.as_ref();
        let approvers = governance.map(|governance| governance.config.approvers.clone()).unwrap_or_default();
        let ours = rustix::process::geteuid().as_raw();
        Ok(Self { ours, users: users(), file: file.map(Path::to_owned), named, approvers })
    }

    /// Who has started us, whether they may come in or not.
    pub(super) fn starter(&self) -> Principal {
        match self.admit(Some(peer::of_parent()), Method::Process) {
            Ok(who) | Err(who) => who,
        }
    }

    /// Whether a file says who may come in.
    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Whether others than we are to be let in by the mode of a socket.
    pub(super) fn has_others(&self) -> bool {
        let own = self.identify(Some(self.ours), Method::UnixPeer);
        let is_user = |who: &str| who.starts_with("user:") || who.starts_with("uid:");
        self.named.iter().any(|entry| is_user(&entry.who) && !is_meant(&entry.who, Some(self.ours), &own.id))
    }

    /// Who that is, by its user as far as that is known, and what it may cause. `Err`: nobody who may come in.
    pub(super) fn admit(&self, user: Option<u32>, method: Method) -> Result<Principal, Principal> {
        self.judge(user, self.identify(user, method))
    }

    /// The same of somebody whom a bus has named: a user, somebody whom it knows by a token or a certificate, or anybody;
    /// and what their token narrows them to.
    pub(super) fn admit_by_bus(
        &self,
        name: &str,
        narrowed: Option<Vec<String>>,
    ) -> Result<Principal, Principal> {
        let user = name.strip_prefix("uid:").and_then(|number| number.parse().ok());
        let who = match (user, name) {
            (Some(_), _) | (None, narrows_bus::core::ANYONE) => self.identify(user, Method::Bus),
            _ => Principal { id: format!("bus:{name}"), method: Method::Bus, ..Principal::default() },
        };
        self.judge(user, Principal { narrowed, ..who })
    }

    /// Somebody who has shown a token or a certificate that counts here, and what that narrows them to. It lets them in; the file
    /// may only narrow them further.
    pub(super) fn admit_shown(
        &self,
        id: String,
        method: Method,
        narrowed: Option<Vec<String>>,
    ) -> Result<Principal, Principal> {
        self.judge(None, Principal { id, method, narrowed, ..Principal::default() })
    }

    /// Waits until the file says something else about somebody than it did when they were let in. While it cannot be read, or is
    /// wrong, they stay.
    pub(super) async fn changed(&self, who: &Principal) {
        let Some(file) = &self.file else { return std::future::pending().await };
        let mut has_changed = false;
        loop {
            sleep(RECHECK_INTERVAL).await;
            let had_changed = has_changed;
            has_changed = read(file).is_ok_and(|named| !self.is_as_before(&named, who));
            if had_changed && has_changed {
                return;
            }
        }
    }

    fn is_as_before(&self, named: &[Named], who: &Principal) -> bool {
        let user = match who.id.split_once(':') {
            Some(("user", name)) => uid_of(name, &self.users),
            Some(("uid", number)) => number.parse().ok(),
            _ => None,
        };
        let before = Principal { scopes: None, ..who.clone() };
        self.judge_by(named, user, before).is_ok_and(|now| now.scopes == who.scopes)
    }

    fn judge(&self, user: Option<u32>, who: Principal) -> Result<Principal, Principal> {
        match self.current() {
            Some(named) => self.judge_by(&named, user, who),
            None => Err(who),
        }
    }

    fn judge_by(&self, named: &[Named], user: Option<u32>, who: Principal) -> Result<Principal, Principal> {
        let has_shown = matches!(who.method, Method::Token | Method::Certificate);
        match named.iter().find(|entry| is_meant(&entry.who, user, &who.id)) {
            Some(entry) => Ok(Principal { scopes: entry.scopes.clone(), ..who }),
            None if has_shown || user == Some(self.ours) => Ok(who),
            None => Err(who),
        }
    }

    /// Whom the file names now. `None` if it cannot be read or is wrong. Blocks.
    fn current(&self) -> Option<Cow<'_, [Named]>> {
        let Some(file) = &self.file else { return Some(Cow::Borrowed(&self.named)) };
        match read(file) {
            Ok(named) => Some(Cow::Owned(named)),
            Err(failure) => {
                tracing::error!(problem = failure.message(), "nobody is let in without the identities file");
                None
            }
        }
    }

    fn identify(&self, user: Option<u32>, method: Method) -> Principal {
        let Some(uid) = user else {
            let method = Method::Unauthenticated;
            return Principal { id: ANYBODY.to_owned(), method, ..Principal::default() };
        };
        match name_of(uid, &self.users) {
            Some(name) => {
                let roles = roles_of(name, &self.approvers);
                Principal { id: format!("user:{name}"), method, roles, ..Principal::default() }
            }
            None => Principal { id: format!("uid:{uid}"), method, ..Principal::default() },
        }
    }

    /// What those are told who may not come in.
    pub(super) fn lobby(stranger: &Principal) -> Lobby {
        Lobby {
            id: "os-user".to_owned(),
            name: "User of this machine".to_owned(),
            description: format!(
                "you are {} here: connect as the user who serves this operator, or as one whom its --identities name",
                stranger.id
            ),
        }
    }
}

/// Tells somebody who may not come in how to, for a while. Not longer than `until`.
pub(super) async fn turn_away(stranger: &Principal, mut client: Link, until: impl Future<Output = ()>) {
    let lobby = Guests::lobby(stranger);
    let telling = async {
        while let Some(frame) = client.receiver.recv().await {
            if let Some(answer) = lobby.answer(frame.view())
                && client.sender.send(answer).await.is_err()
            {
                return;
            }
        }
    };
    tokio::select! {
        () = until => {}
        _ = timeout(LOBBY, telling) => {}
    }
    client.sender.close();
    stand::drain(&client.sender).await;
}

/// Whether a file says who may come in.
pub(in crate::command) fn check_file(path: &Path) -> Result<(), Failure> {
    read(path).map(drop)
}

/// What is wrong with a file that says who may come in: the line, the column, and what.
pub(in crate::command) fn fault(path: &Path) -> Option<(usize, usize, String)> {
    let text = match check::read(path) {
        Ok(text) => text,
        Err(error) => return Some((1, 1, format!("the identities cannot be read: {error}"))),
    };
    let GuestsError { line, column, fault } = parse(&text).err()?;
    Some((line, column, fault.to_string()))
}

/// Those in a file who never come where a bus says who they are: the name, its line and column.
pub(in crate::command) fn unknown_to_bus(path: &Path) -> Vec<(String, usize, usize)> {
    // One that cannot be read is told as that.
    let named = read(path).unwrap_or_default();
    let shown = named.into_iter().filter(|named| is_shown(&named.who));
    shown.map(|Named { who, at: (line, column), .. }| (who, line, column)).collect()
}

/// Whether somebody is known by what they have shown to us, and not to a bus.
fn is_shown(who: &str) -> bool {
    who.starts_with("token:") || who.starts_with("cert:")
}

fn read(path: &Path) -> Result<Vec<Named>, Failure> {
    let text = check::read(path).map_err(|error| Failure::unreadable("identities", path, &error))?;
    parse(&text).map_err(|error| Failure::bad_identities(path, &error))
}

/// Whether an entry means this user.
fn is_meant(who: &str, user: Option<u32>, id: &str) -> bool {
    who == id || user.is_some_and(|uid| who.strip_prefix("uid:") == Some(&uid.to_string()))
}

fn parse(text: &str) -> Result<Vec<Named>, GuestsError> {
    let wrong = |at: usize, fault: Fault| {
        let before = text.get(..at).unwrap_or(text);
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        GuestsError { line, column, fault }
    };
    let Names { identity: entries } = toml::from_str(text).map_err(|error| {
        wrong(error.span().map_or(0, |span| span.start), Fault::Form(error.message().to_owned()))
    })?;
    let mut named: Vec<Named> = Vec::new();
    for Entry { who, scopes } in entries {
        let (at, who) = (who.span().start, who.into_inner());
        let is_form = match who.split_once(':') {
            Some(("user" | "token" | "cert", name)) => !name.is_empty(),
            Some(("bus", known)) => {
                matches!(known.split_once(':'), Some(("token" | "cert", name)) if !name.is_empty())
            }
            Some(("uid", number)) => number.parse::<u32>().is_ok_and(|uid| uid.to_string() == number),
            _ => who == ANYBODY,
        };
        if !is_form {
            return Err(wrong(at, Fault::Who(who)));
        }
        if named.iter().any(|other| other.who == who) {
            return Err(wrong(at, Fault::Twice(who)));
        }
        for scope in scopes.iter().flatten() {
            check_scope(scope.get_ref()).map_err(|error| wrong(scope.span().start, error.into()))?;
        }
        let scopes = scopes.map(|scopes| scopes.into_iter().map(Spanned::into_inner).collect());
        let GuestsError { line, column, .. } = wrong(at, Fault::Form(String::new()));
        named.push(Named { who, at: (line, column), scopes });
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn guests(text: &str) -> Guests {
        let users = "root:x:0:0::/:/\nada:x:1000:1::/:/\nbob:x:1001:1::/:/\n".to_owned();
        let named = parse(text).expect("a file");
        Guests { ours: 1000, users, file: None, named, approvers: Vec::new() }
    }

    #[track_caller]
    fn check(text: &str, user: Option<u32>, expected: Result<(&str, Option<&[&str]>), &str>) {
        let admitted = guests(text).admit(user, Method::UnixPeer);
        let found = admitted.map(|who| (who.id, who.scopes)).map_err(|who| who.id);
        let all = |scopes: &[&str]| scopes.iter().map(|scope| (*scope).to_owned()).collect::<Vec<_>>();
        let expected = expected.map(|(id, scopes)| (id.to_owned(), scopes.map(all))).map_err(str::to_owned);
        assert_eq!(found, expected, "{text} {user:?}");
    }

    #[test]
    fn nobody_comes_in_but_ourselves_and_who_is_named() {
        check("", Some(1000), Ok(("user:ada", None)));
        check("", Some(1001), Err("user:bob"));
        check("", Some(0), Err("user:root"));
        check("", Some(7), Err("uid:7"));
        check("", None, Err("tcp:loopback"));
        let file = "[[identity]]\nwho = 'user:bob'\nscopes = ['kind:read']\n[[identity]]\nwho = 'uid:7'\n";
        check(file, Some(1000), Ok(("user:ada", None)));
        check(file, Some(1001), Ok(("user:bob", Some(&["kind:read"]))));
        check(file, Some(7), Ok(("uid:7", None)));
        check(file, Some(8), Err("uid:8"));
        check("[[identity]]\nwho = 'tcp:loopback'\nscopes = []\n", None, Ok(("tcp:loopback", Some(&[]))));
        check("[[identity]]\nwho = 'uid:1000'\nscopes = ['a']\n", Some(1000), Ok(("user:ada", Some(&["a"]))));
    }

    #[test]
    fn whom_a_bus_names_is_a_user_or_somebody_of_its_own() {
        let check = |text: &str, name: &str, expected: Result<&str, &str>| {
            let found = guests(text).admit_by_bus(name, None);
            let found = found.map(|who| format!("{} {}", who.id, who.method.name())).map_err(|who| who.id);
            assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned), "{text} {name}");
        };
        check("", "uid:1000", Ok("user:ada bus"));
        check("", "uid:1001", Err("user:bob"));
        check("", "anyone", Err("tcp:loopback"));
        check("", "user:ada", Err("bus:user:ada"));
        check("", "token:laptop", Err("bus:token:laptop"));
        check("[[identity]]\nwho = 'bus:token:laptop'\n", "token:laptop", Ok("bus:token:laptop bus"));
        check("[[identity]]\nwho = 'bus:token:laptop'\n", "cert:laptop", Err("bus:cert:laptop"));
        check("[[identity]]\nwho = 'tcp:loopback'\n", "anyone", Ok("tcp:loopback none"));
        check("[[identity]]\nwho = 'user:bob'\n", "user:bob", Err("bus:user:bob"));
    }

    #[test]
    fn the_scopes_of_a_token_stand_beside_those_of_the_file() {
        let file = guests("[[identity]]\nwho = 'bus:token:a'\nscopes = ['kind:read']\n");
        let who = file.admit_by_bus("token:a", Some(vec!["kind:edit".to_owned()])).expect("it is named");
        assert_eq!(who.scopes, Some(vec!["kind:read".to_owned()]));
        assert_eq!(who.narrowed, Some(vec!["kind:edit".to_owned()]));
        assert_eq!(file.admit_by_bus("token:a", None).expect("it is named").narrowed, None);
    }

    #[test]
    fn who_has_shown_something_is_let_in_and_never_widened() {
        let check = |text: &str, expected: Option<&[&str]>| {
            let narrowed = Some(vec!["kind:edit".to_owned()]);
            let who = guests(text).admit_shown("token:a".to_owned(), Method::Token, narrowed.clone());
            let who = who.expect("it was shown");
            let all = |scopes: &[&str]| scopes.iter().map(|scope| (*scope).to_owned()).collect::<Vec<_>>();
            assert_eq!((who.id.as_str(), who.scopes, who.narrowed), ("token:a", expected.map(all), narrowed));
            assert!(who.roles.is_empty(), "a name on a token is no user of this machine");
        };
        check("", None);
        check("[[identity]]\nwho = 'token:b'\nscopes = []\n", None);
        check("[[identity]]\nwho = 'bus:token:a'\nscopes = []\n", None);
        check("[[identity]]\nwho = 'cert:a'\nscopes = []\n", None);
        check("[[identity]]\nwho = 'token:a'\nscopes = ['kind:read']\n", Some(&["kind:read"]));
    }

    #[tokio::test(start_paused = true)]
    async fn the_file_is_read_again() {
        const BOB: &str = "[[identity]]\nwho = 'user:bob'\n";
        let file = tempfile::NamedTempFile::new().expect("a file");
        let write = |text: &str| std::fs::write(file.path(), text).expect("written");
        let guests = Guests { file: Some(file.path().to_owned()), ..guests("") };
        let admits = |user| guests.admit(Some(user), Method::UnixPeer).is_ok();
        write(BOB);
        let bob = guests.admit(Some(1001), Method::UnixPeer).expect("named");
        let ada = guests.admit(Some(1000), Method::UnixPeer).expect("ourselves");
        let token = guests.admit_shown("token:a".to_owned(), Method::Token, None).expect("shown");
        let stays = async |who: &Principal| timeout(RECHECK_INTERVAL * 5, guests.changed(who)).await.is_err();
        assert!(stays(&bob).await && stays(&ada).await && stays(&token).await);

        write("");
        assert!(!admits(1001) && admits(1000));
        assert!(!stays(&bob).await && stays(&ada).await && stays(&token).await);

        // Narrowed, one that is shown and ourselves as well.
        let all = ["user:bob", "user:ada", "token:a"];
        write(&all.map(|who| format!("[[identity]]\nwho = '{who}'\nscopes = []\n")).concat());
        assert!(!stays(&bob).await && !stays(&ada).await && !stays(&token).await);

        // A file that says nothing lets nobody in, and nobody has to go.
        write("[[identity");
        assert!(!admits(1001) && !admits(1000));
        assert!(guests.admit_shown("token:a".to_owned(), Method::Token, None).is_err());
        assert!(guests.admit_by_bus("token:a", None).is_err());
        assert!(stays(&bob).await && stays(&ada).await && stays(&token).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_half_written_ends_no_connection() {
        const BOB: &str = "[[identity]]\nwho = 'user:bob'\n";
        let file = tempfile::NamedTempFile::new().expect("a file");
        let write = |text: &str| std::fs::write(file.path(), text).expect("written");
        let guests = Guests { file: Some(file.path().to_owned()), ..guests("") };
        write(BOB);
        let bob = guests.admit(Some(1001), Method::UnixPeer).expect("named");
        let mut changed = std::pin::pin!(guests.changed(&bob));
        for text in ["", BOB, "", BOB, BOB] {
            write(text);
            assert!(timeout(RECHECK_INTERVAL, changed.as_mut()).await.is_err());
        }
    }

    #[test]
    fn a_socket_is_for_others_only_if_others_are_named() {
        assert!(!guests("").has_others());
        assert!(!guests("[[identity]]\nwho = 'user:ada'\n[[identity]]\nwho = 'tcp:loopback'\n").has_others());
        assert!(!guests("[[identity]]\nwho = 'uid:1000'\n").has_others());
        assert!(!guests("[[identity]]\nwho = 'token:a'\n[[identity]]\nwho = 'cert:a'\n").has_others());
        assert!(guests("[[identity]]\nwho = 'user:bob'\n").has_others());
    }

    #[test]
    fn what_is_not_clear_is_refused() {
        for (text, words) in [
            ("[[identity]]\nwho = 'bob'\n", "is neither"),
            ("[[identity]]\nwho = 'user:'\n", "is neither"),
            ("[[identity]]\nwho = 'bus:laptop'\n", "is neither"),
            ("[[identity]]\nwho = 'bus:token:'\n", "is neither"),
            ("[[identity]]\nwho = 'token:'\n", "is neither"),
            ("[[identity]]\nwho = 'uid:007'\n", "is neither"),
            ("[[identity]]\nwho = 'user:a'\n[[identity]]\nwho = 'user:a'\n", "twice"),
            ("[[identity]]\nwho = 'user:a'\nscopes = ['']\n", "3:11: a scope is empty"),
            (
                "[[identity]]\nwho = 'user:a'\nscopes = ['kind:read', 'kind:exec']\n",
                "3:24: no tool is of the kind `exec`",
            ),
            ("[[identity]]\nwho = 'user:a'\nscopes = ['kind:exec']\n", "did you mean kind:execute?"),
            ("[[identity]]\nwho = 'user:a'\nscope = ['x']\n", "unknown field"),
            ("[[identities]]\nwho = 'user:a'\n", "unknown field"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_no_harm(text in "\\PC{0,60}", who in "(user:|uid:|tcp:)?[a-z0-9]{0,8}") {
            let _ = parse(&text);
            let _ = parse(&format!("[[identity]]\nwho = '{who}'\n"));
        }
    }
}
