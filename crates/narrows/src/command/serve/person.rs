//! The names of users, and what they are in a governance.

use narrows_manifest::types::governance::Approver;

/// Where users have their names.
const USERS: &str = "/etc/passwd";

/// The users of this machine. They are asked of the system and not of the environment, which anybody can set.
pub(super) fn users() -> String {
    std::fs::read_to_string(USERS).unwrap_or_default()
}

/// What somebody is in a governance: the approver of their name has a role, or is one by its name.
pub(super) fn roles_of(name: &str, approvers: &[Approver]) -> Vec<String> {
    // Whose list of actions is empty has been taken the right away, and what they were with it.
    let is_one = |approver: &&Approver| !approver.can_approve.as_ref().is_some_and(Vec::is_empty);
    let them = approvers.iter().filter(is_one).filter(|approver| {
        approver.id == name || approver.id.strip_prefix("user:").is_some_and(|user| user == name)
    });
    them.flat_map(|approver| [Some(approver.id.clone()), approver.role.clone()]).flatten().collect()
}

/// The name of a user, if they have one.
pub(super) fn name_of(uid: u32, users: &str) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid) && !name.is_empty()).then_some(name)
    })
}

/// The number of the user with this name.
pub(super) fn uid_of(name: &str, users: &str) -> Option<u32> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const USERS: &str =
        "root:x:0:0::/root:/bin/sh\n+nis\nada:x:1000:1000:Ada:/home/ada:/bin/sh\n:x:7:7::/:/\n";

    #[test]
    fn a_user_is_known_by_name_or_number() {
        let check = |uid, expected: Option<&str>| assert_eq!(name_of(uid, USERS), expected, "{uid}");
        check(0, Some("root"));
        check(1000, Some("ada"));
        check(7, None);
        check(9, None);
    }

    #[test]
    fn roles_are_those_of_the_approver_of_that_name() {
        let approver = |id: &str, role: Option<&str>| Approver {
            id: id.to_owned(),
            role: role.map(str::to_owned),
            can_approve: None,
            quorum: None,
        };
        let revoked = Approver { can_approve: Some(Vec::new()), ..approver("zoe", Some("lead")) };
        let approvers =
            [approver("ada", Some("lead")), approver("user:bob", None), approver("cfo", None), revoked];
        let check = |name: &str, roles: &[&str]| assert_eq!(roles_of(name, &approvers), roles, "{name}");
        check("ada", &["ada", "lead"]);
        check("bob", &["user:bob"]);
        check("eve", &[]);
        check("zoe", &[]);
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_no_harm(users in "[a-z:0-9\n]{0,80}", uid: u32) {
            if let Some(name) = name_of(uid, &users) {
                prop_assert!(!name.is_empty() && users.contains(name));
            }
        }
    }
}
