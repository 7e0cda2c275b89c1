//! Names of system users, and their roles in a governance.

use narrows_manifest::types::governance::Approver;

const PASSWD_FILE: &str = "/etc/passwd";

/// Reads the users of this machine from the system. The environment is not used, because any program can set
/// it.
pub(super) fn read_passwd() -> String {
    std::fs::read_to_string(PASSWD_FILE).unwrap_or_default()
}

/// Returns the roles of a user: those of the approver with that name.
pub(super) fn approver_roles(name: &str, approvers: &[Approver]) -> Vec<String> {
    // An approver with an empty list of actions may approve nothing, and so does not have the role.
    let is_one = |approver: &&Approver| !approver.can_approve.as_ref().is_some_and(Vec::is_empty);
    let them = approvers.iter().filter(is_one).filter(|approver| {
        approver.id == name || approver.id.strip_prefix("user:").is_some_and(|user| user == name)
    });
    them.flat_map(|approver| [Some(approver.id.clone()), approver.role.clone()]).flatten().collect()
}

pub(super) fn user_name(uid: u32, users: &str) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid) && !name.is_empty()).then_some(name)
    })
}

pub(super) fn user_id(name: &str, users: &str) -> Option<u32> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str =
        "root:x:0:0::/root:/bin/sh\n+nis\nada:x:1000:1000:Ada:/home/ada:/bin/sh\n:x:7:7::/:/\n";

    #[test]
    fn a_user_is_found_by_name_or_number() {
        let check = |uid, expected: Option<&str>| assert_eq!(user_name(uid, PASSWD), expected, "{uid}");
        check(0, Some("root"));
        check(1000, Some("ada"));
        check(7, None);
        check(9, None);
    }

    #[test]
    fn roles_come_from_the_approver_of_that_name() {
        let approver = |id: &str, role: Option<&str>| Approver {
            id: id.to_owned(),
            role: role.map(str::to_owned),
            can_approve: None,
            quorum: None,
        };
        let revoked = Approver { can_approve: Some(Vec::new()), ..approver("zoe", Some("lead")) };
        let approvers =
            [approver("ada", Some("lead")), approver("user:bob", None), approver("cfo", None), revoked];
        let check =
            |name: &str, roles: &[&str]| assert_eq!(approver_roles(name, &approvers), roles, "{name}");
        check("ada", &["ada", "lead"]);
        check("bob", &["user:bob"]);
        check("eve", &[]);
        check("zoe", &[]);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(users in "[a-z:0-9\n]{0,80}", uid: u32) {
            if let Some(name) = user_name(uid, &users) {
                prop_assert!(!name.is_empty() && users.contains(name));
            }
        }
    }
}
