//! Devices, and the data of other processes in `/proc`.

use narrows_policy::Verdict::{Allow, Deny};
use narrows_policy::{Access, Action, DecisionReason, Kind, WordLink};

use crate::common::{SANDBOX, decide, policy, shell};

#[test]
fn variables_of_any_process_are_secrets() {
    for line in [
        "cat /proc/self/environ",
        "cat /proc/1/environ",
        "cat /proc/*/environ",
        "cat /proc/$PPID/environ",
        "cat /proc/\"$PPID\"/environ",
        "cat /proc/$(pgrep x)/environ",
        "cat /proc/self/task/*/environ",
        "cat /proc/[0-9]*/environ",
        "cat /proc/?/environ",
        "tr '\\0' x < /proc/$PPID/environ",
        "xxd /proc/$p/mem",
    ] {
        let decision = decide(&policy(Access::High, ""), &shell(line), SANDBOX);
        assert!(
            matches!(decision.because, DecisionReason::Protected { secret: true, .. }),
            "{line}: {decision}"
        );
    }
    for line in ["cat /proc/cpuinfo", "cat /proc/$PPID/status", "ls environ", "cat src/*/environ.rs"] {
        assert_eq!(decide(&policy(Access::High, ""), &shell(line), SANDBOX).verdict, Allow, "{line}");
    }
}

#[test]
fn at_low_access_no_device_is_read() {
    let low = policy(Access::Low, "");
    for path in
        ["/dev/vda", "/dev/sda1", "/dev/pts/0", "/dev/tty", "/dev/input/event0", "/dev/../dev/nvme0n1"]
    {
        for line in [format!("cat {path}"), format!("head -c 512 {path}"), format!("strings {path}")] {
            assert_eq!(decide(&low, &shell(&line), SANDBOX).verdict, Deny, "{line}");
        }
        assert_eq!(decide(&low, &Action::file(Kind::Read, path), SANDBOX).verdict, Deny, "{path}");
        // Only the preset denies it.
        let high = policy(Access::High, "");
        assert_eq!(decide(&high, &Action::file(Kind::Read, path), SANDBOX).verdict, Allow, "{path}");
    }
    let link = WordLink { written: "disk".into(), real: "/dev/vda".into() };
    let action = Action { word_links: vec![link], ..shell("cat disk") };
    assert_eq!(decide(&low, &action, SANDBOX).verdict, Deny);
    for line in [
        "cat /dev/null",
        "head -c 16 /dev/urandom",
        "ls -l /dev/vda",
        "ls /dev",
        "stat /dev/sda",
        "cat dev/vda.md",
        "cat /home/me/project/dev/x",
    ] {
        assert_eq!(decide(&low, &shell(line), SANDBOX).verdict, Allow, "{line}");
    }
}
