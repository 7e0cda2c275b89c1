//! Validates the agent's messages against the official types of the schema.

use narrows_acp::{v1, v2};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::common::Client;

/// Validates all updates and requests of the agent so far, in version 1.
#[track_caller]
pub(crate) fn check_v1(client: &Client) {
    for (method, params) in agent_messages(client) {
        match method {
            "session/update" => same::<v1::SessionNotification>(params),
            "session/request_permission" => same::<v1::RequestPermissionRequest>(params),
            "fs/read_text_file" => same::<v1::ReadTextFileRequest>(params),
            "fs/write_text_file" => same::<v1::WriteTextFileRequest>(params),
            "terminal/create" => same::<v1::CreateTerminalRequest>(params),
            "terminal/output" => same::<v1::TerminalOutputRequest>(params),
            "terminal/wait_for_exit" => same::<v1::WaitForTerminalExitRequest>(params),
            "terminal/kill" => same::<v1::KillTerminalRequest>(params),
            "terminal/release" => same::<v1::ReleaseTerminalRequest>(params),
            "mcp/message" => same::<v1::MessageMcpRequest>(params),
            "$/cancel_request" => same::<v1::CancelRequestNotification>(params),
            method => panic!("{method} is no method of a client"),
        }
    }
}

/// Validates all updates and requests of the agent so far, in version 2.
#[track_caller]
pub(crate) fn check_v2(client: &Client) {
    for (method, params) in agent_messages(client) {
        match method {
            "session/update" => same::<v2::UpdateSessionNotification>(params),
            "session/request_permission" => same::<v2::RequestPermissionRequest>(params),
            "mcp/message" => same::<v2::MessageMcpRequest>(params),
            "$/cancel_request" => same::<v2::CancelRequestNotification>(params),
            method => panic!("{method} is no method of a client"),
        }
    }
}

fn agent_messages(client: &Client) -> impl Iterator<Item = (&str, &Value)> {
    client.messages.iter().filter_map(|message| Some((message["method"].as_str()?, &message["params"])))
}

/// Checks that a value parses as `T`, without loss and not as a catch-all variant.
#[track_caller]
pub(crate) fn same<T: DeserializeOwned + Serialize + std::fmt::Debug>(value: &Value) {
    let read: T = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"));
    assert!(!format!("{read:?}").contains("Other("), "{value} is read as {read:?}");
    let written = serde_json::to_value(&read).unwrap();
    if let Some(path) = lost(value, &written) {
        panic!("{path} of {value} is not in {written}");
    }
}

/// Returns the place of the first value that `written` lacks. Empty and default values may be missing.
fn lost(value: &Value, written: &Value) -> Option<String> {
    match (value, written) {
        (Value::Object(value), Value::Object(written)) => value.iter().find_map(|(name, value)| {
            let found = match written.get(name) {
                Some(written) => lost(value, written),
                None if value.is_null() || *value == "pending" || *value == "other" => None,
                None if value.as_array().is_some_and(Vec::is_empty) => None,
                None => Some(String::new()),
            };
            found.map(|path| format!(".{name}{path}"))
        }),
        (Value::Array(value), Value::Array(written)) if value.len() == written.len() => {
            value.iter().zip(written).find_map(|(value, written)| lost(value, written))
        }
        (value, written) if value == written => None,
        _ => Some(String::new()),
    }
}
