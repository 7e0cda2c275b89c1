//! Version 2 of the protocol, with its unstable parts.

use super::Shape::List;
use super::common::{
    ANNOTATIONS, AUTH_STATUS, CANCEL_REQUEST_NOTIFICATION, COMPLETE_ELICITATION_NOTIFICATION, COST,
    CREATE_ELICITATION_REQUEST, CREATE_ELICITATION_RESPONSE, DISABLE_PROVIDER_REQUEST,
    ELICITATION_CAPABILITIES, ENV_VARIABLE, ERROR, HTTP_HEADER, IMPLEMENTATION, LIST_PROVIDERS_RESPONSE,
    LIST_SESSIONS_REQUEST, LIST_SESSIONS_RESPONSE, MCP_CONNECTION, MCP_MESSAGE, PERMISSION_OPTION,
    PLAN_ENTRY, RESOURCE_CONTENTS, SESSION_CONFIG_SELECT_OPTION, SESSION_REQUEST,
    SESSION_SYSTEM_PROMPT_CAPABILITIES, SET_PROVIDER_REQUEST, SET_SESSION_TITLE_REQUEST,
    SET_SESSION_TITLE_RESPONSE, SUBAGENT_SESSION_CAPABILITIES, TERMINAL_REQUEST, TOOL_CALL_LOCATION, USAGE,
};
use super::{ANY, BOOL, EMPTY, INITIALIZE_PARAMS, INT, Row, Shape, TEXT, UINT};
use crate::method::{self, Side};

pub(super) static METHODS: &[Row] = &[
    (
        method::SESSION_REQUEST_PERMISSION,
        Side::Client,
        &REQUEST_PERMISSION_REQUEST,
        &REQUEST_PERMISSION_RESPONSE,
    ),
    (method::ELICITATION_CREATE, Side::Client, &CREATE_ELICITATION_REQUEST, &CREATE_ELICITATION_RESPONSE),
    (method::MCP_MESSAGE, Side::Client, &MCP_MESSAGE, &ANY),
    (method::INITIALIZE, Side::Agent, &INITIALIZE_PARAMS, &INITIALIZE_RESPONSE),
    (method::AUTH_LOGIN, Side::Agent, &LOGIN_AUTH_REQUEST, &EMPTY),
    (method::PROVIDERS_LIST, Side::Agent, &EMPTY, &LIST_PROVIDERS_RESPONSE),
    (method::PROVIDERS_SET, Side::Agent, &SET_PROVIDER_REQUEST, &EMPTY),
    (method::PROVIDERS_DISABLE, Side::Agent, &DISABLE_PROVIDER_REQUEST, &EMPTY),
    (method::AUTH_LOGOUT, Side::Agent, &EMPTY, &EMPTY),
    (method::AUTH_STATUS, Side::Agent, &EMPTY, &AUTH_STATUS),
    (method::SESSION_NEW, Side::Agent, &NEW_SESSION_REQUEST, &NEW_SESSION_RESPONSE),
    (method::SESSION_LIST, Side::Agent, &LIST_SESSIONS_REQUEST, &LIST_SESSIONS_RESPONSE),
    (method::SESSION_DELETE, Side::Agent, &SESSION_REQUEST, &EMPTY),
    (method::SESSION_FORK, Side::Agent, &FORK_SESSION_REQUEST, &FORK_SESSION_RESPONSE),
    (method::SESSION_ARCHIVE, Side::Agent, &SESSION_REQUEST, &EMPTY),
    (method::SESSION_UNARCHIVE, Side::Agent, &SESSION_REQUEST, &EMPTY),
    (method::SESSION_STATUS, Side::Agent, &SESSION_REQUEST, &SESSION_STATUS_RESPONSE),
    (method::SESSION_SET_TITLE, Side::Agent, &SET_SESSION_TITLE_REQUEST, &SET_SESSION_TITLE_RESPONSE),
    (method::SESSION_RESUME, Side::Agent, &RESUME_SESSION_REQUEST, &RESUME_SESSION_RESPONSE),
    (method::SESSION_CLOSE, Side::Agent, &SESSION_REQUEST, &EMPTY),
    (method::TOOL_CALL_CANCEL, Side::Agent, &CANCEL_TOOL_CALL_REQUEST, &EMPTY),
    (method::TERMINAL_CANCEL, Side::Agent, &TERMINAL_REQUEST, &EMPTY),
    (
        method::SESSION_SET_CONFIG_OPTION,
        Side::Agent,
        &SET_SESSION_CONFIG_OPTION_REQUEST,
        &SET_SESSION_CONFIG_OPTION_RESPONSE,
    ),
    (method::SESSION_PROMPT, Side::Agent, &PROMPT_REQUEST, &PROMPT_RESPONSE),
    (method::SESSION_UPDATE, Side::Client, &UPDATE_SESSION, &EMPTY),
    (method::ELICITATION_COMPLETE, Side::Client, &COMPLETE_ELICITATION_NOTIFICATION, &EMPTY),
    (method::AUTH_STATUS_UPDATE, Side::Client, &AUTH_STATUS, &EMPTY),
    (method::SESSION_CANCEL, Side::Agent, &SESSION_REQUEST, &EMPTY),
    (method::MCP_MESSAGE, Side::Agent, &MCP_MESSAGE, &EMPTY),
    (method::CANCEL_REQUEST, Side::Agent, &CANCEL_REQUEST_NOTIFICATION, &EMPTY),
    (method::CANCEL_REQUEST, Side::Client, &CANCEL_REQUEST_NOTIFICATION, &EMPTY),
    (method::MCP_CONNECT, Side::Client, &MCP_CONNECTION, &MCP_CONNECTION),
    (method::MCP_DISCONNECT, Side::Client, &MCP_CONNECTION, &EMPTY),
];

objects! {
    ICON { "src": TEXT, "mimeType": TEXT, "sizes": List(&TEXT), "theme": TEXT }
    DIFF_PATCH { "format": TEXT, "text": TEXT }
    TOOL_CALL_CAPABILITIES { "cancel": EMPTY }
    TOOL_CALL_UPDATE {
        "toolCallId": TEXT, "name": TEXT, "title": TEXT, "kind": TEXT, "status": TEXT,
        "content": List(&TOOL_CALL_CONTENT), "locations": List(&TOOL_CALL_LOCATION), "rawInput": ANY,
        "rawOutput": ANY, "capabilities": TOOL_CALL_CAPABILITIES,
    }
    REQUEST_PERMISSION_REQUEST {
        "sessionId": TEXT, "title": TEXT, "description": TEXT, "subject": ANY,
        "options": List(&PERMISSION_OPTION),
    }
    REQUEST_PERMISSION_RESPONSE { "outcome": REQUEST_PERMISSION_OUTCOME }
    PROMPT_CAPABILITIES { "image": EMPTY, "audio": EMPTY, "embeddedContext": EMPTY }
    MCP_CAPABILITIES { "stdio": EMPTY, "http": EMPTY, "acp": EMPTY }
    SESSION_CAPABILITIES {
        "prompt": PROMPT_CAPABILITIES, "mcp": MCP_CAPABILITIES, "delete": EMPTY,
        "additionalDirectories": EMPTY, "systemPrompt": SESSION_SYSTEM_PROMPT_CAPABILITIES, "fork": EMPTY,
        "archive": EMPTY, "status": EMPTY, "title": EMPTY,
    }
    AGENT_AUTH_CAPABILITIES { "status": EMPTY }
    AGENT_CAPABILITIES {
        "session": SESSION_CAPABILITIES, "auth": AGENT_AUTH_CAPABILITIES, "providers": EMPTY,
    }
    INITIALIZE_RESPONSE {
        "protocolVersion": UINT, "info": IMPLEMENTATION, "capabilities": AGENT_CAPABILITIES,
        "authMethods": List(&AUTH_METHOD),
    }
    CLIENT_AUTH_CAPABILITIES { "terminal": EMPTY }
    CLIENT_CAPABILITIES { "auth": CLIENT_AUTH_CAPABILITIES, "elicitation": ELICITATION_CAPABILITIES }
    LOGIN_AUTH_REQUEST { "methodId": TEXT }
    NEW_SESSION_RESPONSE {
        "sessionId": TEXT, "configOptions": List(&SESSION_CONFIG_OPTION),
        "availableCommands": List(&AVAILABLE_COMMAND),
    }
    SYSTEM_PROMPT { "mode": TEXT, "content": List(&CONTENT_BLOCK) }
    NEW_SESSION_REQUEST {
        "cwd": TEXT, "additionalDirectories": List(&TEXT), "mcpServers": List(&MCP_SERVER),
        "systemPrompt": SYSTEM_PROMPT,
    }
    FORK_SESSION_RESPONSE {
        "sessionId": TEXT, "configOptions": List(&SESSION_CONFIG_OPTION),
        "availableCommands": List(&AVAILABLE_COMMAND),
    }
    FORK_SESSION_REQUEST {
        "sessionId": TEXT, "cwd": TEXT, "additionalDirectories": List(&TEXT),
        "mcpServers": List(&MCP_SERVER), "systemPrompt": SYSTEM_PROMPT,
    }
    SESSION_STATUS_RESPONSE { "status": TEXT, "state": STATE_UPDATE }
    RESUME_SESSION_RESPONSE {
        "configOptions": List(&SESSION_CONFIG_OPTION), "availableCommands": List(&AVAILABLE_COMMAND),
    }
    RESUME_SESSION_REQUEST {
        "sessionId": TEXT, "cwd": TEXT, "additionalDirectories": List(&TEXT),
        "mcpServers": List(&MCP_SERVER), "replayFrom": REPLAY_FROM, "systemPrompt": SYSTEM_PROMPT,
    }
    CANCEL_TOOL_CALL_REQUEST { "sessionId": TEXT, "toolCallId": TEXT }
    SET_SESSION_CONFIG_OPTION_RESPONSE { "configOptions": List(&SESSION_CONFIG_OPTION) }
    PROMPT_RESPONSE { "messageId": TEXT }
    PROMPT_REQUEST { "sessionId": TEXT, "prompt": List(&CONTENT_BLOCK) }
    TERMINAL_OUTPUT { "data": TEXT }
    TERMINAL_EXIT_STATUS { "exitCode": INT, "signal": TEXT }
    TERMINAL_SIZE { "cols": UINT, "rows": UINT }
    TERMINAL_CAPABILITIES { "cancel": EMPTY }
    UPDATE_SESSION { "sessionId": TEXT, "update": SESSION_UPDATE }
    SESSION_CONFIG_SELECT_ENTRY {
        "value": TEXT, "name": TEXT, "description": TEXT, "groupId": TEXT,
        "options": List(&SESSION_CONFIG_SELECT_OPTION),
    }
    AUTH_METHOD_BASE { "methodId": TEXT, "name": TEXT, "description": TEXT }
    SESSION_CONFIG_OPTION_BASE { "configId": TEXT, "name": TEXT, "description": TEXT, "category": TEXT }
    AVAILABLE_COMMAND_BASE { "name": TEXT, "description": TEXT }
}

tagged! {
    CONTENT_BLOCK by "type" {
        "text" { "text": TEXT, "annotations": ANNOTATIONS }
        "image" { "data": TEXT, "mimeType": TEXT, "uri": TEXT, "annotations": ANNOTATIONS }
        "audio" { "data": TEXT, "mimeType": TEXT, "annotations": ANNOTATIONS }
        "resource_link" {
            "name": TEXT, "uri": TEXT, "title": TEXT, "description": TEXT, "icons": List(&ICON),
            "mimeType": TEXT, "size": UINT, "annotations": ANNOTATIONS,
        }
        "resource" { "resource": RESOURCE_CONTENTS, "annotations": ANNOTATIONS }
    }
    DIFF_CHANGE by "operation" {
        "add" { "fileType": TEXT, "mimeType": TEXT, "path": TEXT }
        "delete" { "fileType": TEXT, "mimeType": TEXT, "path": TEXT }
        "modify" { "fileType": TEXT, "mimeType": TEXT, "path": TEXT }
        "move" { "fileType": TEXT, "mimeType": TEXT, "oldPath": TEXT, "path": TEXT }
        "copy" { "fileType": TEXT, "mimeType": TEXT, "oldPath": TEXT, "path": TEXT }
    }
    TOOL_CALL_CONTENT by "type" {
        "content" { "content": CONTENT_BLOCK }
        "diff" { "changes": List(&DIFF_CHANGE), "patch": DIFF_PATCH }
        "terminal" { "terminalId": TEXT }
    }
    REQUEST_PERMISSION_OUTCOME by "outcome" {
        "cancelled" {}
        "selected" { "optionId": TEXT }
    }
    AUTH_METHOD by "type" else AUTH_METHOD_BASE {
        "terminal" {
            "methodId": TEXT, "name": TEXT, "description": TEXT, "args": List(&TEXT),
            "env": List(&ENV_VARIABLE),
        }
        "agent" { "methodId": TEXT, "name": TEXT, "description": TEXT }
    }
    SESSION_CONFIG_OPTION by "type" else SESSION_CONFIG_OPTION_BASE {
        "select" {
            "configId": TEXT, "name": TEXT, "description": TEXT, "category": TEXT, "currentValue": TEXT,
            "options": List(&SESSION_CONFIG_SELECT_ENTRY),
        }
        "boolean" {
            "configId": TEXT, "name": TEXT, "description": TEXT, "category": TEXT, "currentValue": BOOL,
        }
    }
    AVAILABLE_COMMAND_INPUT by "type" {
        "text" { "hint": TEXT }
    }
    AVAILABLE_COMMAND by "type" else AVAILABLE_COMMAND_BASE {
        "command" { "name": TEXT, "description": TEXT, "input": AVAILABLE_COMMAND_INPUT }
    }
    MCP_SERVER by "type" {
        "http" { "name": TEXT, "url": TEXT, "headers": List(&HTTP_HEADER) }
        "acp" { "name": TEXT, "serverId": TEXT, "id": TEXT }
        "stdio" { "name": TEXT, "command": TEXT, "args": List(&TEXT), "env": List(&ENV_VARIABLE) }
    }
    BACKGROUND_WORK by "type" {
        "terminal" { "terminalId": TEXT }
        "tool_call" { "toolCallId": TEXT }
        "subagent" { "sessionId": TEXT }
    }
    STATE_UPDATE by "state" {
        "running" { "background": List(&BACKGROUND_WORK) }
        "idle" { "usage": USAGE, "background": List(&BACKGROUND_WORK), "stopReason": TEXT, "error": ERROR }
        "requires_action" { "background": List(&BACKGROUND_WORK) }
        "unknown" { "background": List(&BACKGROUND_WORK) }
    }
    REPLAY_FROM by "type" {
        "start" {}
    }
    SET_SESSION_CONFIG_OPTION_REQUEST by "type" {
        "id" { "sessionId": TEXT, "configId": TEXT, "value": TEXT }
        "boolean" { "sessionId": TEXT, "configId": TEXT, "value": BOOL }
    }
    PLAN_UPDATE_CONTENT by "type" {
        "items" { "planId": TEXT, "entries": List(&PLAN_ENTRY) }
        "file" { "planId": TEXT, "uri": TEXT }
        "markdown" { "planId": TEXT, "content": TEXT }
    }
    SESSION_UPDATE by "sessionUpdate" else super::v1::SESSION_UPDATE, TOOL_CALL_UPDATE {
        "user_message_chunk" { "messageId": TEXT, "content": CONTENT_BLOCK }
        "user_message" { "messageId": TEXT, "content": List(&CONTENT_BLOCK) }
        "agent_message_chunk" { "messageId": TEXT, "content": CONTENT_BLOCK }
        "agent_message" { "messageId": TEXT, "content": List(&CONTENT_BLOCK) }
        "agent_thought_chunk" { "messageId": TEXT, "content": CONTENT_BLOCK }
        "agent_thought" { "messageId": TEXT, "content": List(&CONTENT_BLOCK) }
        "state_update" {
            "state": TEXT, "background": List(&BACKGROUND_WORK), "usage": USAGE, "stopReason": TEXT,
            "error": ERROR,
        }
        "tool_call_content_chunk" { "toolCallId": TEXT, "content": TOOL_CALL_CONTENT }
        "tool_call_update" {
            "toolCallId": TEXT, "name": TEXT, "title": TEXT, "kind": TEXT, "status": TEXT,
            "content": List(&TOOL_CALL_CONTENT), "locations": List(&TOOL_CALL_LOCATION), "rawInput": ANY,
            "rawOutput": ANY, "capabilities": TOOL_CALL_CAPABILITIES,
        }
        "terminal_update" {
            "terminalId": TEXT, "command": TEXT, "cwd": TEXT, "output": TERMINAL_OUTPUT,
            "exitStatus": TERMINAL_EXIT_STATUS, "size": TERMINAL_SIZE,
            "capabilities": TERMINAL_CAPABILITIES,
        }
        "terminal_output_chunk" { "terminalId": TEXT, "data": TEXT }
        "plan_update" { "plan": PLAN_UPDATE_CONTENT }
        "plan_removed" { "planId": TEXT }
        "available_commands_update" { "availableCommands": List(&AVAILABLE_COMMAND) }
        "config_option_update" { "configOptions": List(&SESSION_CONFIG_OPTION) }
        "session_info_update" { "title": TEXT, "updatedAt": TEXT }
        "usage_update" { "used": UINT, "size": UINT, "cost": COST }
        "notice" { "severity": TEXT, "title": TEXT, "description": TEXT }
        "compaction_update" {
            "compactionId": TEXT, "status": TEXT, "summary": List(&CONTENT_BLOCK), "error": TEXT,
        }
        "compaction_summary_chunk" { "compactionId": TEXT, "content": CONTENT_BLOCK }
        "subagent_update" {
            "sessionId": TEXT, "title": TEXT, "description": TEXT,
            "capabilities": SUBAGENT_SESSION_CAPABILITIES, "state": STATE_UPDATE, "cwd": TEXT,
            "additionalDirectories": List(&TEXT),
        }
        "session_message" {
            "messageId": TEXT, "senderSessionId": TEXT, "recipientSessionId": TEXT,
            "senderMessageId": TEXT, "recipientMessageId": TEXT, "content": List(&CONTENT_BLOCK),
        }
        "session_message_chunk" { "messageId": TEXT, "content": CONTENT_BLOCK }
    }
}
