//! The target for manifests.

use std::path::Path;

use narrows_manifest::{Code, Findings, ManifestKind, Severity, check, front_matter};

/// A file as a kind of manifest: what is found lies in it, and the same values written as JSON get the same verdict.
pub fn manifest(text: &[u8]) {
    // The kind is as good as chosen by chance, and the same for the same file.
    let sum = text.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    let kind = ManifestKind::ALL[sum % ManifestKind::ALL.len()];
    let path = Path::new("fuzz").join(kind.file_name());
    let lines = text.split(|byte| *byte == b'\n').count();
    let findings = check(kind, &path, text);
    for finding in &findings {
        assert!((1..=lines).contains(&finding.line) && finding.column > 0, "{finding}");
        assert!(!finding.to_string().contains('\n'), "{finding:?}");
    }
    // Of what comes twice only the first is in the JSON; a number that JSON cannot hold is a text there.
    let differs = [Code::Duplicate, Code::QuoteIt, Code::Type].into_iter().any(|code| findings.has(code));
    let Some(value) = front_matter(text).filter(|_| !differs) else { return };
    let again = format!("---\n{value}\n---\n");
    // Characters may stand in JSON that may not stand in YAML.
    if front_matter(again.as_bytes()).as_ref() != Some(&value)
        || again.len() as u64 > narrows_manifest::MAX_MANIFEST_BYTES
    {
        return;
    }
    assert_eq!(codes(&findings), codes(&check(kind, &path, again.as_bytes())), "{kind}: {value}");
}

/// The kinds of all errors, in order.
fn codes(findings: &Findings) -> Vec<Code> {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    let mut codes: Vec<Code> = errors.map(|finding| finding.code).collect();
    codes.sort_unstable();
    codes
}
