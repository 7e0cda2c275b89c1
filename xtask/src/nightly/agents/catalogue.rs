//! The agents: their sources, command lines, model settings and tries.

/// The source of an agent's installation.
pub(super) enum Source {
    /// A package of npm.
    Npm(&'static str),
    /// Packages of PyPI: the preferred one, and the one to use if its newest release cannot be installed.
    Pip(&'static str, &'static str),
}

/// A scenario that is tried with an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Try {
    /// The agent answers `initialize` and opens a session.
    Probe,
    /// The agent answers without a key or a login.
    Login,
    /// The agent answers a prompt.
    Answer,
    /// The agent writes a file, with permission and through the client.
    Write,
    /// The agent stops in the middle of an endless answer.
    Cancel,
}

pub(super) struct Kit {
    pub(super) name: &'static str,
    pub(super) source: Source,
    /// Program of the package that runs the agent.
    pub(super) program: &'static str,
    pub(super) words: &'static [&'static str],
    pub(super) always: &'static [(&'static str, &'static str)],
    /// Variables that make the agent use the scripted model. `PORT` stands for the port of the model.
    pub(super) variables: &'static [(&'static str, &'static str)],
    /// A configuration file in the agent's home with the same purpose.
    pub(super) file: Option<(&'static str, &'static str)>,
    pub(super) tries: &'static [Try],
}

const OPENCODE: &str = r#"{"model":"local/scripted","small_model":"local/scripted","autoupdate":false,"share":"disabled","permission":{"edit":"ask"},"provider":{"local":{"npm":"@ai-sdk/openai-compatible","name":"Local","options":{"baseURL":"http://127.0.0.1:PORT/v1","apiKey":"none"},"models":{"scripted":{"name":"Scripted"}}}}}"#;

/// Settings of Codex, which supports only the Responses API.
const CODEX: (&str, &str) = (
    ".codex/config.toml",
    r#"model = "scripted"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "http://127.0.0.1:PORT/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"#,
);

/// Claude Code refuses some of its options to root unless this variable is set.
const CONTAINED: (&str, &str) = ("IS_SANDBOX", "1");

const CLAUDE: &[(&str, &str)] =
    &[("ANTHROPIC_BASE_URL", "http://127.0.0.1:PORT"), ("ANTHROPIC_API_KEY", "none")];

pub(super) const KITS: [Kit; 7] = [
    Kit {
        name: "opencode",
        source: Source::Npm("opencode-ai"),
        program: "opencode",
        words: &["acp"],
        always: &[("OPENCODE_DISABLE_AUTOUPDATE", "1"), ("OPENCODE_DISABLE_MODELS_FETCH", "1")],
        variables: &[("OPENCODE_CONFIG_CONTENT", OPENCODE)],
        file: None,
        tries: &[Try::Probe, Try::Answer, Try::Write, Try::Cancel],
    },
    Kit {
        name: "qwen-code",
        source: Source::Npm("@qwen-code/qwen-code"),
        program: "qwen",
        words: &["--acp"],
        always: &[],
        variables: &[
            ("OPENAI_BASE_URL", "http://127.0.0.1:PORT/v1"),
            ("OPENAI_API_KEY", "none"),
            ("OPENAI_MODEL", "scripted"),
        ],
        file: None,
        tries: &[Try::Probe, Try::Login, Try::Answer, Try::Write, Try::Cancel],
    },
    Kit {
        name: "fast-agent",
        source: Source::Pip("fast-agent-acp", "fast-agent-acp<0.10.40"),
        program: "fast-agent",
        // This model echoes its input.
        words: &["acp", "--model", "passthrough"],
        always: &[],
        variables: &[],
        file: None,
        tries: &[Try::Probe, Try::Answer],
    },
    codex("codex-acp (zed)", "@zed-industries/codex-acp"),
    codex("codex-acp", "@agentclientprotocol/codex-acp"),
    claude("claude-acp (zed)", "@zed-industries/claude-agent-acp"),
    claude("claude-acp", "@agentclientprotocol/claude-agent-acp"),
];

const fn codex(name: &'static str, package: &'static str) -> Kit {
    Kit {
        name,
        source: Source::Npm(package),
        program: "codex-acp",
        words: &[],
        always: &[],
        variables: &[],
        file: Some(CODEX),
        tries: &[Try::Probe, Try::Login, Try::Answer, Try::Cancel],
    }
}

const fn claude(name: &'static str, package: &'static str) -> Kit {
    Kit {
        name,
        source: Source::Npm(package),
        program: "claude-agent-acp",
        words: &[],
        always: &[CONTAINED],
        variables: CLAUDE,
        file: None,
        tries: &[Try::Probe, Try::Login, Try::Answer, Try::Cancel],
    }
}

impl Kit {
    /// Returns the name of the agent's directories: the package name without characters that a path cannot
    /// have.
    pub(super) fn directory(&self) -> String {
        let (Source::Npm(package) | Source::Pip(package, _)) = self.source;
        package.trim_start_matches('@').replace('/', "-")
    }
}

impl Try {
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Login => "run without a login",
            Self::Answer => "run",
            Self::Write => "run, writing a file",
            Self::Cancel => "run, cancelled",
        }
    }

    pub(super) fn is_scripted(self) -> bool {
        self != Self::Login
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_agents_share_a_name_or_a_directory() {
        let names: HashSet<_> = KITS.iter().map(|kit| kit.name).collect();
        let directories: HashSet<_> = KITS.iter().map(Kit::directory).collect();
        assert_eq!((names.len(), directories.len()), (KITS.len(), KITS.len()));
        assert!(directories.iter().all(|directory| !directory.contains(['/', '@'])), "{directories:?}");
    }

    #[test]
    fn every_agent_that_answers_uses_the_script() {
        for kit in KITS.iter().filter(|kit| matches!(kit.source, Source::Npm(_))) {
            let mut settings =
                kit.variables.iter().map(|(_, value)| *value).chain(kit.file.map(|(_, text)| text));
            assert!(settings.any(|setting| setting.contains("http://127.0.0.1:PORT")), "{}", kit.name);
        }
    }
}
