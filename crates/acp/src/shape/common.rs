//! Shapes that both versions share.

use super::Shape::{List, Map};
use super::{ANY, BOOL, EMPTY, ID, INT, NUMBER, Shape, TEXT, UINT};

objects! {
    ELICITATION_FORM {
        "message": TEXT, "requestedSchema": ANY, "sessionId": TEXT, "toolCallId": TEXT, "requestId": ID,
    }
    SESSION_REQUEST { "sessionId": TEXT }
    TERMINAL_REQUEST { "sessionId": TEXT, "terminalId": TEXT }
    MCP_CONNECTION { "serverId": TEXT, "acpId": TEXT, "connectionId": TEXT }
    ANNOTATIONS { "audience": List(&TEXT), "lastModified": TEXT, "priority": NUMBER }
    RESOURCE_CONTENTS { "uri": TEXT, "mimeType": TEXT, "text": TEXT, "blob": TEXT }
    TOOL_CALL_LOCATION { "path": TEXT, "line": UINT }
    PERMISSION_OPTION { "optionId": TEXT, "name": TEXT, "kind": TEXT }
    ENV_VARIABLE { "name": TEXT, "value": TEXT }
    MCP_MESSAGE {
        "serverId": TEXT, "acpId": TEXT, "connectionId": TEXT, "requestId": ID, "method": TEXT,
        "params": ANY,
    }
    SESSION_SYSTEM_PROMPT_MODE_CAPABILITIES { "override": EMPTY }
    SESSION_SYSTEM_PROMPT_CAPABILITIES { "mode": SESSION_SYSTEM_PROMPT_MODE_CAPABILITIES }
    IMPLEMENTATION { "name": TEXT, "title": TEXT, "version": TEXT }
    ELICITATION_CAPABILITIES { "form": EMPTY, "url": EMPTY }
    PROVIDER_CURRENT_CONFIG { "apiType": TEXT, "baseUrl": TEXT }
    PROVIDER_INFO {
        "providerId": TEXT, "supported": List(&TEXT), "required": BOOL, "current": PROVIDER_CURRENT_CONFIG,
    }
    LIST_PROVIDERS_RESPONSE { "providers": List(&PROVIDER_INFO) }
    SET_PROVIDER_REQUEST { "providerId": TEXT, "apiType": TEXT, "baseUrl": TEXT, "headers": Map(&TEXT) }
    DISABLE_PROVIDER_REQUEST { "providerId": TEXT }
    AUTH_ACCOUNT { "label": TEXT, "active": BOOL, "name": TEXT, "email": TEXT, "organization": TEXT }
    AUTH_STATUS { "state": TEXT, "accounts": List(&AUTH_ACCOUNT) }
    SESSION_CONFIG_SELECT_OPTION { "value": TEXT, "name": TEXT, "description": TEXT }
    HTTP_HEADER { "name": TEXT, "value": TEXT }
    SESSION_INFO {
        "sessionId": TEXT, "cwd": TEXT, "additionalDirectories": List(&TEXT), "title": TEXT,
        "updatedAt": TEXT, "archived": BOOL,
    }
    LIST_SESSIONS_RESPONSE { "sessions": List(&SESSION_INFO), "nextCursor": TEXT }
    LIST_SESSIONS_REQUEST { "cwd": TEXT, "cursor": TEXT, "archived": TEXT }
    SET_SESSION_TITLE_RESPONSE { "title": TEXT }
    SET_SESSION_TITLE_REQUEST { "sessionId": TEXT, "title": TEXT }
    USAGE {
        "totalTokens": UINT, "inputTokens": UINT, "outputTokens": UINT, "thoughtTokens": UINT,
        "cachedReadTokens": UINT, "cachedWriteTokens": UINT,
    }
    PLAN_ENTRY { "content": TEXT, "priority": TEXT, "status": TEXT }
    COST { "amount": NUMBER, "currency": TEXT }
    SUBAGENT_SESSION_CAPABILITIES { "cancel": EMPTY }
    ERROR { "code": INT, "message": TEXT, "data": ANY }
    COMPLETE_ELICITATION_NOTIFICATION { "elicitationId": TEXT }
    CANCEL_REQUEST_NOTIFICATION { "requestId": ID }
}

tagged! {
    CREATE_ELICITATION_REQUEST by "mode" or ELICITATION_FORM {
        "form" {
            "message": TEXT, "requestedSchema": ANY, "sessionId": TEXT, "toolCallId": TEXT,
            "requestId": ID,
        }
        "url" {
            "message": TEXT, "elicitationId": TEXT, "url": TEXT, "sessionId": TEXT, "toolCallId": TEXT,
            "requestId": ID,
        }
    }
    CREATE_ELICITATION_RESPONSE by "action" {
        "accept" { "content": ANY }
        "decline" {}
        "cancel" {}
    }
}
