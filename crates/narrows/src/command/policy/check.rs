//! `narrows policy check`: validates a rule file.

use std::process::ExitCode;

use narrows_policy::{Access, Header, Rules};
use serde_json::json;

use crate::cli::Check;
use crate::failure::{ExitStatus, Failure};
use crate::output;

pub(super) fn execute(args: &Check) -> Result<ExitCode, Failure> {
    let file = args.file.display().to_string();
    match Rules::parse(&super::text(&args.file)?, &file) {
        Ok((rules, header)) => {
            let Header { access, network, web_search } = header;
            let (access, network, web_search) =
                (access.map(Access::name), network.unwrap_or(true), web_search.unwrap_or(true));
            let text = if args.json {
                json!({
                    "file": file,
                    "ok": true,
                    "rules": rules.len(),
                    "access": access,
                    "network": network,
                    "webSearch": web_search,
                })
                .to_string()
            } else {
                let rules = match rules.len() {
                    1 => "1 rule".to_owned(),
                    count => format!("{count} rules"),
                };
                let access = access.map_or(String::new(), |access| format!(", {access} access"));
                let network = if network { "" } else { ", no network" };
                let search = if web_search { "" } else { ", no web search" };
                format!("{file}: OK, {rules}{access}{network}{search}; all examples pass")
            };
            output::print(format!("{text}\n").as_bytes())?;
            Ok(ExitStatus::Success.exit_code())
        }
        Err(error) => {
            if args.json {
                let error = json!({
                    "line": error.pos.line,
                    "column": error.pos.column,
                    "message": error.message,
                    "hint": error.hint,
                });
                let text = json!({"file": file, "ok": false, "error": error}).to_string();
                output::print_json(text)?;
            }
            Err(Failure::config_finding(&error).into_reported())
        }
    }
}
