//! The options of known programs whose arguments are secrets.

/// The part of an argument that is the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    Value,
    /// The whole argument of an option that any program may have. A word of a sentence does not count.
    Named,
    Login,
    /// The part after a colon, or the whole argument if it looks like a generated token.
    LoginOrToken,
    Percent,
    Comma,
    Pass,
    Equals,
    /// The part after a slash, up to an at sign.
    Slash,
    /// The whole argument if it is quoted, or mixes letters and other characters. Words of sentences and
    /// names of program code do not.
    Mixed,
    Token,
}

/// The position of a secret among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecretPlace {
    /// In the same argument as the option, or in the next one.
    Either,
    /// In the same argument as the option.
    Attached,
    Next,
    /// Like `Either`, if the option follows this word.
    After(&'static str),
    /// The argument after this word. There is no option.
    Follows(&'static str),
    /// Every `NAME=…` after this word.
    Assigned(&'static str),
    /// Every argument after this word that is not an option.
    Behind(&'static str),
    /// No position: a flag with this letter replaces an argument.
    CountedFlag,
    /// The argument with this number. Options are not counted.
    Word(u8),
    /// The second argument after this word. Options are not counted.
    Second(&'static str),
    /// Like `Second`, if there is a flag `--secret` anywhere.
    SecondIfSecret(&'static str),
    /// The argument after the name of a network share, unless it begins with a slash.
    AfterShare,
}

pub(super) type SecretOptions = &'static [(&'static str, SecretPlace, Takes)];

const LOGIN: SecretOptions = &[
    ("-u", SecretPlace::Either, Takes::Login),
    ("-U", SecretPlace::Either, Takes::Login),
    ("-a", SecretPlace::Next, Takes::Login),
];
const HTTPIE: SecretOptions =
    &[("-a", SecretPlace::Next, Takes::LoginOrToken), ("--auth", SecretPlace::Either, Takes::LoginOrToken)];
pub(super) const CURL: SecretOptions = &[
    ("-u", SecretPlace::Either, Takes::Login),
    ("-U", SecretPlace::Either, Takes::Login),
    ("-E", SecretPlace::Either, Takes::Login),
    ("--cert", SecretPlace::Either, Takes::Login),
    ("-b", SecretPlace::Either, Takes::Equals),
    ("--cookie", SecretPlace::Either, Takes::Equals),
];
/// Options of `curl` with one letter and without an argument. They may precede others in one word: `-sSu`.
pub(super) const CURL_FLAGS: &str = "sSfLkivgGIjJNOqna0123469#";
/// A password must be in the same word as `-p`: `mysql -p NAME` prompts for it, and the name is that of a
/// database.
const ATTACHED: SecretOptions =
    &[("-p", SecretPlace::Attached, Takes::Value), ("-hp", SecretPlace::Attached, Takes::Value)];
const MYSQL_ADMIN: SecretOptions =
    &[("-p", SecretPlace::Attached, Takes::Value), ("", SecretPlace::Follows("password"), Takes::Named)];
const SMALL: SecretOptions = &[("-p", SecretPlace::Either, Takes::Value)];
const CAPITAL: SecretOptions = &[("-P", SecretPlace::Either, Takes::Value)];
const PLINK: SecretOptions = &[("-pw", SecretPlace::Next, Takes::Value)];
const REDIS: SecretOptions = &[
    ("-a", SecretPlace::Either, Takes::Value),
    ("", SecretPlace::Behind("AUTH"), Takes::Value),
    ("", SecretPlace::Behind("auth"), Takes::Value),
];
const REGISTRY: SecretOptions = &[
    ("-p", SecretPlace::After("login"), Takes::Value),
    ("--creds", SecretPlace::Either, Takes::Login),
    ("--src-creds", SecretPlace::Either, Takes::Login),
    ("--dest-creds", SecretPlace::Either, Takes::Login),
];
const AZURE: SecretOptions = &[
    ("-p", SecretPlace::After("login"), Takes::Value),
    ("--value", SecretPlace::After("secret"), Takes::Value),
];
const AWS: SecretOptions = &[("--value", SecretPlace::After("put-parameter"), Takes::Value)];
const LDAP: SecretOptions = &[("-w", SecretPlace::Either, Takes::Value)];
const SAMBA: SecretOptions =
    &[("-U", SecretPlace::Either, Takes::Percent), ("", SecretPlace::AfterShare, Takes::Value)];
const LFTP: SecretOptions = &[("-u", SecretPlace::Either, Takes::Comma)];
const SNMP: SecretOptions =
    &[("-A", SecretPlace::Either, Takes::Value), ("-X", SecretPlace::Either, Takes::Value)];
const TOKEN: SecretOptions = &[("-t", SecretPlace::After("auth"), Takes::Value)];
const OPENSSL: SecretOptions = &[
    ("-passin", SecretPlace::Next, Takes::Pass),
    ("-passout", SecretPlace::Next, Takes::Pass),
    ("-pass", SecretPlace::Next, Takes::Pass),
    ("-k", SecretPlace::Next, Takes::Value),
    ("-K", SecretPlace::Next, Takes::Value),
];
const SSH_KEYGEN: SecretOptions =
    &[("-N", SecretPlace::Either, Takes::Value), ("-P", SecretPlace::Either, Takes::Value)];
const LOGIN_TOKEN: SecretOptions = &[("", SecretPlace::Follows("login"), Takes::Value)];
const VAULT: SecretOptions = &[
    ("", SecretPlace::Follows("login"), Takes::Value),
    ("", SecretPlace::Assigned("put"), Takes::Value),
    ("", SecretPlace::Assigned("patch"), Takes::Value),
    // The value that is written may be a secret or a setting.
    ("", SecretPlace::Assigned("write"), Takes::Token),
];
const PULUMI: SecretOptions = &[("", SecretPlace::SecondIfSecret("set"), Takes::Value)];
const NGROK: SecretOptions = &[
    ("", SecretPlace::Follows("add-authtoken"), Takes::Value),
    ("", SecretPlace::Follows("authtoken"), Takes::Value),
];
/// Samba and Windows: `net use X: \\host\share PASSWORD`, `net user NAME PASSWORD`.
const NET: SecretOptions = &[
    ("-U", SecretPlace::Either, Takes::Percent),
    ("", SecretPlace::AfterShare, Takes::Value),
    ("", SecretPlace::Second("user"), Takes::Mixed),
];
const SECRET_SETTINGS: SecretOptions =
    &[("", SecretPlace::Assigned("secrets"), Takes::Value), ("", SecretPlace::Second("set"), Takes::Mixed)];
const GITHUB: SecretOptions = &[
    ("-b", SecretPlace::After("secret"), Takes::Value),
    ("--body", SecretPlace::After("secret"), Takes::Value),
];
const SECRETS: SecretOptions = &[("", SecretPlace::Assigned("secrets"), Takes::Value)];
const KUBERNETES: SecretOptions = &[
    ("--from-literal=", SecretPlace::Attached, Takes::Equals),
    ("--from-literal", SecretPlace::Next, Takes::Equals),
    ("-p", SecretPlace::After("login"), Takes::Value),
];
const SQLPLUS: SecretOptions = &[("", SecretPlace::Word(1), Takes::Slash)];
const HTPASSWD: SecretOptions =
    &[("", SecretPlace::Word(3), Takes::Value), ("n", SecretPlace::CountedFlag, Takes::Value)];
const RABBITMQ: SecretOptions = &[("", SecretPlace::Word(3), Takes::Value)];
const PUBLISH: SecretOptions = &[
    ("-p", SecretPlace::After("publish"), Takes::Value),
    ("-t", SecretPlace::After("publish"), Takes::Value),
    ("-a", SecretPlace::After("publish"), Takes::Value),
];
const SHORT_TOKEN: SecretOptions = &[("-t", SecretPlace::Next, Takes::Value)];
/// The option contains a key, or the name of a stored key.
const GEM: SecretOptions =
    &[("--key", SecretPlace::Either, Takes::Token), ("-k", SecretPlace::Next, Takes::Token)];
/// Without an option after the subcommand. There may be options before the subcommand.
const TOKEN_ARGUMENT: SecretOptions =
    &[("", SecretPlace::Behind("login"), Takes::Token), ("", SecretPlace::Behind("auth"), Takes::Token)];
const WPA: SecretOptions = &[("", SecretPlace::Word(2), Takes::Value)];
const WINDOWS: SecretOptions = &[
    ("/p:", SecretPlace::Attached, Takes::Value),
    ("/pass:", SecretPlace::Attached, Takes::Value),
    ("/password:", SecretPlace::Attached, Takes::Value),
    ("/rp", SecretPlace::Next, Takes::Value),
];

/// Returns the options of a program that contain secrets. Returns `None` for an unknown program.
pub(super) fn options(program: &str) -> Option<SecretOptions> {
    Some(match program {
        "curl" => CURL,
        "wget" | "ab" | "siege" | "etcdctl" => LOGIN,
        "http" | "https" | "xh" | "xhs" | "httpie" => HTTPIE,
        "mysqladmin" | "mariadb-admin" => MYSQL_ADMIN,
        "mysql" | "mysqldump" | "mysqlimport" | "mysqlshow" | "mysqlcheck" | "mysqlsh" | "mariadb"
        | "mariadb-dump" | "mycli" | "7z" | "7za" | "7zr" | "7zz" | "rar" | "unrar" => ATTACHED,
        "sshpass" | "mongo" | "mongosh" | "mongodump" | "mongorestore" | "mongoexport" | "mongoimport"
        | "mongostat" | "cqlsh" | "rdesktop" | "psexec" | "useradd" | "usermod" | "smbmap" | "ncftp"
        | "ncftpput" | "ncftpget" | "twine" => SMALL,
        "zip" | "unzip" | "zipcloak" | "sqlcmd" | "bcp" | "tsql" | "osql" | "ipmitool" | "mosquitto_pub"
        | "mosquitto_sub" | "p4" => CAPITAL,
        "plink" | "pscp" | "psftp" | "putty" => PLINK,
        "redis-cli" | "valkey-cli" | "keydb-cli" => REDIS,
        "docker" | "podman" | "buildah" | "skopeo" | "nerdctl" | "helm" | "oras" | "crane" | "regctl"
        | "cf" | "faas-cli" | "argocd" => REGISTRY,
        "az" => AZURE,
        "aws" => AWS,
        "kubectl" | "oc" => KUBERNETES,
        "ssh-keygen" => SSH_KEYGEN,
        "cargo" => LOGIN_TOKEN,
        "vault" | "bao" => VAULT,
        "pulumi" => PULUMI,
        "ngrok" => NGROK,
        "net" => NET,
        "doppler" | "infisical" => SECRET_SETTINGS,
        "gh" => GITHUB,
        "fly" | "flyctl" => SECRETS,
        "sqlplus" => SQLPLUS,
        "htpasswd" => HTPASSWD,
        "rabbitmqctl" => RABBITMQ,
        "poetry" | "uv" | "hatch" => PUBLISH,
        "vercel" | "codecov" | "codecovcli" => SHORT_TOKEN,
        "gem" => GEM,
        "wandb" | "snyk" => TOKEN_ARGUMENT,
        "wpa_passphrase" => WPA,
        "ldapsearch" | "ldapmodify" | "ldapadd" | "ldapdelete" | "ldappasswd" | "ldapwhoami"
        | "ldapcompare" => LDAP,
        "smbclient" | "rpcclient" | "smbget" | "wmic" | "winexe" => SAMBA,
        "lftp" => LFTP,
        "snmpget" | "snmpset" | "snmpwalk" | "snmpbulkwalk" | "snmptrap" => SNMP,
        "doctl" | "glab" => TOKEN,
        "openssl" => OPENSSL,
        "xfreerdp" | "xfreerdp3" | "wfreerdp" | "cmdkey" | "schtasks" => WINDOWS,
        // Programs whose settings are judged by their names.
        "consul" | "rclone" | "wg" | "npm" | "pnpm" | "yarn" | "git" | "pip" | "pip3" | "gcloud"
        | "composer" | "conda" | "bundle" | "heroku" | "firebase" => &[],
        // Programs whose arguments are judged by the names of settings.
        _ if settings_of(program).is_some() => &[],
        // The first argument is the secret.
        "ConvertTo-SecureString" => &[("", SecretPlace::Next, Takes::Value)],
        _ => return None,
    })
}

/// Returns how a program reads a value that follows the name of a variable.
pub(super) fn settings_of(program: &str) -> Option<Settings> {
    match program {
        "setx" | "setenv" | "ENV" | "ARG" | "nmcli" => Some(Settings::Names(Takes::Named)),
        "Set-Item" | "set-item" | "New-Item" | "new-item" | "Set-Variable" | "set-variable"
        | "New-Variable" | "new-variable" | "Set-ItemProperty" | "set-itemproperty" => {
            Some(Settings::Names(Takes::Named))
        }
        "#define" | "%define" | "%global" | "!define" => Some(Settings::First(Takes::Mixed)),
        // `set` sets a variable in fish, Tcl and others. In a sentence it is an ordinary word.
        "set" => Some(Settings::First(Takes::Mixed)),
        _ => None,
    }
}

/// Returns `true` if an option of `set` sets a variable: `-gx`, `--export`. `-e` and `-o` do not.
pub(super) fn sets_variable(option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(name) => {
            matches!(name, "export" | "global" | "local" | "universal" | "function" | "unexport" | "path")
        }
        None => option.strip_prefix('-').is_some_and(|letters| {
            letters.bytes().all(|byte| b"xgUlfuaSp".contains(&byte))
                && letters.bytes().any(|byte| b"xgUlfu".contains(&byte))
        }),
    }
}

/// The place where a program expects names of settings, and the way their values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settings {
    /// Every argument may be a setting.
    Names(Takes),
    /// Only the first argument that is not an option is a setting.
    First(Takes),
}

/// Returns `true` for words that settings with names follow.
pub(super) fn begins_settings(word: &str) -> bool {
    matches!(word, "set" | "config" | "config:set" | "add" | "put")
}
