//! `narrows audit verify`: checks the hash chain of a log.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use narrows_audit::verify::{self, BadLine, LineForm, Report, VerifyOptions};
use narrows_audit::{PublicKey, Secret, SignedHead, key};
use serde_json::{Value, json};

use crate::cli::AuditVerify;
use crate::command::check;
use crate::failure::{ExitStatus, Failure};
use crate::output;
use crate::terminal::line;

pub(super) fn execute(args: &AuditVerify) -> Result<ExitCode, Failure> {
    let path = super::file(&args.path);
    let head = args.against.as_deref().map(|file| read_head(file, args.signer.as_deref())).transpose()?;
    let options = VerifyOptions {
        form: if args.any_form { LineForm::Any } else { LineForm::Exact },
        legacy: args.legacy_secret.as_deref().map(read_key).transpose()?,
        head: head.as_ref().map(|signed| signed.head.clone()),
        ..VerifyOptions::default()
    };
    let report =
        verify::log(&path, &options).map_err(|error| Failure::audit_log_unreadable(&path, &error))?;
    if args.json {
        let object = object(&path, &report, head.as_ref(), args.signer.is_some());
        output::print_json(object)?;
    }
    if report.bad.is_some() && report.entries == 0 && !looks_like_log(&path) {
        return Err(Failure::not_an_audit_log(&path).into_reported());
    }
    if let Some(bad) = &report.bad {
        return Err(Failure::audit_log_invalid(&path, &report, bad).into_reported());
    }
    if !args.json {
        output::print(summary(&path, &report, head.as_ref(), args.signer.is_some()).as_bytes())?;
    }
    Ok(ExitStatus::Success.exit_code())
}

/// Returns `true` if a file begins with an object, as a log does.
fn looks_like_log(path: &Path) -> bool {
    let mut first = [0; 1];
    narrows_audit::open_regular(path).and_then(|mut file| file.read_exact(&mut first)).is_ok()
        && first == *b"{"
}

fn read_head(file: &Path, signer: Option<&str>) -> Result<SignedHead, Failure> {
    let text = check::read(file).map_err(|error| Failure::file_unreadable("--against", file, &error))?;
    let head: SignedHead =
        serde_json::from_str(&text).map_err(|error| Failure::audit_head_invalid(file, &error))?;
    let signer = signer.map(read_public_key).transpose()?;
    let by = head.signature.public_key_ref;
    head.verify(signer.as_ref()).map_err(|error| Failure::audit_head_signature(file, &by, error))?;
    Ok(head)
}

/// Returns a public key. `signer` is the key itself or a file.
fn read_public_key(signer: &str) -> Result<PublicKey, Failure> {
    let path = Path::new(signer);
    signer
        .parse()
        .or_else(|_| key::read_public(path))
        .map_err(|error| Failure::key_file("--signer", path, &error))
}

fn read_key(file: &Path) -> Result<Secret, Failure> {
    let text =
        check::read(file).map_err(|error| Failure::file_unreadable("--legacy-secret", file, &error))?;
    // The last line end is not part of the secret.
    Ok(Secret::new(text.strip_suffix('\n').unwrap_or(&text)))
}

fn summary(path: &Path, report: &Report, head: Option<&SignedHead>, is_known: bool) -> String {
    if report.entries == 0 {
        let told = format!("{}: OK, the log is empty", path.display());
        return format!("{}\n", line(&told));
    }
    let entries = super::count_of(report.entries, "entry", "entries");
    let files = super::count_of(report.segments as u64, "file", "files");
    let head = head.map_or(String::new(), |SignedHead { head, signature }| {
        let unlooked = " (signer not checked; add --signer KEY)";
        let unlooked = if is_known { "" } else { unlooked };
        format!("; contains the head of {}, signed by {}{unlooked}", head.ts, signature.public_key_ref)
    });
    format!("{}\n", line(&format!("{}: OK, {entries} verified ({files}){head}", path.display())))
}

fn object(path: &Path, report: &Report, head: Option<&SignedHead>, is_known: bool) -> Value {
    let bad = report.bad.as_ref().map(|BadLine { segment, line, offset, seq, why, detail }| {
        json!({
            "segment": segment,
            "line": (*line > 0).then_some(line),
            "offset": (*line > 0).then_some(offset),
            "seq": seq,
            "why": why.name(),
            "detail": detail,
        })
    });
    json!({
        "file": path.display().to_string(),
        "ok": report.bad.is_none(),
        "entries": report.entries,
        "segments": report.segments,
        "log": report.log,
        "hash": report.hash,
        "head": head.map(|SignedHead { head, signature }| json!({"seq": head.seq, "signer": signature.public_key_ref, "signerChecked": is_known})),
        "bad": bad,
    })
}
