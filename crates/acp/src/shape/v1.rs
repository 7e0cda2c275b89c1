//! Version 1 of the protocol, with its unstable parts and members that older peers still send.

use super::Shape::{List, Map};
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
    (method::FS_WRITE_TEXT_FILE, Side::Client, &WRITE_TEXT_FILE_REQUEST, &EMPTY),
    (method::FS_READ_TEXT_FILE, Side::Client, &READ_TEXT_FILE_REQUEST, &READ_TEXT_FILE_RESPONSE),
    (
        method::SESSION_REQUEST_PERMISSION,
        Side::Client,
        &REQUEST_PERMISSION_REQUEST,
        &REQUEST_PERMISSION_RESPONSE,
    ),
    (method::TERMINAL_CREATE, Side::Client, &CREATE_TERMINAL_REQUEST, &CREATE_TERMINAL_RESPONSE),
    (method::TERMINAL_OUTPUT, Side::Client, &TERMINAL_REQUEST, &TERMINAL_OUTPUT_RESPONSE),
    (method::TERMINAL_RELEASE, Side::Client, &TERMINAL_REQUEST, &EMPTY),
    (method::TERMINAL_WAIT_FOR_EXIT, Side::Client, &TERMINAL_REQUEST, &TERMINAL_EXIT_STATUS),
    (method::TERMINAL_KILL, Side::Client, &TERMINAL_REQUEST, &EMPTY),
    (method::ELICITATION_CREATE, Side::Client, &CREATE_ELICITATION_REQUEST, &CREATE_ELICITATION_RESPONSE),
    (method::MCP_MESSAGE, Side::Client, &MCP_MESSAGE, &ANY),
    (method::INITIALIZE, Side::Agent, &INITIALIZE_PARAMS, &INITIALIZE_RESPONSE),
    (method::AUTHENTICATE, Side::Agent, &AUTHENTICATE_REQUEST, &EMPTY),
    (method::PROVIDERS_LIST, Side::Agent, &EMPTY, &LIST_PROVIDERS_RESPONSE),
    (method::PROVIDERS_SET, Side::Agent, &SET_PROVIDER_REQUEST, &EMPTY),
    (method::PROVIDERS_DISABLE, Side::Agent, &DISABLE_PROVIDER_REQUEST, &EMPTY),
    (method::LOGOUT, Side::Agent, &EMPTY, &EMPTY),
    (method::AUTH_STATUS, Side::Agent, &EMPTY, &AUTH_STATUS),
    (method::SESSION_NEW, Side::Agent, &NEW_SESSION_REQUEST, &NEW_SESSION_RESPONSE),
    (method::SESSION_LOAD, Side::Agent, &LOAD_SESSION_REQUEST, &LOAD_SESSION_RESPONSE),
    (method::SESSION_LIST, Side::Agent, &LIST_SESSIONS_REQUEST, &LIST_SESSIONS_RESPONSE),
    (method::SESSION_DELETE, Side::Agent, &SESSION_REQUEST, &EMPTY),
    (method::SESSION_FORK, Side::Agent, &FORK_SESSION_REQUEST, &FORK_SESSION_RESPONSE),
    (method::SESSION_ARCHIVE, Side::Agent, &SESSION_REQUEST, &EMPTY),
    (method::SESSION_UNARCHIVE, Side::Agent, &SESSION_REQUEST, &EMPTY),
    (method::SESSION_STATUS, Side::Agent, &SESSION_REQUEST, &SESSION_STATUS_RESPONSE),
    (method::SESSION_SET_TITLE, Side::Agent, &SET_SESSION_TITLE_REQUEST, &SET_SESSION_TITLE_RESPONSE),
    (method::SESSION_RESUME, Side::Agent, &RESUME_SESSION_REQUEST, &RESUME_SESSION_RESPONSE),
    (method::SESSION_CLOSE, Side::Agent, &SESSION_REQUEST, &EMPTY),
    (method::SESSION_SET_MODE, Side::Agent, &SET_SESSION_MODE_REQUEST, &EMPTY),
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
    (method::SESSION_SET_MODEL, Side::Agent, &SET_SESSION_MODEL_REQUEST, &EMPTY),
    (method::MCP_CONNECT, Side::Client, &MCP_CONNECTION, &MCP_CONNECTION),
    (method::MCP_DISCONNECT, Side::Client, &MCP_CONNECTION, &EMPTY),
];

objects! {
    WRITE_TEXT_FILE_REQUEST { "sessionId": TEXT, "path": TEXT, "content": TEXT }
    READ_TEXT_FILE_REQUEST { "sessionId": TEXT, "path": TEXT, "line": UINT, "limit": UINT }
    READ_TEXT_FILE_RESPONSE { "content": TEXT }
    TOOL_CALL_UPDATE {
        "toolCallId": TEXT, "kind": TEXT, "status": TEXT, "title": TEXT, "name": TEXT,
        "content": List(&TOOL_CALL_CONTENT), "locations": List(&TOOL_CALL_LOCATION), "rawInput": ANY,
        "rawOutput": ANY,
    }
    REQUEST_PERMISSION_REQUEST { "sessionId": TEXT, "toolCall": ANY, "options": List(&PERMISSION_OPTION) }
    REQUEST_PERMISSION_RESPONSE { "outcome": REQUEST_PERMISSION_OUTCOME }
    CREATE_TERMINAL_REQUEST {
        "sessionId": TEXT, "command": TEXT, "args": List(&TEXT), "env": List(&ENV_VARIABLE), "cwd": TEXT,
        "outputByteLimit": UINT,
    }
    CREATE_TERMINAL_RESPONSE { "terminalId": TEXT }
    TERMINAL_EXIT_STATUS { "exitCode": UINT, "signal": TEXT }
    TERMINAL_OUTPUT_RESPONSE { "output": TEXT, "truncated": BOOL, "exitStatus": TERMINAL_EXIT_STATUS }
    PROMPT_CAPABILITIES { "image": BOOL, "audio": BOOL, "embeddedContext": BOOL }
    MCP_CAPABILITIES { "http": BOOL, "sse": BOOL, "acp": BOOL }
    SESSION_CAPABILITIES {
        "list": EMPTY, "delete": EMPTY, "additionalDirectories": EMPTY,
        "systemPrompt": SESSION_SYSTEM_PROMPT_CAPABILITIES, "fork": EMPTY, "archive": EMPTY,
        "status": EMPTY, "title": EMPTY, "resume": EMPTY, "close": EMPTY,
    }
    AGENT_AUTH_CAPABILITIES { "status": EMPTY, "logout": EMPTY }
    AGENT_CAPABILITIES {
        "loadSession": BOOL, "promptCapabilities": PROMPT_CAPABILITIES,
        "mcpCapabilities": MCP_CAPABILITIES, "sessionCapabilities": SESSION_CAPABILITIES,
        "auth": AGENT_AUTH_CAPABILITIES, "providers": EMPTY,
    }
    INITIALIZE_RESPONSE {
        "protocolVersion": UINT, "agentCapabilities": AGENT_CAPABILITIES,
        "authMethods": List(&AUTH_METHOD), "agentInfo": IMPLEMENTATION,
    }
    FILE_SYSTEM_CAPABILITIES { "readTextFile": BOOL, "writeTextFile": BOOL }
    SESSION_CONFIG_OPTIONS_CAPABILITIES { "boolean": EMPTY }
    CLIENT_SESSION_CAPABILITIES {
        "compaction": EMPTY, "configOptions": SESSION_CONFIG_OPTIONS_CAPABILITIES, "notices": EMPTY,
    }
    AUTH_CAPABILITIES { "terminal": BOOL }
    CLIENT_CAPABILITIES {
        "fs": FILE_SYSTEM_CAPABILITIES, "terminal": BOOL, "session": CLIENT_SESSION_CAPABILITIES,
        "subagents": EMPTY, "plan": EMPTY, "auth": AUTH_CAPABILITIES,
        "elicitation": ELICITATION_CAPABILITIES,
    }
    AUTHENTICATE_REQUEST { "methodId": TEXT }
    SESSION_MODE { "id": TEXT, "name": TEXT, "description": TEXT }
    SESSION_MODE_STATE { "currentModeId": TEXT, "availableModes": List(&SESSION_MODE) }
    NEW_SESSION_RESPONSE {
        "sessionId": TEXT, "modes": SESSION_MODE_STATE, "configOptions": List(&SESSION_CONFIG_OPTION),
        "models": SESSION_MODEL_STATE,
    }
    SYSTEM_PROMPT { "mode": TEXT, "content": List(&CONTENT_BLOCK) }
    NEW_SESSION_REQUEST {
        "cwd": TEXT, "additionalDirectories": List(&TEXT), "mcpServers": List(&MCP_SERVER),
        "systemPrompt": SYSTEM_PROMPT,
    }
    LOAD_SESSION_RESPONSE {
        "sessionId": TEXT, "modes": SESSION_MODE_STATE, "configOptions": List(&SESSION_CONFIG_OPTION),
        "models": SESSION_MODEL_STATE,
    }
    LOAD_SESSION_REQUEST {
        "mcpServers": List(&MCP_SERVER), "cwd": TEXT, "additionalDirectories": List(&TEXT),
        "sessionId": TEXT, "systemPrompt": SYSTEM_PROMPT,
    }
    FORK_SESSION_RESPONSE {
        "sessionId": TEXT, "modes": SESSION_MODE_STATE, "configOptions": List(&SESSION_CONFIG_OPTION),
        "models": SESSION_MODEL_STATE,
    }
    FORK_SESSION_REQUEST {
        "sessionId": TEXT, "cwd": TEXT, "additionalDirectories": List(&TEXT),
        "mcpServers": List(&MCP_SERVER), "systemPrompt": SYSTEM_PROMPT,
    }
    SESSION_STATUS_RESPONSE { "status": TEXT }
    RESUME_SESSION_RESPONSE {
        "modes": SESSION_MODE_STATE, "configOptions": List(&SESSION_CONFIG_OPTION),
        "models": SESSION_MODEL_STATE,
    }
    RESUME_SESSION_REQUEST {
        "sessionId": TEXT, "cwd": TEXT, "additionalDirectories": List(&TEXT),
        "mcpServers": List(&MCP_SERVER), "systemPrompt": SYSTEM_PROMPT,
    }
    SET_SESSION_MODE_REQUEST { "sessionId": TEXT, "modeId": TEXT }
    SET_SESSION_CONFIG_OPTION_RESPONSE { "configOptions": List(&SESSION_CONFIG_OPTION) }
    PROMPT_RESPONSE { "stopReason": TEXT, "usage": USAGE, "userMessageId": TEXT }
    PROMPT_REQUEST { "sessionId": TEXT, "prompt": List(&CONTENT_BLOCK), "messageId": TEXT }
    UNSTRUCTURED_COMMAND_INPUT { "hint": TEXT }
    AVAILABLE_COMMAND { "name": TEXT, "description": TEXT, "input": UNSTRUCTURED_COMMAND_INPUT }
    UPDATE_SESSION { "sessionId": TEXT, "update": SESSION_UPDATE }
    SESSION_CONFIG_SELECT_ENTRY {
        "value": TEXT, "name": TEXT, "description": TEXT, "group": TEXT,
        "options": List(&SESSION_CONFIG_SELECT_OPTION),
    }
    MODEL_INFO { "modelId": TEXT, "name": TEXT, "description": TEXT }
    SESSION_MODEL_STATE { "availableModels": List(&MODEL_INFO), "currentModelId": TEXT }
    SET_SESSION_MODEL_REQUEST { "sessionId": TEXT, "modelId": TEXT }
    AUTH_ENV_VARIABLE { "name": TEXT, "label": TEXT, "secret": BOOL, "optional": BOOL }
    AUTH_METHOD_BASE { "id": TEXT, "name": TEXT, "description": TEXT }
    MCP_SERVER_STDIO { "name": TEXT, "command": TEXT, "args": List(&TEXT), "env": List(&ENV_VARIABLE) }
    SET_SESSION_CONFIG_OPTION_ID { "sessionId": TEXT, "configId": TEXT, "value": TEXT }
}

tagged! {
    CONTENT_BLOCK by "type" {
        "text" { "annotations": ANNOTATIONS, "text": TEXT }
        "image" { "annotations": ANNOTATIONS, "data": TEXT, "mimeType": TEXT, "uri": TEXT }
        "audio" { "annotations": ANNOTATIONS, "data": TEXT, "mimeType": TEXT }
        "resource_link" {
            "annotations": ANNOTATIONS, "description": TEXT, "mimeType": TEXT, "name": TEXT, "size": INT,
            "title": TEXT, "uri": TEXT,
        }
        "resource" { "annotations": ANNOTATIONS, "resource": RESOURCE_CONTENTS }
    }
    TOOL_CALL_CONTENT by "type" {
        "content" { "content": CONTENT_BLOCK }
        "diff" { "path": TEXT, "oldText": TEXT, "newText": TEXT }
        "terminal" { "terminalId": TEXT }
    }
    REQUEST_PERMISSION_OUTCOME by "outcome" {
        "cancelled" {}
        "selected" { "optionId": TEXT }
    }
    AUTH_METHOD by "type" or AUTH_METHOD_BASE else AUTH_METHOD_BASE {
        "terminal" { "id": TEXT, "name": TEXT, "description": TEXT, "args": List(&TEXT), "env": Map(&TEXT) }
        "env_var" {
            "id": TEXT, "name": TEXT, "description": TEXT, "vars": List(&AUTH_ENV_VARIABLE), "link": TEXT,
        }
        "agent" { "id": TEXT, "name": TEXT, "description": TEXT }
    }
    SESSION_CONFIG_OPTION by "type" {
        "select" {
            "id": TEXT, "name": TEXT, "description": TEXT, "category": TEXT, "currentValue": TEXT,
            "options": List(&SESSION_CONFIG_SELECT_ENTRY),
        }
        "boolean" { "id": TEXT, "name": TEXT, "description": TEXT, "category": TEXT, "currentValue": BOOL }
    }
    MCP_SERVER by "type" or MCP_SERVER_STDIO {
        "stdio" { "name": TEXT, "command": TEXT, "args": List(&TEXT), "env": List(&ENV_VARIABLE) }
        "http" { "name": TEXT, "url": TEXT, "headers": List(&HTTP_HEADER) }
        "sse" { "name": TEXT, "url": TEXT, "headers": List(&HTTP_HEADER) }
        "acp" { "name": TEXT, "serverId": TEXT, "id": TEXT }
    }
    SET_SESSION_CONFIG_OPTION_REQUEST by "type" or SET_SESSION_CONFIG_OPTION_ID {
        "boolean" { "sessionId": TEXT, "configId": TEXT, "value": BOOL }
    }
    PLAN_UPDATE_CONTENT by "type" {
        "items" { "planId": TEXT, "entries": List(&PLAN_ENTRY) }
        "file" { "planId": TEXT, "uri": TEXT }
        "markdown" { "planId": TEXT, "content": TEXT }
    }
    STATE_UPDATE by "state" {
        "running" {}
        "idle" { "usage": USAGE, "stopReason": TEXT, "error": ERROR }
        "requires_action" {}
        "unknown" {}
    }
    SESSION_UPDATE by "sessionUpdate" else super::v2::SESSION_UPDATE, TOOL_CALL_UPDATE {
        "user_message_chunk" { "content": CONTENT_BLOCK, "messageId": TEXT }
        "agent_message_chunk" { "content": CONTENT_BLOCK, "messageId": TEXT }
        "agent_thought_chunk" { "content": CONTENT_BLOCK, "messageId": TEXT }
        "tool_call" {
            "toolCallId": TEXT, "title": TEXT, "name": TEXT, "kind": TEXT, "status": TEXT,
            "content": List(&TOOL_CALL_CONTENT), "locations": List(&TOOL_CALL_LOCATION), "rawInput": ANY,
            "rawOutput": ANY,
        }
        "tool_call_update" {
            "toolCallId": TEXT, "kind": TEXT, "status": TEXT, "title": TEXT, "name": TEXT,
            "content": List(&TOOL_CALL_CONTENT), "locations": List(&TOOL_CALL_LOCATION), "rawInput": ANY,
            "rawOutput": ANY,
        }
        "plan" { "entries": List(&PLAN_ENTRY) }
        "plan_update" { "plan": PLAN_UPDATE_CONTENT }
        "plan_removed" { "planId": TEXT }
        "available_commands_update" { "availableCommands": List(&AVAILABLE_COMMAND) }
        "current_mode_update" { "currentModeId": TEXT }
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
