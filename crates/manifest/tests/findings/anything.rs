//! Tests that any file can be read, and that every finding has a position in the file.

use std::path::Path;

use narrows_manifest::{ManifestKind, check};
use proptest::prelude::*;

fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => prop::sample::select(vec![
            "---\n", "name: ", "id: x\n", "metadata:\n", "  aip44:\n", "    tier: ", "acp_rev: 12e4567\n", "- ", "[", "]", "{", "}",
            ": ", "\n", "  ", "\t", "\"", "'", "&a ", "*a", "!!str ", "|\n", ">-\n", "? ", "# c\n", "~", "...\n", "%YAML 1.2\n",
            "<<: ", "engine: subprocess\n", "limits:\n", "memory_mb: 5\n", "kind: server\n", "\u{feff}", "\r\n", "é", "\u{2028}",
            "install:\n", "method: npm\n", "match:\n", "decision: allow\n", "autonomy: 0\n", "transport: [stdio, stdio]\n",
        ]).prop_map(str::to_owned),
        2 => "\\PC{0,8}",
        1 => "[ -~\\n]{0,20}",
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// Checks that every finding has a position in the file, or right after one of its lines.
fn inside(kind: ManifestKind, bytes: &[u8]) -> Result<(), TestCaseError> {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.split('\n').collect();
    for finding in &check(kind, Path::new("d/ACP.md"), bytes) {
        prop_assert!(finding.line >= 1 && finding.line <= lines.len(), "{finding}\n{text:?}");
        // YAML readers recognize more line ends than others.
        let longest = text.chars().count() + 1;
        prop_assert!(finding.column >= 1 && finding.column <= longest, "{finding}\n{text:?}");
        prop_assert!(!finding.message.is_empty() && !finding.to_string().contains('\n'), "{finding:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_text_causes_a_panic(text in pieces(), kind in prop::sample::select(ManifestKind::ALL.to_vec())) {
        inside(kind, text.as_bytes())?;
        inside(kind, format!("---\n{text}\n---\n").as_bytes())?;
    }

    #[test]
    fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in prop::sample::select(ManifestKind::ALL.to_vec())) {
        inside(kind, &bytes)?;
        inside(kind, &[b"---\n", bytes.as_slice(), b"\n---\n"].concat())?;
    }
}
