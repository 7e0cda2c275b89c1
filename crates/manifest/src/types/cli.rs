//! The parts of an AGENT-CLI.md that apply to any command line tool: installation, version, login and setup.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One way to install a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "method", rename_all = "lowercase", deny_unknown_fields)]
pub enum Install {
    /// With Homebrew.
    Brew {
        /// Package name.
        package: String,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With apt.
    Apt {
        /// Package name.
        package: String,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With dnf.
    Dnf {
        /// Package name.
        package: String,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With pacman.
    Pacman {
        /// Package name.
        package: String,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With Chocolatey.
    Choco {
        /// Package name.
        package: String,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With Scoop.
    Scoop {
        /// Package name.
        package: String,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With npm.
    Npm {
        /// Package name.
        package: String,
        /// Installs for all users: true or false.
        #[serde(default)]
        global: bool,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With pip.
    Pip {
        /// Package name.
        package: String,
        /// Installs for this user only: true or false.
        #[serde(default)]
        user: bool,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With Cargo.
    Cargo {
        /// Package name.
        package: String,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With Go.
    Go {
        /// Package name.
        package: String,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// With a script from a URL.
    Curl {
        /// Address.
        url: String,
        /// SHA-256 of the script: 64 lower-case hexadecimal digits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(regex(pattern = r"^[a-f0-9]{64}$"))]
        verify_sha256: Option<String>,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// From an archive at a URL.
    Download {
        /// Address.
        url: String,
        /// Program in the archive.
        extract_bin: String,
        /// SHA-256 of the archive: 64 lower-case hexadecimal digits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(regex(pattern = r"^[a-f0-9]{64}$"))]
        verify_sha256: Option<String>,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
    /// It is already installed.
    Vendored {
        /// The path.
        path: String,
        /// Failure is ignored: true or false.
        #[serde(default)]
        experimental: bool,
    },
}

/// Check of a program's version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VersionCheck {
    /// Command that prints the version.
    pub cmd: String,
    /// Regular expression whose first group is the version.
    pub parse: String,
    /// Accepted versions, such as ">=1.2.0 <2.0.0".
    pub range: String,
    /// Timeout of the command in milliseconds, at least 100.
    #[serde(default = "five_seconds")]
    #[schemars(range(min = 100))]
    pub timeout_ms: u64,
}

fn five_seconds() -> u64 {
    5000
}

/// Login of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Auth {
    /// File or name of the credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#ref: Option<String>,
    /// Signs of a completed login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<AuthState>,
    /// Login procedure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<Login>,
    /// Refresh of the login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh: Option<Refresh>,
    /// Detection of an expired login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<Expiry>,
}

/// Signs of a completed login.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthState {
    /// Files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Names of environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
}

/// Login of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// Command.
    pub cmd: String,
    /// Interactive: true or false.
    #[serde(default)]
    pub interactive: bool,
    /// Needs a callback from a browser: true or false.
    #[serde(default)]
    pub requires_callback_url: bool,
    /// Test for success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completes_when: Option<CompletesWhen>,
}

/// Test for success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletesWhen {
    /// Command that checks it.
    pub cmd: String,
    /// Expected exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
}

/// Refresh of a login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Refresh {
    /// Command.
    pub cmd: String,
    /// Interval, such as PT1H.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^P(?:T)?[^\s\u{feff}]+$"))]
    pub every: Option<String>,
}

/// Detection of an expired login.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expiry {
    /// `exit_code:` and a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^exit_code:[0-9]+$"))]
    pub detect: Option<String>,
}

/// A setup step after the installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum SetupStep {
    /// A command.
    Cmd {
        /// Id: up to 64 lower-case letters, digits and hyphens.
        #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
        id: String,
        /// Command.
        cmd: String,
        /// Description of up to 2000 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(max = 2000))]
        description: Option<String>,
        /// Condition under which the step is skipped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        skip_if: Option<SkipIf>,
        /// Timeout in milliseconds, at least 100.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 100))]
        timeout_ms: Option<u64>,
        /// Interactive: true or false.
        #[serde(default)]
        interactive: bool,
        /// Destination of the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        persist: Option<Persist>,
    },
    /// A question.
    Prompt {
        /// Id: up to 64 lower-case letters, digits and hyphens.
        #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
        id: String,
        /// Question.
        prompt: String,
        /// Description of up to 2000 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(max = 2000))]
        description: Option<String>,
        /// Type of the answer.
        #[serde(default)]
        r#type: PromptType,
        /// Default answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        default: Option<String>,
        /// Permitted answers: a list, or a map with a cmd that prints them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Choices>,
        /// Condition under which the step is skipped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        skip_if: Option<SkipIf>,
        /// Destination of the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        persist: Option<Persist>,
    },
    /// A login in a browser.
    Oauth {
        /// Id: up to 64 lower-case letters, digits and hyphens.
        #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
        id: String,
        /// Name of the resulting secret, 2 to 80 characters.
        #[schemars(length(min = 2, max = 80))]
        secret_slug: String,
        /// Description of up to 2000 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(max = 2000))]
        description: Option<String>,
        /// Condition under which the step is skipped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        skip_if: Option<SkipIf>,
    },
    /// A step in a browser.
    External {
        /// Id: up to 64 lower-case letters, digits and hyphens.
        #[schemars(regex(pattern = r"^[a-z0-9][a-z0-9-]{0,63}$"))]
        id: String,
        /// Its URL.
        url: String,
        /// Description of up to 2000 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(length(max = 2000))]
        description: Option<String>,
        /// Callback that returns the result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        callback: Option<Callback>,
        /// Condition under which the step is skipped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        skip_if: Option<SkipIf>,
        /// Destination of the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        persist: Option<Persist>,
    },
}

/// Type of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PromptType {
    /// A string.
    #[default]
    Text,
    /// One of several choices.
    Select,
    /// Yes or no.
    Boolean,
    /// A secret.
    Secret,
}

/// Permitted answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Choices {
    /// A list.
    List(#[schemars(length(min = 1), inner(length(min = 1)))] Vec<String>),
    /// The output of a command.
    Command(ChoicesFrom),
}

/// A command that prints the permitted answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChoicesFrom {
    /// Command.
    pub cmd: String,
    /// Timeout in milliseconds, at least 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100))]
    pub timeout_ms: Option<u64>,
}

/// Condition under which a step is skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SkipIf {
    /// Command that checks it.
    pub cmd: String,
    /// Expected exit code.
    #[serde(default)]
    pub exit_code: i64,
    /// Timeout in milliseconds, at least 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100))]
    pub timeout_ms: Option<u64>,
}

/// Callback that returns the result of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Callback {
    /// Name of the parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    /// Timeout in milliseconds, at least 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1000))]
    pub timeout_ms: Option<u64>,
}

/// Destination of an answer: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["env"]}, {"required": ["secret_slug"]}, {"required": ["cmd"]}]))]
pub struct Persist {
    /// An environment variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// A secret: its name, 2 to 80 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 80))]
    pub secret_slug: Option<String>,
    /// stdin of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
}

/// Requirements on a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Requires {
    /// Operating system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub os: Vec<Os>,
    /// Processor architecture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arch: Vec<Arch>,
    /// Disk space in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_disk_mb: Option<u64>,
    /// Memory in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_memory_mb: Option<u64>,
}

/// An operating system.
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

/// A processor architecture.
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
