//! What an AGENT-CLI.md shares with other command line tools: how it is installed, set up and recognised.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One way to install a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "method", rename_all = "lowercase", deny_unknown_fields)]
pub enum Install {
    /// With Homebrew.
    Brew {
        /// The name of the package.
        package: String,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With apt.
    Apt {
        /// The name of the package.
        package: String,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With dnf.
    Dnf {
        /// The name of the package.
        package: String,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With pacman.
    Pacman {
        /// The name of the package.
        package: String,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With Chocolatey.
    Choco {
        /// The name of the package.
        package: String,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With Scoop.
    Scoop {
        /// The name of the package.
        package: String,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With npm.
    Npm {
        /// The name of the package.
        package: String,
        /// Whether for everybody: true or false.
        #[serde(default)]
        global: bool,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With pip.
    Pip {
        /// The name of the package.
        package: String,
        /// Whether for this user: true or false.
        #[serde(default)]
        user: bool,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With Cargo.
    Cargo {
        /// The name of the package.
        package: String,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With Go.
    Go {
        /// The name of the package.
        package: String,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With a script from an address.
    Curl {
        /// The address.
        url: String,
        /// What the script must hash to: 64 small hexadecimal digits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(regex(pattern = r"^[a-f0-9]{64}$"))]
        verify_sha256: Option<String>,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// From an archive at an address.
    Download {
        /// The address.
        url: String,
        /// The program in it.
        extract_bin: String,
        /// What the archive must hash to: 64 small hexadecimal digits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(regex(pattern = r"^[a-f0-9]{64}$"))]
        verify_sha256: Option<String>,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// It is here already.
    Vendored {
        /// The path.
        path: String,
        /// Whether it may not work: true or false.
        #[serde(default)]
        experimental: bool,
    },
}

/// How the version of a program is found and judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VersionCheck {
    /// The command that prints it.
    pub cmd: String,
    /// A pattern whose first group is the version.
    pub parse: String,
    /// Which versions will do, such as ">=1.2.0 <2.0.0".
    pub range: String,
    /// How long the command may take: milliseconds, at least 100.
    #[serde(default = "five_seconds")]
    #[schemars(range(min = 100))]
    pub timeout_ms: u64,
}

fn five_seconds() -> u64 {
    5000
}

/// How a program is logged in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// The file or name of the secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<String>,
    /// What shows that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<AuthState>,
    /// How it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<Login>,
    /// How it is kept up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<Refresh>,
    /// How its end is seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<Expiry>,
}

/// What shows that a program is logged in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthState {
    /// Files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Names of variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
}

/// How a program is logged in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// The command.
    pub cmd: String,
    /// Whether it asks questions: true or false.
    #[serde(default)]
    pub interactive: bool,
    /// Whether a browser has to come back: true or false.
    #[serde(default)]
    pub requires_callback_url: bool,
    /// How its success is seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completes_when: Option<CompletesWhen>,
}

/// How success is seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletesWhen {
    /// The command that tells.
    pub cmd: String,
    /// Its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
}

/// How a login is kept up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Refresh {
    /// The command.
    pub cmd: String,
    /// How often: a duration such as PT1H.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^P(?:T)?[^\s\u{feff}]+$"))]
    pub every: Option<String>,
}

/// How the end of a login is seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expiry {
    /// exit_code: and a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^exit_code:[0-9]+$"))]
    pub detect: Option<String>,
}

/// A step that is taken once after the installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum SetupStep {
    /// A command.
    Cmd {
        /// Its id: up to 64 small letters, digits and hyphens.
        #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
        id: String,
        /// The command.
        cmd: String,
        /// What it is for, in up to 2000 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(max = 2000))]
        description: Option<String>,
        /// When it is not needed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        skip_if: Option<SkipIf>,
        /// How long it may take: milliseconds, at least 100.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 100))]
        timeout_ms: Option<u64>,
        /// Whether it asks questions: true or false.
        #[serde(default)]
        interactive: bool,
        /// What becomes of the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        persist: Option<Persist>,
    },
    /// A question.
    Prompt {
        /// Its id: up to 64 small letters, digits and hyphens.
        #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
        id: String,
        /// The question.
        prompt: String,
        /// What it is for, in up to 2000 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(max = 2000))]
        description: Option<String>,
        /// What sort of answer it wants.
        #[serde(default)]
        r#type: PromptType,
        /// The answer if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default: Option<String>,
        /// The answers to choose from: a list of them, or a map with a cmd that prints them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Choices>,
        /// When it is not needed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        skip_if: Option<SkipIf>,
        /// What becomes of the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        persist: Option<Persist>,
    },
    /// A login in a browser.
    Oauth {
        /// Its id: up to 64 small letters, digits and hyphens.
        #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
        id: String,
        /// The secret that comes out of it, in 2 to 80 characters.
        #[schemars(length(min = 2, max = 80))]
        secret_slug: String,
        /// What it is for, in up to 2000 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(max = 2000))]
        description: Option<String>,
        /// When it is not needed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        skip_if: Option<SkipIf>,
    },
    /// Something to be done elsewhere.
    External {
        /// Its id: up to 64 small letters, digits and hyphens.
        #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
        id: String,
        /// Where.
        url: String,
        /// What it is for, in up to 2000 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(max = 2000))]
        description: Option<String>,
        /// How it comes back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        callback: Option<Callback>,
        /// When it is not needed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        skip_if: Option<SkipIf>,
        /// What becomes of the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        persist: Option<Persist>,
    },
}

/// What sort of answer a question wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PromptType {
    /// A text.
    #[default]
    Text,
    /// One of several.
    Select,
    /// Yes or no.
    Boolean,
    /// One that nobody may see.
    Secret,
}

/// Answers to choose from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Choices {
    /// These.
    List(#[schemars(length(min = 1), inner(length(min = 1)))] Vec<String>),
    /// Those a command prints.
    Command(ChoicesFrom),
}

/// A command that prints answers to choose from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChoicesFrom {
    /// The command.
    pub cmd: String,
    /// How long it may take: milliseconds, at least 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100))]
    pub timeout_ms: Option<u64>,
}

/// When a step is not needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkipIf {
    /// The command that tells.
    pub cmd: String,
    /// Its exit code.
    #[serde(default)]
    pub exit_code: i64,
    /// How long it may take: milliseconds, at least 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100))]
    pub timeout_ms: Option<u64>,
}

/// How something done elsewhere comes back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Callback {
    /// In which parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    /// How long it is waited for: milliseconds, at least 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1000))]
    pub timeout_ms: Option<u64>,
}

/// What becomes of an answer: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["env"]}, {"required": ["secret_slug"]}, {"required": ["cmd"]}]))]
pub struct Persist {
    /// A variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// A secret, in 2 to 80 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 80))]
    pub secret_slug: Option<String>,
    /// The input of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
}

/// What a machine must have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Requires {
    /// Its system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub os: Vec<Os>,
    /// Its processor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arch: Vec<Arch>,
    /// Its disk, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_disk_mb: Option<u64>,
    /// Its memory, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_memory_mb: Option<u64>,
}

/// A system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Os {
    /// macOS.
    Darwin,
    /// Linux.
    Linux,
    /// Windows.
    Windows,
}

/// A processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// x86-64.
    X64,
    /// 64-bit ARM.
    Arm64,
    /// x86.
    X86,
    /// 32-bit ARM.
    Arm,
}
