//! The user who started this process.

/// Returns the effective user of the parent process. If that is root, which starts processes for other users,
/// returns the user of this process.
pub(super) fn parent_user() -> u32 {
    let ours = rustix::process::geteuid().as_raw();
    let parent = rustix::process::getppid().map(|pid| format!("/proc/{}/status", pid.as_raw_nonzero()));
    let status = parent.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    effective_uid(&status).filter(|uid| *uid != 0).unwrap_or(ours)
}

fn effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_second_uid_is_the_effective_one() {
        assert_eq!(effective_uid("Name:\tx\nUid:\t5\t1000\t5\t5\nGid:\t0\n"), Some(1000));
        assert_eq!(effective_uid("Uid:\tx\n"), None);
        assert_eq!(effective_uid(""), None);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_a_panic(text in "[0-9A-FUid: \n]{0,120}") {
            let _ = effective_uid(&text);
        }
    }
}
