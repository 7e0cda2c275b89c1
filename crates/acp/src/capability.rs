//! Capabilities of the peer, in one form for both versions.
//!
//! Version 1 mixes booleans and object markers. Version 2 has only markers: `{}` means yes; `null`, absence
//! and everything else (even `true`) mean no. The schema types implement that; this module adds the
//! defaults of each version.

use crate::{v1, v2};

/// A key of `_meta` in a client's capabilities, in its prompts (version 1) and in its MCP servers of type
/// `acp`.
///
/// `true` in capabilities and in a prompt: the client authorizes each `terminal/create` itself and asks its
/// user if needed. An agent that runs commands only through this client need not request permission.
///
/// `true` in capabilities and in a server: the client authorizes each tool of that server itself.
///
/// The capabilities alone are not enough, because on a bus another client may continue the session.
pub const AUTHORIZES: &str = "narrows/authorizes";

/// Capabilities of a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCan {
    /// Serves `fs/read_text_file`.
    pub read_text_file: bool,
    /// Serves `fs/write_text_file`.
    pub write_text_file: bool,
    pub terminal: bool,
    /// Can log in by running the agent in a terminal. An agent must not offer auth methods of this kind to
    /// other clients.
    pub terminal_login: bool,
    /// Can show a form for `elicitation/create`.
    pub elicit_form: bool,
    /// Can open a URL for `elicitation/create`.
    pub elicit_url: bool,
    /// Shows boolean configuration options.
    pub boolean_options: bool,
    pub notices: bool,
    /// Accepts `compaction_update` and `compaction_summary_chunk`.
    pub compaction: bool,
    /// Accepts `plan_update`: plans with an id.
    pub plan_updates: bool,
    /// Authorizes each `terminal/create` and each tool of its MCP servers itself ([`AUTHORIZES`]).
    pub authorizes: bool,
}

impl From<&v1::ClientCapabilities> for ClientCan {
    fn from(client: &v1::ClientCapabilities) -> Self {
        let elicitation = client.elicitation.as_ref();
        let session = client.session.as_ref();
        let options = session.and_then(|session| session.config_options.as_ref());
        Self {
            read_text_file: client.fs.read_text_file,
            write_text_file: client.fs.write_text_file,
            terminal: client.terminal,
            terminal_login: client.auth.terminal,
            elicit_form: elicitation.is_some_and(|modes| modes.form.is_some()),
            elicit_url: elicitation.is_some_and(|modes| modes.url.is_some()),
            boolean_options: options.is_some_and(|options| options.boolean.is_some()),
            notices: session.is_some_and(|session| session.notices.is_some()),
            compaction: session.is_some_and(|session| session.compaction.is_some()),
            plan_updates: client.plan.is_some(),
            authorizes: is_marked(client.meta.as_ref()),
        }
    }
}

impl From<&v2::ClientCapabilities> for ClientCan {
    fn from(client: &v2::ClientCapabilities) -> Self {
        let elicitation = client.elicitation.as_ref();
        Self {
            read_text_file: false,
            write_text_file: false,
            terminal: false,
            terminal_login: client.auth.as_ref().is_some_and(|auth| auth.terminal.is_some()),
            elicit_form: elicitation.is_some_and(|modes| modes.form.is_some()),
            elicit_url: elicitation.is_some_and(|modes| modes.url.is_some()),
            boolean_options: true,
            notices: true,
            compaction: true,
            plan_updates: true,
            authorizes: is_marked(client.meta.as_ref()),
        }
    }
}

/// Returns `true` if the `_meta` has the [`AUTHORIZES`] mark.
fn is_marked(meta: Option<&serde_json::Map<String, serde_json::Value>>) -> bool {
    meta.and_then(|meta| meta.get(AUTHORIZES)) == Some(&true.into())
}

/// Capabilities of an agent. Every agent can create and prompt sessions and cancel prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentCan {
    /// Serves `session/load`, which only v1 has. In v2, `session/resume` replays the history.
    pub load: bool,
    pub resume: bool,
    pub list: bool,
    pub close: bool,
    pub delete: bool,
    pub fork: bool,
    /// Accepts additional directories for a session.
    pub additional_directories: bool,
    /// Serves `logout` (v1) or `auth/logout` (v2).
    pub logout: bool,
    pub image: bool,
    pub audio: bool,
    pub embedded_context: bool,
    /// Connects to MCP servers that the agent starts itself.
    pub mcp_stdio: bool,
    pub mcp_http: bool,
    /// Connects to MCP servers over SSE (v1 only).
    pub mcp_sse: bool,
    /// Connects to MCP servers that run in the client.
    pub mcp_acp: bool,
}

impl From<&v1::InitializeResponse> for AgentCan {
    fn from(answer: &v1::InitializeResponse) -> Self {
        let agent = &answer.agent_capabilities;
        let session = &agent.session_capabilities;
        Self {
            load: agent.load_session,
            resume: session.resume.is_some(),
            list: session.list.is_some(),
            close: session.close.is_some(),
            delete: session.delete.is_some(),
            fork: session.fork.is_some(),
            additional_directories: session.additional_directories.is_some(),
            logout: agent.auth.logout.is_some(),
            image: agent.prompt_capabilities.image,
            audio: agent.prompt_capabilities.audio,
            embedded_context: agent.prompt_capabilities.embedded_context,
            mcp_stdio: true,
            mcp_http: agent.mcp_capabilities.http,
            mcp_sse: agent.mcp_capabilities.sse,
            mcp_acp: agent.mcp_capabilities.acp,
        }
    }
}

impl From<&v2::InitializeResponse> for AgentCan {
    fn from(answer: &v2::InitializeResponse) -> Self {
        // An agent with auth methods supports login and logout: both are announced by these methods.
        let logout = !answer.auth_methods.is_empty();
        let Some(session) = &answer.capabilities.session else {
            return Self { logout, ..Self::default() };
        };
        let prompt = session.prompt.as_ref();
        let mcp = session.mcp.as_ref();
        Self {
            load: false,
            resume: true,
            list: true,
            close: true,
            delete: session.delete.is_some(),
            fork: session.fork.is_some(),
            additional_directories: session.additional_directories.is_some(),
            logout,
            image: prompt.is_some_and(|prompt| prompt.image.is_some()),
            audio: prompt.is_some_and(|prompt| prompt.audio.is_some()),
            embedded_context: prompt.is_some_and(|prompt| prompt.embedded_context.is_some()),
            mcp_stdio: mcp.is_some_and(|mcp| mcp.stdio.is_some()),
            mcp_http: mcp.is_some_and(|mcp| mcp.http.is_some()),
            mcp_sse: false,
            mcp_acp: mcp.is_some_and(|mcp| mcp.acp.is_some()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2_CLIENT: ClientCan = ClientCan {
        read_text_file: false,
        write_text_file: false,
        terminal: false,
        terminal_login: false,
        elicit_form: false,
        elicit_url: false,
        boolean_options: true,
        notices: true,
        compaction: true,
        plan_updates: true,
        authorizes: false,
    };

    #[track_caller]
    fn check_v1_client(text: &str, expected: ClientCan) {
        let client: v1::ClientCapabilities = serde_json::from_str(text).unwrap();
        assert_eq!(ClientCan::from(&client), expected, "{text}");
    }

    #[track_caller]
    fn check_v2_client(text: &str, expected: ClientCan) {
        let client: v2::ClientCapabilities = serde_json::from_str(text).unwrap();
        assert_eq!(ClientCan::from(&client), expected, "{text}");
    }

    #[test]
    fn clients_of_v1_mix_booleans_and_markers() {
        let none = ClientCan::default();
        check_v1_client("{}", none);
        check_v1_client(r#"{"elicitation":{},"session":{},"fs":null,"plan":null}"#, none);
        check_v1_client(r#"{"terminal":{},"fs":{"readTextFile":"yes"},"plan":true}"#, none);
        check_v1_client(
            r#"{"terminal":true,"fs":{"readTextFile":true},"auth":{"terminal":true}}"#,
            ClientCan { terminal: true, read_text_file: true, terminal_login: true, ..none },
        );
        check_v1_client(
            r#"{"elicitation":{"form":{},"url":null},"session":{"notices":{},"configOptions":{"boolean":{}}}}"#,
            ClientCan { elicit_form: true, notices: true, boolean_options: true, ..none },
        );
        check_v1_client(
            r#"{"plan":{},"session":{"compaction":{}},"fs":{"writeTextFile":true},"elicitation":{"url":{}}}"#,
            ClientCan {
                plan_updates: true,
                compaction: true,
                write_text_file: true,
                elicit_url: true,
                ..none
            },
        );
    }

    #[test]
    fn only_true_marks_a_client_that_authorizes() {
        let none = ClientCan::default();
        let authorizes = ClientCan { authorizes: true, ..none };
        check_v1_client(r#"{"_meta":{"narrows/authorizes":true}}"#, authorizes);
        for other in [r#""true""#, "1", "{}", "false", "null"] {
            check_v1_client(&format!(r#"{{"_meta":{{"narrows/authorizes":{other}}}}}"#), none);
        }
        check_v2_client(
            r#"{"_meta":{"narrows/authorizes":true}}"#,
            ClientCan { authorizes: true, ..V2_CLIENT },
        );
        check_v2_client(r#"{"_meta":{"narrows/authorizes":1}}"#, V2_CLIENT);
    }

    #[test]
    fn clients_of_v2_have_markers_only_and_no_files() {
        check_v2_client("{}", V2_CLIENT);
        check_v2_client(r#"{"auth":{"terminal":true},"elicitation":{"form":true}}"#, V2_CLIENT);
        check_v2_client(
            r#"{"auth":null,"elicitation":{},"fs":{"readTextFile":true},"terminal":true}"#,
            V2_CLIENT,
        );
        check_v2_client(
            r#"{"auth":{"terminal":{}},"elicitation":{"form":{},"url":{"_meta":{}}}}"#,
            ClientCan { terminal_login: true, elicit_form: true, elicit_url: true, ..V2_CLIENT },
        );
    }

    #[test]
    fn agents_of_v1_mix_booleans_and_markers() {
        #[track_caller]
        fn check(text: &str, expected: AgentCan) {
            let text = format!(r#"{{"protocolVersion":1,"agentCapabilities":{text}}}"#);
            let answer: v1::InitializeResponse = serde_json::from_str(&text).unwrap();
            assert_eq!(AgentCan::from(&answer), expected, "{text}");
        }
        let none = AgentCan { mcp_stdio: true, ..AgentCan::default() };
        check("{}", none);
        check(r#"{"loadSession":{},"sessionCapabilities":{"list":true,"resume":null}}"#, none);
        check(
            r#"{"loadSession":true,"sessionCapabilities":{"list":{},"resume":{},"fork":{}},"auth":{"logout":{}}}"#,
            AgentCan { load: true, list: true, resume: true, fork: true, logout: true, ..none },
        );
        check(
            r#"{"promptCapabilities":{"image":true},"mcpCapabilities":{"sse":true,"acp":true}}"#,
            AgentCan { image: true, mcp_sse: true, mcp_acp: true, ..none },
        );
    }

    #[test]
    fn agents_of_v2_have_a_baseline_with_sessions() {
        #[track_caller]
        fn check(text: &str, expected: AgentCan) {
            let text = format!(r#"{{"protocolVersion":2,"info":{{"name":"a","version":"1"}},{text}}}"#);
            let answer: v2::InitializeResponse = serde_json::from_str(&text).unwrap();
            assert_eq!(AgentCan::from(&answer), expected, "{text}");
        }
        let none = AgentCan::default();
        let baseline = AgentCan { resume: true, list: true, close: true, ..none };
        check(r#""capabilities":{}"#, none);
        check(r#""capabilities":{"session":null}"#, none);
        check(r#""capabilities":{"session":{}}"#, baseline);
        check(r#""capabilities":{"session":{"delete":true,"prompt":{"image":true}}}"#, baseline);
        check(
            r#""capabilities":{"session":{"delete":{},"prompt":{"image":{}},"mcp":{"stdio":{},"acp":{}}}}"#,
            AgentCan { delete: true, image: true, mcp_stdio: true, mcp_acp: true, ..baseline },
        );
        check(
            r#""authMethods":[{"type":"agent","methodId":"m","name":"M"}]"#,
            AgentCan { logout: true, ..none },
        );
    }
}
