//! Identities of clients: the user of this process, and those listed in the identities file.
//!
//! The file is read for every new client, so that revoked rights are gone with the next connection. An open
//! connection is closed when the file no longer grants its client the same rights.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narrows_config::{Finding, Findings, Node, SettingValue, SourcePos, Table};
use narrows_govern::{IdentityMethod, Principal, UnauthenticatedGate};
use narrows_link::{Link, Options};
use narrows_manifest::types::governance::Approver;
use narrows_policy::check_scope;
use tokio::time::{sleep, timeout};

use super::manifest::LoadedManifest;
use super::os_users::{approver_roles, read_passwd, user_id, user_name};
use super::parent_process;
use super::run_gate;
use crate::command::check;
use crate::failure::{Failure, IDENTITIES_HINT};

const ANY_LOOPBACK_CLIENT: &str = "tcp:loopback";

/// The time for which an unauthenticated client may stay connected to learn how to authenticate.
const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of buffered bytes of a client that is not admitted, which any local process may be.
const MAX_UNAUTHENTICATED_BYTES: usize = 64 << 10;

/// Link options for clients that are not admitted or have no slot.
pub(super) const UNAUTHENTICATED_OPTIONS: Options = Options {
    max_line: MAX_UNAUTHENTICATED_BYTES,
    queue_bytes: MAX_UNAUTHENTICATED_BYTES,
    guard_first_line: false,
};

/// The interval of checks for an open connection. A change counts when two checks in a row see it, because
/// the file may be half written at the first.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
struct Named {
    who: String,
    pos: SourcePos,
    scopes: Option<Vec<String>>,
}

#[derive(Debug)]
pub(super) struct Identities {
    own_uid: u32,
    users: String,
    file: Option<PathBuf>,
    /// The entries of the identities file at the start of the process.
    named: Vec<Named>,
    approvers: Vec<Approver>,
}

impl Identities {
    /// Loads the identities file. Without one, only the user of this process is admitted.
    pub(super) fn load(file: Option<&Path>, manifest: &LoadedManifest) -> Result<Self, Failure> {
        let named = match file {
            None => Vec::new(),
            Some(path) => {
                // With a file in the workspace, the agent could admit clients.
                if path.canonicalize().is_ok_and(|real| real.starts_with(&manifest.root)) {
                    return Err(Failure::identities_in_workspace(path));
                }
                read(path)?
            }
        };
        let governance = manifest.bundle.governance.as_ref();
        let approvers = governance.map(|governance| governance.config.approvers.clone()).unwrap_or_default();
        let own_uid = rustix::process::geteuid().as_raw();
        Ok(Self { own_uid, users: read_passwd(), file: file.map(Path::to_owned), named, approvers })
    }

    pub(super) fn launcher(&self) -> Principal {
        match self.admit(Some(parent_process::parent_user()), IdentityMethod::Process) {
            Ok(who) | Err(who) => who,
        }
    }

    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Returns `true` if the mode of a socket must let other users connect.
    pub(super) fn has_others(&self) -> bool {
        let own = self.identify(Some(self.own_uid), IdentityMethod::UnixPeer);
        let is_user = |who: &str| who.starts_with("user:") || who.starts_with("uid:");
        self.named
            .iter()
            .any(|entry| is_user(&entry.who) && !matches_entry(&entry.who, Some(self.own_uid), &own.id))
    }

    /// Identifies a client by its user, if that is known. `Err` if the client is not admitted.
    pub(super) fn admit(&self, user: Option<u32>, method: IdentityMethod) -> Result<Principal, Principal> {
        self.authorize(user, self.identify(user, method))
    }

    /// Identifies a client by the name that a bus gave: a user, a token, a certificate, or anyone. `narrowed` are the
    /// scopes of its token.
    pub(super) fn admit_by_bus(
        &self,
        name: &str,
        narrowed: Option<Vec<String>>,
    ) -> Result<Principal, Principal> {
        let user = name.strip_prefix("uid:").and_then(|number| number.parse().ok());
        let who = match (user, name) {
            (Some(_), _) | (None, narrows_bus::core::ANYONE) => self.identify(user, IdentityMethod::Bus),
            _ => Principal { id: format!("bus:{name}"), method: IdentityMethod::Bus, ..Principal::default() },
        };
        self.authorize(user, Principal { narrowed, ..who })
    }

    /// Admits a client that proved a token or a certificate valid for this server. The file may only narrow its
    /// scopes further.
    pub(super) fn admit_proven(
        &self,
        id: String,
        method: IdentityMethod,
        narrowed: Option<Vec<String>>,
    ) -> Result<Principal, Principal> {
        self.authorize(None, Principal { id, method, narrowed, ..Principal::default() })
    }

    /// Waits until the file changes the rights of a client. An unreadable or invalid file changes nothing.
    pub(super) async fn wait_for_change(&self, who: &Principal) {
        let Some(file) = &self.file else { return std::future::pending().await };
        let mut has_changed = false;
        loop {
            sleep(RECHECK_INTERVAL).await;
            let had_changed = has_changed;
            has_changed = read(file).is_ok_and(|named| !self.is_unchanged(&named, who));
            if had_changed && has_changed {
                return;
            }
        }
    }

    fn is_unchanged(&self, named: &[Named], who: &Principal) -> bool {
        let user = match who.id.split_once(':') {
            Some(("user", name)) => user_id(name, &self.users),
            Some(("uid", number)) => number.parse().ok(),
            _ => None,
        };
        let before = Principal { scopes: None, ..who.clone() };
        self.authorize_with(named, user, before).is_ok_and(|now| now.scopes == who.scopes)
    }

    fn authorize(&self, user: Option<u32>, who: Principal) -> Result<Principal, Principal> {
        match self.current_entries() {
            Some(named) => self.authorize_with(&named, user, who),
            None => Err(who),
        }
    }

    fn authorize_with(
        &self,
        named: &[Named],
        user: Option<u32>,
        who: Principal,
    ) -> Result<Principal, Principal> {
        let has_proof = matches!(who.method, IdentityMethod::Token | IdentityMethod::Certificate);
        match named.iter().find(|entry| matches_entry(&entry.who, user, &who.id)) {
            Some(entry) => Ok(Principal { scopes: entry.scopes.clone(), ..who }),
            None if has_proof || user == Some(self.own_uid) => Ok(who),
            None => Err(who),
        }
    }

    /// Returns the current entries. `None` if the file is unreadable or invalid. Blocks.
    fn current_entries(&self) -> Option<Cow<'_, [Named]>> {
        let Some(file) = &self.file else { return Some(Cow::Borrowed(&self.named)) };
        match read(file) {
            Ok(named) => Some(Cow::Owned(named)),
            Err(failure) => {
                tracing::error!(
                    problem = failure.message(),
                    "cannot read the identities file, admitting no clients"
                );
                None
            }
        }
    }

    fn identify(&self, user: Option<u32>, method: IdentityMethod) -> Principal {
        let Some(uid) = user else {
            let method = IdentityMethod::Unauthenticated;
            return Principal { id: ANY_LOOPBACK_CLIENT.to_owned(), method, ..Principal::default() };
        };
        match user_name(uid, &self.users) {
            Some(name) => {
                let roles = approver_roles(name, &self.approvers);
                Principal { id: format!("user:{name}"), method, roles, ..Principal::default() }
            }
            None => Principal { id: format!("uid:{uid}"), method, ..Principal::default() },
        }
    }

    /// Returns the gate for a client that is not admitted. All that this gate does is explain how to
    /// authenticate.
    pub(super) fn unauthenticated_gate(who: &Principal) -> UnauthenticatedGate {
        UnauthenticatedGate {
            id: "os-user".to_owned(),
            name: "User of this machine".to_owned(),
            description: format!(
                "identified as {}; connect as the user who serves this operator, or as an identity of its \
                 --identities file",
                who.id
            ),
        }
    }
}

/// Explains to a client that is not admitted how to authenticate, until a timeout or `until`.
pub(super) async fn serve_unauthenticated(
    who: &Principal,
    mut client: Link,
    until: impl Future<Output = ()>,
) {
    let gate = Identities::unauthenticated_gate(who);
    let answering = async {
        while let Some(frame) = client.receiver.recv().await {
            if let Some(answer) = gate.answer(frame.view())
                && client.sender.send(answer).await.is_err()
            {
                return;
            }
        }
    };
    tokio::select! {
        () = until => {}
        _ = timeout(UNAUTHENTICATED_TIMEOUT, answering) => {}
    }
    client.sender.close();
    run_gate::drain_output(&client.sender).await;
}

pub(in crate::command) fn check_file(path: &Path) -> Result<(), Failure> {
    read(path).map(drop)
}

pub(in crate::command) fn first_error(path: &Path) -> Option<Finding> {
    let file = path.display().to_string();
    match check::read(path) {
        Ok(text) => parse(&Findings::new(&file, &text)).err(),
        Err(error) => {
            let message = format!("cannot read the identities: {error}");
            Some(Finding::error(file, SourcePos::START, message).with_hint(IDENTITIES_HINT))
        }
    }
}

/// Returns entries that never match behind a bus, because a bus names tokens and certificates differently.
pub(in crate::command) fn unknown_to_bus(path: &Path) -> Vec<(String, SourcePos)> {
    // An unreadable file is reported separately.
    let named = read(path).unwrap_or_default();
    named.into_iter().filter(|named| is_proven(&named.who)).map(|named| (named.who, named.pos)).collect()
}

/// Returns `true` for tokens and certificates that are proved to this server and not to a bus.
fn is_proven(who: &str) -> bool {
    who.starts_with("token:") || who.starts_with("cert:")
}

fn read(path: &Path) -> Result<Vec<Named>, Failure> {
    let text = check::read(path).map_err(|error| Failure::file_unreadable("identities", path, &error))?;
    let file = path.display().to_string();
    parse(&Findings::new(&file, &text)).map_err(|error| Failure::config_finding(&error))
}

fn matches_entry(who: &str, user: Option<u32>, id: &str) -> bool {
    who == id || user.is_some_and(|uid| who.strip_prefix("uid:") == Some(&uid.to_string()))
}

fn parse(findings: &Findings<'_>) -> Result<Vec<Named>, Finding> {
    Node::read_toml(findings, |table| {
        table.only(&["identity"], &[]);
        let mut all: Vec<Named> = Vec::new();
        for table in table.read("identity", SettingValue::tables).into_iter().flatten() {
            let entry = named(table)?;
            if all.iter().any(|other| other.who == entry.who) {
                let message = format!("duplicate identity: who = {:?}", entry.who);
                return table.get("who").and_then(|item| item.error(message, None));
            }
            all.push(entry);
        }
        Some(all)
    })
    .map_err(|error| Finding { hint: error.hint.or_else(|| Some(IDENTITIES_HINT.to_owned())), ..error })
}

fn named(table: Table<'_>) -> Option<Named> {
    table.only(&["who", "scopes"], &[]);
    let item = table.required("who", None)?;
    let who = item.string()?;
    let is_form = match who.split_once(':') {
        Some(("user" | "token" | "cert", name)) => !name.is_empty(),
        Some(("bus", known)) => {
            matches!(known.split_once(':'), Some(("token" | "cert", name)) if !name.is_empty())
        }
        Some(("uid", number)) => number.parse::<u32>().is_ok_and(|uid| uid.to_string() == number),
        _ => who == ANY_LOOPBACK_CLIENT,
    };
    if !is_form {
        let message = format!(
            "invalid identity: who = {who:?} is neither user:NAME, uid:NUMBER, token:NAME, cert:NAME, \
             bus:token:NAME, bus:cert:NAME nor {ANY_LOOPBACK_CLIENT}"
        );
        return item.error(message, None);
    }
    let scope = |item: SettingValue<'_>| match check_scope(item.string()?) {
        Ok(()) => item.string().map(str::to_owned),
        Err(error) => item.error(error.to_string(), None),
    };
    let scopes = table.read("scopes", |item| Some(item.list("")?.filter_map(scope).collect()));
    Some(Named { who: who.to_owned(), pos: item.findings.pos(item.node.at), scopes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identities(text: &str) -> Identities {
        let users = "root:x:0:0::/:/\nada:x:1000:1::/:/\nbob:x:1001:1::/:/\n".to_owned();
        let named = parse(&Findings::new("f", text)).expect("a file");
        Identities { own_uid: 1000, users, file: None, named, approvers: Vec::new() }
    }

    #[track_caller]
    fn check(text: &str, user: Option<u32>, expected: Result<(&str, Option<&[&str]>), &str>) {
        let admitted = identities(text).admit(user, IdentityMethod::UnixPeer);
        let found = admitted.map(|who| (who.id, who.scopes)).map_err(|who| who.id);
        let all = |scopes: &[&str]| scopes.iter().map(|scope| (*scope).to_owned()).collect::<Vec<_>>();
        let expected = expected.map(|(id, scopes)| (id.to_owned(), scopes.map(all))).map_err(str::to_owned);
        assert_eq!(found, expected, "{text} {user:?}");
    }

    #[test]
    fn only_the_own_user_and_listed_identities_are_admitted() {
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
    fn a_bus_names_users_or_its_own_identities() {
        let check = |text: &str, name: &str, expected: Result<&str, &str>| {
            let found = identities(text).admit_by_bus(name, None);
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
    fn scopes_of_a_token_and_of_the_file_both_apply() {
        let file = identities("[[identity]]\nwho = 'bus:token:a'\nscopes = ['kind:read']\n");
        let who =
            file.admit_by_bus("token:a", Some(vec!["kind:edit".to_owned()])).expect("the client is listed");
        assert_eq!(who.scopes, Some(vec!["kind:read".to_owned()]));
        assert_eq!(who.narrowed, Some(vec!["kind:edit".to_owned()]));
        assert_eq!(file.admit_by_bus("token:a", None).expect("the client is listed").narrowed, None);
    }

    #[test]
    fn a_proven_identity_is_admitted_and_never_widened() {
        let check = |text: &str, expected: Option<&[&str]>| {
            let narrowed = Some(vec!["kind:edit".to_owned()]);
            let who =
                identities(text).admit_proven("token:a".to_owned(), IdentityMethod::Token, narrowed.clone());
            let who = who.expect("it was shown");
            let all = |scopes: &[&str]| scopes.iter().map(|scope| (*scope).to_owned()).collect::<Vec<_>>();
            assert_eq!((who.id.as_str(), who.scopes, who.narrowed), ("token:a", expected.map(all), narrowed));
            assert!(who.roles.is_empty(), "a token with the name of a user has no roles of that user");
        };
        check("", None);
        check("[[identity]]\nwho = 'token:b'\nscopes = []\n", None);
        check("[[identity]]\nwho = 'bus:token:a'\nscopes = []\n", None);
        check("[[identity]]\nwho = 'cert:a'\nscopes = []\n", None);
        check("[[identity]]\nwho = 'token:a'\nscopes = ['kind:read']\n", Some(&["kind:read"]));
    }

    #[tokio::test(start_paused = true)]
    async fn changes_of_the_file_apply() {
        const BOB: &str = "[[identity]]\nwho = 'user:bob'\n";
        let file = tempfile::NamedTempFile::new().expect("a file");
        let write = |text: &str| std::fs::write(file.path(), text).expect("written");
        let identities = Identities { file: Some(file.path().to_owned()), ..identities("") };
        let admits = |user| identities.admit(Some(user), IdentityMethod::UnixPeer).is_ok();
        write(BOB);
        let bob = identities.admit(Some(1001), IdentityMethod::UnixPeer).expect("named");
        let ada = identities.admit(Some(1000), IdentityMethod::UnixPeer).expect("the own user is admitted");
        let token = identities
            .admit_proven("token:a".to_owned(), IdentityMethod::Token, None)
            .expect("a proven client is admitted");
        let stays = async |who: &Principal| {
            timeout(RECHECK_INTERVAL * 5, identities.wait_for_change(who)).await.is_err()
        };
        assert!(stays(&bob).await && stays(&ada).await && stays(&token).await);

        write("");
        assert!(!admits(1001) && admits(1000));
        assert!(!stays(&bob).await && stays(&ada).await && stays(&token).await);

        // The scopes of a token and of the own user are narrowed, too.
        let all = ["user:bob", "user:ada", "token:a"];
        write(&all.map(|who| format!("[[identity]]\nwho = '{who}'\nscopes = []\n")).concat());
        assert!(!stays(&bob).await && !stays(&ada).await && !stays(&token).await);

        // An invalid file admits no new client and closes no connection.
        write("[[identity");
        assert!(!admits(1001) && !admits(1000));
        assert!(identities.admit_proven("token:a".to_owned(), IdentityMethod::Token, None).is_err());
        assert!(identities.admit_by_bus("token:a", None).is_err());
        assert!(stays(&bob).await && stays(&ada).await && stays(&token).await);
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_file_closes_no_connection() {
        const BOB: &str = "[[identity]]\nwho = 'user:bob'\n";
        let file = tempfile::NamedTempFile::new().expect("a file");
        let write = |text: &str| std::fs::write(file.path(), text).expect("written");
        let identities = Identities { file: Some(file.path().to_owned()), ..identities("") };
        write(BOB);
        let bob = identities.admit(Some(1001), IdentityMethod::UnixPeer).expect("named");
        let mut changed = std::pin::pin!(identities.wait_for_change(&bob));
        for text in ["", BOB, "", BOB, BOB] {
            write(text);
            assert!(timeout(RECHECK_INTERVAL, changed.as_mut()).await.is_err());
        }
    }

    #[test]
    fn a_socket_is_shared_only_if_other_users_are_listed() {
        assert!(!identities("").has_others());
        assert!(
            !identities("[[identity]]\nwho = 'user:ada'\n[[identity]]\nwho = 'tcp:loopback'\n").has_others()
        );
        assert!(!identities("[[identity]]\nwho = 'uid:1000'\n").has_others());
        assert!(!identities("[[identity]]\nwho = 'token:a'\n[[identity]]\nwho = 'cert:a'\n").has_others());
        assert!(identities("[[identity]]\nwho = 'user:bob'\n").has_others());
    }

    #[test]
    fn invalid_entries_are_errors() {
        for (text, words) in [
            ("[[identity]]\nwho = 'bob'\n", "is neither"),
            ("[[identity]]\nwho = 'user:'\n", "is neither"),
            ("[[identity]]\nwho = 'bus:laptop'\n", "is neither"),
            ("[[identity]]\nwho = 'bus:token:'\n", "is neither"),
            ("[[identity]]\nwho = 'token:'\n", "is neither"),
            ("[[identity]]\nwho = 'uid:007'\n", "is neither"),
            ("[[identity]]\nwho = 'user:a'\n[[identity]]\nwho = 'user:a'\n", "duplicate"),
            ("[[identity]]\nwho = 'user:a'\nscopes = ['']\n", "3:11: a scope is empty"),
            (
                "[[identity]]\nwho = 'user:a'\nscopes = ['kind:read', 'kind:exec']\n",
                "3:24: no tool is of the kind `exec`",
            ),
            ("[[identity]]\nwho = 'user:a'\nscopes = ['kind:exec']\n", "did you mean kind:execute?"),
            ("[[identity]]\nwho = 'user:a'\nscope = ['x']\n", "unknown setting `scope` in [identity]"),
            ("[[identities]]\nwho = 'user:a'\n", "unknown setting `identities`"),
        ] {
            let error = parse(&Findings::new("f", text)).expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "\\PC{0,60}", who in "(user:|uid:|tcp:)?[a-z0-9]{0,8}") {
            let _ = parse(&Findings::new("f", &text));
            let _ = parse(&Findings::new("f", &format!("[[identity]]\nwho = '{who}'\n")));
        }
    }
}
