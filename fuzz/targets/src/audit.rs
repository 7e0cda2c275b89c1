//! The verifier of audit logs, against its writer.

use narrows_audit::{Entry, jcs, verify};
use serde_json::Value;

/// A log: every line that passes is what the writer would have written, and no line that is passes by chance.
pub fn audit(log: &[u8]) {
    for line in log.split(|&byte| byte == b'\n') {
        canonical(line);
    }
    let exact = verify::bytes(log, &verify::VerifyOptions::default());
    let any = verify::bytes(
        log,
        &verify::VerifyOptions { form: verify::LineForm::Any, ..verify::VerifyOptions::default() },
    );
    assert!(any.entries >= exact.entries, "{}", log.escape_ascii());
    if exact.bad.is_none() {
        let lines = log.split_inclusive(|&byte| byte == b'\n');
        let entries =
            lines.map(|line| serde_json::from_slice::<Value>(line).expect("JSON by our own account"));
        assert_eq!(entries.count() as u64, exact.entries);
    }
    if exact.entries > 0 {
        let first = log.split(|&byte| byte == b'\n').next().unwrap_or_default();
        // What passes is in the form that everybody reads, but for the limits of its texts.
        if let Ok(entry) = serde_json::from_slice::<Entry>(first) {
            assert_eq!((Some(entry.hash), entry.seq), (exact.log, 0));
        }
    }
}

fn canonical(text: &[u8]) {
    let verdict = verify::is_canonical(text);
    // Deeper than this the two give up at different depths.
    if super::depth(text) > 100 {
        return;
    }
    match serde_json::from_slice::<Value>(text) {
        Ok(value) => {
            let ours = jcs::to_vec(&value).expect("not deep");
            assert_eq!(verdict.is_ok(), ours == text, "{verdict:?}: {}", text.escape_ascii());
        }
        Err(error) => assert!(verdict.is_err(), "{error}: {}", text.escape_ascii()),
    }
}
