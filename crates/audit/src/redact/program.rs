//! Options of known programs whose arguments are secrets.

/// Which part of an argument is the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecretPart {
    Value,
    /// The whole argument of an option that any program may have. An ordinary word does not count.
    Named,
    Login,
    /// The part after a colon. Without a colon, the whole argument if it looks like a generated token.
    LoginOrToken,
    Percent,
    Comma,
    Pass,
    Equals,
    /// The part after a slash, up to an at sign.
    Slash,
    /// The whole argument if it is quoted, or mixes letters and other characters. Ordinary words and names of
    /// program code do not count.
    Mixed,
    Token,
}

/// Where the secret is among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecretPlace {
    /// In the same argument as the option, or in the next one.
    Either,
    /// In the same argument as the option.
    Attached,
    Next,
    /// Like `Either`, but only if this word precedes the option.
    After(&'static str),
    /// The argument after this word, which is not an option.
    Follows(&'static str),
    /// Every `NAME=…` after this word.
    Assigned(&'static str),
    /// Every argument after this word that is not an option.
    Behind(&'static str),
    /// Nowhere. If the flag with this letter is present, one argument less precedes the secret.
    CountedFlag,
    /// The argument with this number, not counting options.
    Word(u8),
    /// The second argument after this word, not counting options.
    Second(&'static str),
    /// Like `Second`, if the command has the flag `--secret` anywhere.
    SecondIfSecret(&'static str),
    /// The argument after the name of a network share, unless it begins with a slash.
    AfterShare,
}

pub(super) type SecretOptions = &'static [(&'static str, SecretPlace, SecretPart)];

const LOGIN: SecretOptions = &[
    ("-u", SecretPlace::Either, SecretPart::Login),
    ("-U", SecretPlace::Either, SecretPart::Login),
    ("-a", SecretPlace::Next, SecretPart::Login),
];
const HTTPIE: SecretOptions = &[
    ("-a", SecretPlace::Next, SecretPart::LoginOrToken),
    ("--auth", SecretPlace::Either, SecretPart::LoginOrToken),
];
pub(super) const CURL: SecretOptions = &[
    ("-u", SecretPlace::Either, SecretPart::Login),
    ("-U", SecretPlace::Either, SecretPart::Login),
    ("-E", SecretPlace::Either, SecretPart::Login),
    ("--cert", SecretPlace::Either, SecretPart::Login),
    ("-b", SecretPlace::Either, SecretPart::Equals),
    ("--cookie", SecretPlace::Either, SecretPart::Equals),
];
/// Options of `curl` with one letter and no argument. Another option may follow in the same word: `-sSu`.
pub(super) const CURL_FLAGS: &str = "sSfLkivgGIjJNOqna0123469#";
/// `mysql -pPASSWORD`: the password must be in the same word as `-p`. In `mysql -p NAME` the name is that of
/// a database.
const ATTACHED: SecretOptions =
    &[("-p", SecretPlace::Attached, SecretPart::Value), ("-hp", SecretPlace::Attached, SecretPart::Value)];
const MYSQL_ADMIN: SecretOptions = &[
    ("-p", SecretPlace::Attached, SecretPart::Value),
    ("", SecretPlace::Follows("password"), SecretPart::Named),
];
const SMALL: SecretOptions = &[("-p", SecretPlace::Either, SecretPart::Value)];
const CAPITAL: SecretOptions = &[("-P", SecretPlace::Either, SecretPart::Value)];
const PLINK: SecretOptions = &[("-pw", SecretPlace::Next, SecretPart::Value)];
const REDIS: SecretOptions = &[
    ("-a", SecretPlace::Either, SecretPart::Value),
    ("", SecretPlace::Behind("AUTH"), SecretPart::Value),
    ("", SecretPlace::Behind("auth"), SecretPart::Value),
];
const REGISTRY: SecretOptions = &[
    ("-p", SecretPlace::After("login"), SecretPart::Value),
    ("--creds", SecretPlace::Either, SecretPart::Login),
    ("--src-creds", SecretPlace::Either, SecretPart::Login),
    ("--dest-creds", SecretPlace::Either, SecretPart::Login),
];
const AZURE: SecretOptions = &[
    ("-p", SecretPlace::After("login"), SecretPart::Value),
    ("--value", SecretPlace::After("secret"), SecretPart::Value),
];
const AWS: SecretOptions = &[("--value", SecretPlace::After("put-parameter"), SecretPart::Value)];
const LDAP: SecretOptions = &[("-w", SecretPlace::Either, SecretPart::Value)];
const SAMBA: SecretOptions =
    &[("-U", SecretPlace::Either, SecretPart::Percent), ("", SecretPlace::AfterShare, SecretPart::Value)];
const LFTP: SecretOptions = &[("-u", SecretPlace::Either, SecretPart::Comma)];
const SNMP: SecretOptions =
    &[("-A", SecretPlace::Either, SecretPart::Value), ("-X", SecretPlace::Either, SecretPart::Value)];
const TOKEN: SecretOptions = &[("-t", SecretPlace::After("auth"), SecretPart::Value)];
const OPENSSL: SecretOptions = &[
    ("-passin", SecretPlace::Next, SecretPart::Pass),
    ("-passout", SecretPlace::Next, SecretPart::Pass),
    ("-pass", SecretPlace::Next, SecretPart::Pass),
    ("-k", SecretPlace::Next, SecretPart::Value),
    ("-K", SecretPlace::Next, SecretPart::Value),
];
const SSH_KEYGEN: SecretOptions =
    &[("-N", SecretPlace::Either, SecretPart::Value), ("-P", SecretPlace::Either, SecretPart::Value)];
const LOGIN_TOKEN: SecretOptions = &[("", SecretPlace::Follows("login"), SecretPart::Value)];
const VAULT: SecretOptions = &[
    ("", SecretPlace::Follows("login"), SecretPart::Value),
    ("", SecretPlace::Assigned("put"), SecretPart::Value),
    ("", SecretPlace::Assigned("patch"), SecretPart::Value),
    // The written value may be a secret or a setting.
    ("", SecretPlace::Assigned("write"), SecretPart::Token),
];
const PULUMI: SecretOptions = &[("", SecretPlace::SecondIfSecret("set"), SecretPart::Value)];
const NGROK: SecretOptions = &[
    ("", SecretPlace::Follows("add-authtoken"), SecretPart::Value),
    ("", SecretPlace::Follows("authtoken"), SecretPart::Value),
];
/// Samba and Windows: `net use X: \\host\share PASSWORD`, `net user NAME PASSWORD`.
const NET: SecretOptions = &[
    ("-U", SecretPlace::Either, SecretPart::Percent),
    ("", SecretPlace::AfterShare, SecretPart::Value),
    ("", SecretPlace::Second("user"), SecretPart::Mixed),
];
const SECRET_SETTINGS: SecretOptions = &[
    ("", SecretPlace::Assigned("secrets"), SecretPart::Value),
    ("", SecretPlace::Second("set"), SecretPart::Mixed),
];
const GITHUB: SecretOptions = &[
    ("-b", SecretPlace::After("secret"), SecretPart::Value),
    ("--body", SecretPlace::After("secret"), SecretPart::Value),
];
const SECRETS: SecretOptions = &[("", SecretPlace::Assigned("secrets"), SecretPart::Value)];
const KUBERNETES: SecretOptions = &[
    ("--from-literal=", SecretPlace::Attached, SecretPart::Equals),
    ("--from-literal", SecretPlace::Next, SecretPart::Equals),
    ("-p", SecretPlace::After("login"), SecretPart::Value),
];
const SQLPLUS: SecretOptions = &[("", SecretPlace::Word(1), SecretPart::Slash)];
const HTPASSWD: SecretOptions =
    &[("", SecretPlace::Word(3), SecretPart::Value), ("n", SecretPlace::CountedFlag, SecretPart::Value)];
const RABBITMQ: SecretOptions = &[("", SecretPlace::Word(3), SecretPart::Value)];
const PUBLISH: SecretOptions = &[
    ("-p", SecretPlace::After("publish"), SecretPart::Value),
    ("-t", SecretPlace::After("publish"), SecretPart::Value),
    ("-a", SecretPlace::After("publish"), SecretPart::Value),
];
const SHORT_TOKEN: SecretOptions = &[("-t", SecretPlace::Next, SecretPart::Value)];
/// The option takes a key, or the name of a stored key.
const GEM: SecretOptions =
    &[("--key", SecretPlace::Either, SecretPart::Token), ("-k", SecretPlace::Next, SecretPart::Token)];
/// The token follows the subcommand without an option between them. Options may precede the subcommand.
const TOKEN_ARGUMENT: SecretOptions = &[
    ("", SecretPlace::Behind("login"), SecretPart::Token),
    ("", SecretPlace::Behind("auth"), SecretPart::Token),
];
const WPA: SecretOptions = &[("", SecretPlace::Word(2), SecretPart::Value)];
const WINDOWS: SecretOptions = &[
    ("/p:", SecretPlace::Attached, SecretPart::Value),
    ("/pass:", SecretPlace::Attached, SecretPart::Value),
    ("/password:", SecretPlace::Attached, SecretPart::Value),
    ("/rp", SecretPlace::Next, SecretPart::Value),
];

/// Returns the options of a program that take secrets. Returns `None` for an unknown program.
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
        // Programs that take settings as arguments. The name of a setting shows if its value is a secret.
        "consul" | "rclone" | "wg" | "npm" | "pnpm" | "yarn" | "git" | "pip" | "pip3" | "gcloud"
        | "composer" | "conda" | "bundle" | "heroku" | "firebase" => &[],
        // Programs that take names of variables as arguments. The name of a variable shows if its value is a
        // secret.
        _ if settings_of(program).is_some() => &[],
        // The secret is the first argument.
        "ConvertTo-SecureString" => &[("", SecretPlace::Next, SecretPart::Value)],
        _ => return None,
    })
}

/// Returns how a program reads a value that follows the name of a variable.
pub(super) fn settings_of(program: &str) -> Option<Settings> {
    match program {
        "setx" | "setenv" | "ENV" | "ARG" | "nmcli" => Some(Settings::Names(SecretPart::Named)),
        "Set-Item" | "set-item" | "New-Item" | "new-item" | "Set-Variable" | "set-variable"
        | "New-Variable" | "new-variable" | "Set-ItemProperty" | "set-itemproperty" => {
            Some(Settings::Names(SecretPart::Named))
        }
        "#define" | "%define" | "%global" | "!define" => Some(Settings::First(SecretPart::Mixed)),
        // `set` sets a variable in fish, Tcl and other languages. In a sentence, `set` is an ordinary word.
        "set" => Some(Settings::First(SecretPart::Mixed)),
        _ => None,
    }
}

/// Returns `true` if `set` with this option sets a variable: `-gx`, `--export`. With `-e` or `-o` it does
/// not.
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

/// Which arguments of a program are settings, and how the values of the settings are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settings {
    /// Every argument may be a setting.
    Names(SecretPart),
    /// Only the first argument that is not an option is a setting.
    First(SecretPart),
}

/// Returns `true` for words that are followed by settings of the form `NAME=…`.
pub(super) fn begins_settings(word: &str) -> bool {
    matches!(word, "set" | "config" | "config:set" | "add" | "put")
}
