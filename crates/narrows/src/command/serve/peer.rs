//! Which user has started us, as far as the system tells.

/// The user who has started this process. Root starts things for others: then it is the user as whom we run.
pub(super) fn of_parent() -> u32 {
    let ours = rustix::process::geteuid().as_raw();
    let parent = rustix::process::getppid().map(|pid| format!("/proc/{}/status", pid.as_raw_nonzero()));
    let status = parent.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    effective(&status).filter(|uid| *uid != 0).unwrap_or(ours)
}

/// The user as whom a process of this status acts.
fn effective(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_process_acts_as_its_second_number() {
        assert_eq!(effective("Name:\tx\nUid:\t5\t1000\t5\t5\nGid:\t0\n"), Some(1000));
        assert_eq!(effective("Uid:\tx\n"), None);
        assert_eq!(effective(""), None);
    }

    proptest! {
        #[test]
        fn whatever_stands_there_is_no_harm(text in "[0-9A-FUid: \n]{0,120}") {
            let _ = effective(&text);
        }
    }
}
