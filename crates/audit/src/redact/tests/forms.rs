//! Secrets in many notations: encodings, environments, configuration files, commands and program code.

use super::*;

/// Checks that redaction removes the values of `CANARY` and `TOKEN40` from each text.
#[track_caller]
pub(super) fn check_forms(forms: &[&str]) {
    for form in forms {
        let text = form.replace("CANARY", S).replace("TOKEN40", TOKEN40);
        check_hidden(&json!(text));
        check_hidden(&json!({"log": [format!("first line\n{text}\nlast line")]}));
    }
}

/// A secret without special characters, as generated tokens are.
const TOKEN40: &str = "Zx9kLm2Qp7wAb34cDe56fGh78iJk90LmNoPqRs12";

#[track_caller]
pub(super) fn check_unchanged(texts: &[&str]) {
    for text in texts {
        assert_eq!(Redaction::default().hide(text).map(|hidden| hidden.text), None, "{text}");
    }
}

#[track_caller]
pub(super) fn check_shown(text: &str, shown: &str) {
    let hidden = Redaction::default().hide(text).map(|hidden| hidden.text);
    assert_eq!(hidden.as_deref(), Some(shown), "{text}");
}

#[test]
fn names_whose_secret_word_is_not_the_last_are_recognized() {
    check_forms(&[
        "SECRET_KEY_BASE=CANARY",
        "SECRET_KEY_BASE: CANARY",
        "secret_key_base: CANARY",
        "export RAILS_SECRET_KEY_BASE='CANARY'",
        "SECRET_KEY_FALLBACKS=CANARY",
        "API_KEY_OPENAI=CANARY",
        "TOKEN_GITHUB=CANARY",
        "PASSWORD_ROOT: CANARY",
        "PRIVATE_KEY_PEM=CANARY",
        "TOKEN_B64=CANARY",
        "SECRET_BASE64=CANARY",
        "HMAC_SECRET_HEX=CANARY",
        "token_v2=CANARY",
        "password_hash: CANARY",
        "AUTH_SALT=CANARY",
        "aws secretsmanager create-secret --name x --secret-string CANARY",
    ]);
    check_hidden(&json!({"secretKeyBase": S, "SECRET_KEY_BASE": S, "passwordRoot": S, "API_KEY_OPENAI": S}));
    check_unchanged(&[
        "TOKEN_FILE=/run/secrets/token1",
        "PASSWORD_FILE=secrets42.txt",
        "token_encoding: cl100k_base",
        "TOKEN_ENDPOINT=https://a.example/oauth2/token",
        "password_policy: at-least-12-chars",
        "SECRET_NAME=database-prod-2024",
        "token count: 5",
        "token_count: 12345678",
        "max_tokens=4096",
        "api_key_id: 12345",
        "base=1 KEY_BASE=2",
    ]);
}

#[test]
fn personal_access_tokens_are_recognized_and_patterns_are_not() {
    check_forms(&[
        "GITHUB_PAT=CANARY",
        "export GITLAB_PAT='CANARY'",
        "AZURE_DEVOPS_EXT_PAT=CANARY az devops login",
        "GH_PAT_PROD=CANARY",
        "PAT=CANARY",
        "github_pat: CANARY",
        "githubPat: \"CANARY\"",
        "my_pat = \"CANARY\"",
        "x --pat CANARY",
        "x --github-pat CANARY",
        "x --pat=CANARY",
        "setenv GITHUB_PAT CANARY",
        "$env:GITHUB_PAT = 'CANARY'",
    ]);
    check_shown("GITHUB_PAT=short make", "GITHUB_PAT=[redacted] make");
    check_hidden(
        &json!({"githubPat": S, "GITHUB_PAT": S, "pat": S, "env": [{"name": "GITHUB_PAT", "value": S}]}),
    );
    check_unchanged(&[
        "SPAT=3",
        "compat=1",
        "COMPAT=1",
        "GLIBC_COMPAT=abcdef123456",
        "xpat=123456",
        "the pat of butter",
        "pattern = \"abcd1234\"",
        "FILE_PAT='*.c' make",
        "let file_pat = \"*.toml\";",
        "let pat = \"^[a-z]+$\";",
        "pat: Pattern",
        "PAT: yes",
        "fn match_pat(pat: &Pat) -> bool {",
    ]);
}

#[test]
fn escaped_names_signs_and_values_are_recognized() {
    check_forms(&[
        r#"{"p\u0061ssword":"CANARY"}"#,
        r#"{"\u0070assword": "CANARY"}"#,
        r#"{"\u0070\u0061\u0073\u0073\u0077\u006f\u0072\u0064":"CANARY"}"#,
        r#"{"api\u005Fkey":"CANARY"}"#,
        r#"{"token\u0020":"CANARY"}"#,
        r#"{\"p\\u0061ssword\":\"CANARY\"}"#,
        r#"{\\\"p\\\\u0061ssword\\\":\\\"CANARY\\\"}"#,
        r#"{"\ud835\udc29assword":"CANARY"}"#,
        r#"{"to\x6ben":"CANARY"}"#,
        r#"{"password\u0000":"CANARY"}"#,
        r#"{"to\u{6b}en":"CANARY"}"#,
        r#"{"to\U0000006ben":"CANARY"}"#,
        r#"{"passw\157rd":"CANARY"}"#,
        r#"{"password\u0022:\u0022CANARY\u0022}"#,
        r#"{"url":"https:\/\/me:CANARY@h.example\/x"}"#,
        r#"{"x":"gh\u0070_TOKEN40"}"#,
        "https://a.example/?p%61ssword=CANARY",
        "https://a.example/?%70%61%73%73%77%6f%72%64=CANARY&x=1",
        "https://a.example/?x=1&api%5Fkey=CANARY",
        "https://a.example/?passwor%64=CANARY",
        "https://a.example/?p%2561ssword=CANARY",
        "https://a.example/?p%D0%B0ssword=CANARY",
        "https://a.example/?user%5Bpassword%5D=CANARY",
        "https://a.example/?next=%2Fx%3Fpassword%3DCANARY",
        "curl -d 'a=1&p%61ssword=CANARY' x",
        "https%3A%2F%2Fme%3ACANARY%40h.example%2F",
        "p&#97;ssword=CANARY",
        "<p&#x61;ssword>CANARY</p&#x61;ssword>",
        "<x data=\"{&quot;password&quot;:&quot;CANARY&quot;}\"/>",
        r"https://a.example/?p\u002561ssword=CANARY",
        "https://a.example/?q=%7B%22p%5Cu0061ssword%22%3A%22CANARY%22%7D",
    ]);
    check_hidden(&json!({"p%61ssword": S, "form": {"user%5Bpassword%5D": S}}));
    check_shown(
        r#"{"p\u0061ssword":"hunter2", "n\u0061me":"x"}"#,
        r#"{"p\u0061ssword":"[redacted]", "n\u0061me":"x"}"#,
    );
    check_shown("/x?a=%20b&p%61ssword=abc%20def&c=%2F", "/x?a=%20b&p%61ssword=[redacted]&c=%2F");
    check_unchanged(&[
        r#"{"p\u0061th":"abcdefgh12"}"#,
        r#"{"n\u0061me":"abcdefgh12"}"#,
        r"C:\users\u0061\password",
        "https://a.example/?page%5Bsize%5D=100",
        "https://a.example/?q=p%61th",
        "100%25 of it, printf('%5d: %2d')",
        "the%20password%20is%20wrong",
        "a &amp; b &lt;token&gt;",
    ]);
}

#[test]
fn variables_that_are_set_in_any_shell_are_recognized() {
    check_forms(&[
        "set -x TOKEN CANARY",
        "set -gx TOKEN CANARY",
        "set -gx GITHUB_TOKEN 'CANARY'",
        "set -Ux API_KEY \"CANARY\"",
        "set --export --global API_KEY CANARY",
        "set -g -x API_KEY CANARY; run",
        "fish -c 'set -gx TOKEN CANARY; run'",
        "set API_KEY CANARY",
        "set TOKEN=CANARY",
        "set \"TOKEN=CANARY\"",
        "setenv TOKEN CANARY",
        "$env:TOKEN = 'CANARY'",
        "$Env:API_KEY=\"CANARY\"",
        "${env:TOKEN} = 'CANARY'",
        "Set-Item env:TOKEN CANARY",
        "Set-Item -Path env:TOKEN -Value CANARY",
        "Set-Variable -Name token -Value CANARY",
        "[Environment]::SetEnvironmentVariable(\"TOKEN\", \"CANARY\", \"User\")",
        "docker run -e TOKEN=CANARY x",
        "docker run -eTOKEN=CANARY x",
        "docker run --env TOKEN=CANARY x",
        "docker build --build-arg NPM_TOKEN=CANARY .",
        "declare -x TOKEN=\"CANARY\"",
        "${TOKEN:-CANARY}",
    ]);
    check_shown("set -gx TOKEN abc; run", "set -gx TOKEN [redacted]; run");
    for words in [["set", "-gx", "TOKEN", S], ["set", "-x", "API_KEY", S], ["x", "setenv", "TOKEN", S]] {
        check_hidden(&json!(words));
    }
    check_unchanged(&[
        "set -x",
        "set -euo pipefail",
        "set -x; make token",
        "set -ex\nmake test",
        "set -gx PATH /usr/local/bin $PATH",
        "set -gx TOKEN (cat token.txt)",
        "set -gx TOKEN $OTHER",
        "set the token before you start",
        "set token expiry to one hour",
        "set TOKEN in your shell",
        "setenv PATH /usr/bin",
        "$env:PATH = 'C:\\x'",
    ]);
}

#[test]
fn configuration_files_of_every_kind_are_recognized() {
    check_forms(&[
        "password: CANARY",
        "- password: 'CANARY'",
        "{password: CANARY, a: 1}",
        "password = \"CANARY\"",
        "[db]\npassword = CANARY",
        "db.password=CANARY",
        "db.password CANARY",
        "spring.datasource.password: CANARY",
        "env:\n  - name: API_KEY\n    value: CANARY",
        "{\"name\":\"TOKEN\",\"type\":\"x\",\"value\":\"CANARY\"}",
        "{\"value\":\"CANARY\",\"name\":\"TOKEN\"}",
        "<entry key=\"password\">CANARY</entry>",
        "<property name=\"password\">CANARY</property>",
        "<string name=\"api_key\">CANARY</string>",
        "<key>password</key>\n<string>CANARY</string>",
        "requirepass CANARY",
        "masterauth CANARY",
        "psk=\"CANARY\"",
        "proxy_set_header Authorization \"Bearer CANARY\";",
        "proxy_set_header X-Api-Key CANARY;",
        "RequestHeader set X-Api-Key \"CANARY\"",
        "machine x login y password CANARY",
        "machine x password CANARY login y",
        "machine x\n\tlogin y\n\tpassword CANARY",
        "localhost:5432:*:postgres:CANARY",
        "*:*:*:me:CANARY",
        "db.example:6543:app:me:CANARY",
        "echo \"localhost:5432:*:postgres:CANARY\" > ~/.pgpass",
        "Server=h;Database=d;Uid=a;Pwd=CANARY;",
        "Data Source=h;Password=CANARY",
        "DefaultEndpointsProtocol=https;AccountKey=TOKEN40==;x=1",
        "Endpoint=sb://x/;SharedAccessKey=TOKEN40=;EntityPath=b",
        "PresharedKey = CANARY",
        "api.key=CANARY",
        "password: !!str CANARY",
        "<password><![CDATA[CANARY]]></password>",
        "<setting name=\"ApiKey\"><value>CANARY</value></setting>",
        "\"auth\": {\"token\": \"CANARY\"}",
        "\"password\": {\"current\": \"CANARY\", \"x\": 1}",
        "{\"ParameterKey\":\"DbPassword\",\"ParameterValue\":\"CANARY\"}",
    ]);
    check_shown("requirepass foobared", "requirepass [redacted]");
    check_unchanged(&[
        "<entry key=\"name\">value12345</entry>",
        "<key>name</key><string>value12345</string>",
        "{\"name\":\"USER\",\"type\":\"x\",\"value\":\"someone12\"}",
        "password required",
        "token expired",
        "src/main.rs:10:5:error:foo",
        "lib.rs:1200:fn:a:b1c2d3",
        "12:30:45:123:456 x",
        "fe80:0:0:0:1a2b",
        "the machine asks for a password before login",
        "machine translation password handling",
        "proxy_set_header X-Forwarded-For $remote_addr;",
        "{\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":345}}",
        "\"password\": {\"type\": \"string\", \"minLength\": 12}",
    ]);
}

#[test]
fn secrets_in_program_code_are_recognized() {
    check_forms(&[
        "#define API_KEY \"CANARY\"",
        "#define API_KEY CANARY",
        "#  define WIFI_PASSWORD \"CANARY\"",
        "#define TOKEN (\"CANARY\")",
        "%define api_token CANARY",
        "define('DB_PASSWORD', 'CANARY');",
        "define(\"AUTH_KEY\", \"CANARY\");",
        "php -r \"define('DB_PASSWORD', 'CANARY');\"",
        "setenv(\"TOKEN\", \"CANARY\", 1);",
        "os.environ.setdefault(\"TOKEN\", \"CANARY\")",
        "System.setProperty(\"password\", \"CANARY\")",
        "headers.set(\"Authorization\", \"CANARY\")",
        "headers.set(\"Authorization\", \"Bearer CANARY\")",
        ".header(\"X-Api-Key\", \"CANARY\")",
        "(\"password\", \"CANARY\")",
        "['password', 'CANARY']",
        "const TOKEN: &str = \"CANARY\";",
        "static TOKEN: &'static str = \"CANARY\";",
        "let password: Option<String> = Some(\"CANARY\".into());",
        "char password[32] = \"CANARY\";",
        "char token[] = \"CANARY\";",
        "requests.get(u, auth=('me', 'CANARY'))",
        ".basic_auth(\"me\", Some(\"CANARY\"))",
        "HTTPBasicAuth('me', 'CANARY')",
        "SecretString::from(\"CANARY\")",
        "const token = process.env.TOKEN || \"CANARY\"",
        "TOKEN = os.environ.get(\"TOKEN\") or \"CANARY\"",
        "let token = Token::new('CANARY');",
        "SET PASSWORD FOR x = 'CANARY'",
        "SET PASSWORD FOR 'x'@'h' = PASSWORD('CANARY')",
    ]);
    check_shown("define('DB_PASSWORD', 'correcthorse');", "define('DB_PASSWORD', '[redacted]');");
    check_unchanged(&[
        "#define TOKEN_COUNT 5",
        "#define API_KEY_LENGTH 32",
        "#define MAX_TOKENS 4096",
        "#define TOKEN_H",
        "#define TOKEN token_type_t",
        "#define TOKEN(x) parse(x)",
        "#define PASSWORD_MAX 128",
        "define token handling",
        "[\"username\", \"password\", \"email\"]",
        "fields(\"password\", \"username\")",
        "assert_eq!(\"token\", \"expected\");",
        "int tokens[32] = {0};",
        "const LIMIT: &str = \"abcdef12\";",
        "login(\"someone12\", user.password)",
        "Token::from_str(text1234)",
        "Token::Str(\"offset_dt\")",
        "SecretString::from(text)",
        "# METHOD can be \"md5\", \"password\", \"scram-sha-256\"",
        "['openssl_get_privatekey', 'openssl_x509_checkpurpose', 'x']",
        "path = [\"secrets\", \"secrets/**\", \"src/*/x\"]",
        "Token: ('', 'token'),",
        "$self->{tokens} = $other->{tokens};",
        "let name = \"password\"; let mut value = HeaderValue::from_bytes(b\"12345\").unwrap();",
        "PASS test_name_2",
    ]);
}

#[test]
fn secrets_of_more_commands_are_recognized() {
    check_forms(&[
        "echo CANARY | docker login --password-stdin -u me",
        "echo -n 'CANARY' | gh auth login --with-token",
        "printf '%s' CANARY | sudo -S ls",
        "docker login --password-stdin <<< CANARY",
        "sudo -S ls <<< 'CANARY'",
        "echo CANARY | gh secret set X",
        "aws ssm put-parameter --name x --type SecureString --value CANARY",
        "aws ssm put-parameter --value CANARY --name x",
        "az keyvault secret set --name x --vault-name y --value CANARY",
        "tool set --name db-password --value CANARY",
        "nmcli dev wifi connect x password CANARY",
        "nmcli c modify x wifi-sec.psk CANARY",
        "wpa_passphrase ssid CANARY",
        "consul kv put x/password CANARY",
        "wg set wg0 private-key CANARY",
        "rabbitmqctl add_user me CANARY",
        "sql 'me:CANARY@tcp(h:3306)/db'",
        "jdbc:oracle:thin:me/CANARY@h:1521:x",
        "jdbc:sqlserver://h;user=sa;password=CANARY;",
        "x --password CANARY",
        "x --password=CANARY",
        "curl -u user:CANARY x",
        "Authorization: Basic CANARY",
        "X-Functions-Key: CANARY",
        "Authorization: SharedKey account:CANARY",
    ]);
    check_unchanged(&[
        "echo done12345 | docker login -u me",
        "echo $TOKEN | docker login --password-stdin",
        "echo hello123 | tee x",
        "tool set --name region --value eu-west-1",
        "git log --format='%h:%s@tcp(x)'",
        "X-Idempotency-Key: 0b1c2d3e-0000",
        "nmcli dev wifi list",
    ]);
}

#[test]
fn addresses_that_are_secrets_are_recognized() {
    check_forms(&[
        "https://api.telegram.org/bot123456:CANARY/",
        "https://api.telegram.org/bot123456:AATOKEN40/sendMessage",
        "https://api.telegram.org/file/bot123456789:TOKEN40/x",
        "https://bots.example/bot123456789:TOKEN40/getMe",
        "use 123456789:AATOKEN40 there",
        "https://discord.com/api/webhooks/123456789012345678/CANARY",
        "https://discordapp.com/api/webhooks/123456789012345678/TOKEN40",
        "https://canary.discord.com/api/v10/webhooks/123456789012345678/TOKEN40?wait=true",
        "discord.com/api/webhooks/123456789012345678/TOKEN40",
        "https://hooks.slack.com/services/T00000000/B00000000/TOKEN40",
        "https://hooks.slack.com/workflows/T00000000/A00000000/123456789/TOKEN40",
        "https://hooks.slack.com/triggers/T00000000/123456789/TOKEN40",
        "HTTPS://HOOKS.SLACK.COM/services/T00000000/B00000000/TOKEN40",
        "https://hooks.slack-gov.com/services/T00000000/B00000000/TOKEN40",
        r"https:\/\/hooks.slack.com\/services\/T00000000\/B00000000\/TOKEN40",
        "https://x.webhook.office.com/webhookb2/aaaa-bbbb@cccc/IncomingWebhook/TOKEN40/dddd",
        "https://maker.ifttt.com/trigger/x/with/key/TOKEN40",
        "https://hooks.zapier.com/hooks/catch/123456/Zx9kLm2/",
        "https://hook.eu1.make.com/TOKEN40",
        "https://open.feishu.cn/open-apis/bot/v2/hook/TOKEN40",
        "https://events.pagerduty.com/integration/TOKEN40/enqueue",
        "https://mattermost.example/hooks/TOKEN40",
        "https://mainnet.infura.io/v3/TOKEN40",
        "https://eth-mainnet.g.alchemy.com/v2/TOKEN40",
        "https://a.example/v1/token/TOKEN40",
        "https://oapi.dingtalk.com/robot/send?access_token=TOKEN40",
        "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=TOKEN40",
    ]);
    check_shown(
        "curl https://api.telegram.org/bot123456:AAabc/getMe?x=1",
        "curl https://api.telegram.org/bot123456:[redacted]/getMe?x=1",
    );
    check_shown(
        "curl https://discord.com/api/webhooks/1234/abcd/messages/5 -d x",
        "curl https://discord.com/api/webhooks/1234/[redacted]/messages/5 -d x",
    );
    check_shown("https://hooks.slack.com/services/T0/B0/abc", "https://hooks.slack.com/services/[redacted]");
    check_unchanged(&[
        "https://api.telegram.org/",
        "https://core.telegram.org/bots/api#making-requests",
        "https://discord.com/channels/123456789012345678/123456789012345678",
        "https://discord.com/api/webhooks",
        "https://discord.com/api/v10/webhooks/123456789012345678",
        "https://hooks.slack.com/",
        "https://api.slack.com/messaging/webhooks",
        "https://docs.example/webhooks/introduction-to-webhooks2",
        "https://api.github.com/repos/o/r/hooks/123456789/deliveries",
        "src/hooks/use2FAEnrollmentV2Token3.ts",
        ".git/hooks/pre-commit",
        "robot123456: hello",
        "1700000000:0123456789abcdef0123456789abcdef",
    ]);
}

#[test]
fn tokens_of_known_shapes_are_recognized() {
    check_forms(&[
        "gloas-TOKEN40",
        "glagent-TOKEN40",
        "glffct-TOKEN40",
        "glwt-TOKEN40",
        "api_org_TOKEN40",
        "dp.st.TOKEN40",
        "pat-na1-TOKEN40",
        "sgp_TOKEN40",
        "1//0TOKEN40",
        "MTZx9kLm2Qp7wAb34cDe56fG.Zx9kLm.TOKEN40",
        "abc8Q~TOKEN40",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.TOKEN40",
        "sk-ant-api03-TOKEN40",
        "xoxb-1234-TOKEN40",
    ]);
    check_unchanged(&[
        "ABIA and more",
        "sgp_short",
        "MyVeryLongModuleNameWithoutDigits.Method.AnotherVeryLongMethodNameOfIt",
        "1//0 is no number",
    ]);
}

#[test]
fn ordinary_sentences_stay_as_they_are() {
    check_unchanged(&[
        "the password is wrong",
        "token count: 5",
        "max_tokens=4096",
        "path=/x",
        "PATH=/usr/bin:/bin",
        "git commit -m \"set token handling\"",
        "change the secret, the token, and the key",
        "See \"password\", \"token\" and \"secret\" in the manual",
        "Use the header X-Api-Key for this",
        "A token is sent with every request; see section 5.2",
    ]);
}

#[test]
fn names_of_two_words_elements_and_sentences_are_recognized() {
    check_forms(&[
        "api key: CANARY",
        "API key = CANARY",
        "session_key=CANARY",
        "sessionKey: 'CANARY'",
        "<Password value='CANARY'/>",
        "<add:ApiKey enabled='true' value=\"CANARY\" />",
        "the private key is TOKEN40.",
        "My password is TOKEN40",
        "MACHINE example.org LOGIN me PASSWORD TOKEN40",
        "PASSWORD TOKEN40",
        "tool --password TOKEN40",
        ":passphrase => \"CANARY\"",
        "Set-Cookie: sid=CANARY",
        "BEARER TOKEN40",
        "bEaReR TOKEN40",
    ]);
    check_unchanged(&[
        "primary key: customer_id_number",
        "the foreign key is customer_id2",
        "the session is established2",
        "<Option value='established2'/>",
        "the password is required by the server",
        "the token is invalid, see RFC6750",
    ]);
}
