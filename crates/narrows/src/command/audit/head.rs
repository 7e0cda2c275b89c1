//! `narrows audit head` and `keygen`: signs the head of a log, and creates a key.

use std::process::ExitCode;

use narrows_audit::{Clock, Head, SigningKey, SystemClock, jcs, key, verify};
use serde_json::json;

use crate::cli::{AuditHead, AuditKeygen};
use crate::failure::{ExitStatus, Failure};
use crate::output;

pub(super) fn execute(args: &AuditHead) -> Result<ExitCode, Failure> {
    let path = super::file(&args.path);
    let key = key::read_signing(&args.key).map_err(|error| Failure::key_file("--key", &args.key, &error))?;
    let options = verify::VerifyOptions::default();
    let report =
        verify::log(&path, &options).map_err(|error| Failure::audit_log_unreadable(&path, &error))?;
    if let Some(bad) = &report.bad {
        return Err(Failure::audit_log_invalid(&path, &report, bad));
    }
    let (Some(log), Some(hash)) = (report.log, report.hash) else {
        return Err(Failure::audit_log_empty(&path));
    };
    let head = Head::new(log, report.entries, hash, SystemClock::default().now()).sign(&key);
    // A head is never nested too deeply, so this conversion does not fail.
    let text = head.and_then(|head| jcs::to_vec(&json!(head))).unwrap_or_default();
    output::print(&[&text[..], b"\n"].concat())?;
    Ok(ExitStatus::Success.exit_code())
}

pub(super) fn keygen(args: &AuditKeygen) -> Result<ExitCode, Failure> {
    let key = SigningKey::generate().map_err(Failure::key_generation)?;
    key::write_new(&args.file, &key).map_err(|error| Failure::key_file("the key", &args.file, &error))?;
    let public = key.public().to_string();
    match args.json {
        true => output::print_json(json!({ "publicKey": public, "file": args.file }))?,
        false => output::print(format!("{public}\n").as_bytes())?,
    }
    Ok(ExitStatus::Success.exit_code())
}
