//! Shared helpers of the decision tests.

use std::path::PathBuf;

use narrows_policy::{Access, Action, Command, Confined, Decision, Narrowing, Policy, RequestContext, Rules};

pub(crate) const SANDBOX: Confined =
    Confined { files: true, network: true, protected: narrows_policy::Protection::Kept };

pub(crate) fn roots() -> Vec<PathBuf> {
    vec![PathBuf::from("/home/me/project"), PathBuf::from("/home/me/other")]
}

pub(crate) fn policy(access: Access, rules: &str) -> Policy {
    let (rules, _) = Rules::parse(rules, "policy.toml").expect("good rules");
    Policy::new(access, Narrowing::default()).with_rules(rules).with_home("/home/me")
}

pub(crate) fn decide(policy: &Policy, action: &Action, confined: Confined) -> Decision {
    let roots = roots();
    policy.decide(action, &RequestContext { roots: &roots, confined, ..RequestContext::default() })
}

pub(crate) fn shell(line: &str) -> Action {
    Action::execute(Command::Shell(line.to_owned()), None)
}
