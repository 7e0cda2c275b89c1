//! Paths of rules that a command reaches by a tilde, a pattern or a finder.

use narrows_policy::{Access, DecisionReason, Verdict};

use crate::common::{SANDBOX, decide, policy, shell};

/// A rule against changing a path holds for every spelling by which a shell or a finder reaches that path.
#[test]
fn a_denied_path_is_denied_in_every_spelling() {
    let rule = "[[rule]]\neffect = 'deny'\nkind = ['edit', 'move', 'delete']\npath = 'migrations/**'\n";
    for access in [Access::Medium, Access::High] {
        let policy = policy(access, rule);
        for line in [
            "echo EVIL > ~+/migrations/1.sql",
            "echo EVIL > ~-/migrations/1.sql",
            "echo EVIL > ~+1/migrations/1.sql",
            "echo EVIL > ~-0/migrations/1.sql",
            "echo EVIL > ~0/migrations/1.sql",
            "echo EVIL > ~me/project/migrations/1.sql",
            "cp x ~+/migrations/1.sql",
            "tee ~-/migrations/x",
            "cp --target-directory=~+/migrations x",
            "rm -rf ~+",
            "rm -rf ~-",
            "cd src && rm -r ~+/../migrations",
            "pushd src; rm -rf ~1/migrations",
            "rm -rf $PWD",
            "rm -rf \"$PWD\"",
            "rm -rf $PWD/*",
            "rm -rf $HOME/project",
            "find . -name '*.sql' | xargs rm",
            "find . -print0 | xargs -0 rm -f",
            "git ls-files | xargs -n 1 truncate -s 0",
            "rm -rf *",
            "rm -rf ./*",
            "rm -rf */*",
            "rm -rf ??????????",
            "rm -rf -- *",
            "mv * /tmp/x",
            "sudo rm -rf *",
            "for f in *; do rm -rf \"$f\"; done",
            "sed -i s/a/b/ */*",
            "find . -name '*.sql' -delete",
            "find -name '*.sql' -delete",
            "find -L . -delete",
            "find . migrations -delete",
            "find . -type f -exec rm {} +",
            "find . -type f -exec sed -i s/a/b/ {} ;",
            "find . -type f -execdir truncate -s 0 {} +",
            "find -exec sh -c 'echo x > $1' _ {} \\;",
            "find . -fprint migrations/1.sql",
            "find . -fls migrations/1.sql",
            "find . -fprintf migrations/1.sql x",
            "fd -e sql -x rm",
            "fd . -X sed -i s/a/b/",
        ] {
            let decision = decide(&policy, &shell(line), SANDBOX);
            assert!(matches!(decision.because, DecisionReason::Rule(_)), "{line}: {decision}");
        }
        for line in [
            "echo x > ~/notes",
            "echo x > src/a.sql",
            "rm -rf build/*",
            "rm *.o",
            "ls *",
            "echo *",
            "git add *",
            "git status *",
            "cd $HOME && ls",
            "docker run -v \"$PWD:/w\" x",
            "git ls-files | xargs wc -l",
            "git ls-files | xargs -I{} cp {} /tmp/x",
            "wc -l *",
            "grep word *",
            "cat */README.md",
            "npm install left-pad@~1.2.3",
            "pip install 'x~=1.4'",
            "find src -name '*.sql' -delete",
            "find . -name '*.sql' -exec grep -n x {} +",
            "find . -name '*.rs'",
            "find . -path ./.git -prune -o -name '*.rs' -print",
            "fd -e rs",
        ] {
            let decision = decide(&policy, &shell(line), SANDBOX);
            assert!(!matches!(decision.because, DecisionReason::Rule(_)), "{line}: {decision}");
        }
    }
    let reads = "[[rule]]\neffect = 'deny'\nkind = 'read'\npath = ['secrets.txt', 'data/**']\n";
    let high = policy(Access::High, reads);
    for line in ["cat *", "cat ./*", "grep word *", "cat */*", "cat ???????????", "cat ~+/secrets.txt"] {
        assert_eq!(decide(&high, &shell(line), SANDBOX).verdict, Verdict::Deny, "{line}");
    }
}

/// A tilde followed by more than a slash is not a name in the roots.
#[test]
fn at_medium_access_the_home_of_another_user_is_outside_the_roots() {
    let medium = policy(Access::Medium, "");
    for line in ["echo x > ~root/x", "echo x > ~-/x", "echo x > ~2/x"] {
        assert_ne!(decide(&medium, &shell(line), SANDBOX).verdict, Verdict::Allow, "{line}");
    }
    assert_eq!(decide(&medium, &shell("echo x > a~b"), SANDBOX).verdict, Verdict::Allow);
}
