//! Secrets in documents, in shell expansions, and after options of further programs.

use super::forms::{check_forms, check_shown, check_unchanged};
use super::*;

#[test]
fn names_and_values_with_marks_of_markdown_are_recognized() {
    check_forms(&[
        "**password**: CANARY",
        "**Password:** CANARY",
        "- **Database password**: `CANARY`",
        "* `password`: `CANARY`",
        "`password:` CANARY",
        "`password`: CANARY.",
        "***api_key***: **CANARY**",
        "__password__: CANARY",
        "__password:__ CANARY",
        "~~token~~: CANARY",
        "> **token**: 'CANARY'",
    ]);
    check_shown("**password**: `hunter2`", "**password**: `[redacted]`");
    check_unchanged(&[
        "- `token`: authentication token of the user",
        "- **password**: required",
        "**Token:** `Option<String>`",
        "* `password`: string, at least 8 letters",
        "- `api_key`: see https://a.example/page2",
        "**Step 2**: `abc123def`",
        "`token`: `TokenKind`",
    ]);
}

#[test]
fn tables_are_read_by_rows_and_by_columns() {
    check_forms(&[
        "| password | CANARY |",
        "|password| CANARY|",
        "| host | db |\n| password | `CANARY` |\n| port | 5432 |",
        "| **api key** | CANARY | since 2024 |",
        "| user | password |\n|------|:--------:|\n| me | CANARY |",
        "| user | token | note |\n|---|---|---|\n| a | TOKEN40 | x |\n| b | `CANARY` | y |",
        " user | password \n------+----------\n me   | CANARY\n(1 row)",
        "+------+----------+\n| user | password |\n+------+----------+\n| me | CANARY |\n+------+----------+",
    ]);
    check_shown("| password | p4ss!word |", "| password | [redacted] |");
    check_unchanged(&[
        "| password | required |",
        "| token | the name of it | v1 |",
        "| option | default |\n|---|---|\n| --token | none |\n| --retries | 3 |",
        "| token | count |\n|---|---|\n| word | 17 |",
        "cat password | sha256sum",
        "cat token | base64 | grep abc12345",
        "| path | bytes |\n|---|---|\n| src/a1b2c3d4.rs | 12 |",
    ]);
}

#[test]
fn sentences_with_a_colon_a_dash_or_parentheses_are_recognized() {
    check_forms(&[
        "password is: CANARY",
        "the token is: CANARY",
        "The password was CANARY.",
        "API key - CANARY",
        "password \u{2014} CANARY",
        "token -> CANARY",
        "password (CANARY)",
        "log in with the password (CANARY), please",
        "the root password is CANARY",
    ]);
    check_unchanged(&[
        "the token is: invalid",
        "password (required)",
        "token (sha256)",
        "token (OAuth2.0)",
        "token (RFC6750)",
        "password (at least 8 letters)",
        "the key (base64url)",
        "token -> ../secrets/token1",
        "password - secrets/db2024",
        "a token (see section 5.2)",
        "the token was expired",
    ]);
}

#[test]
fn signs_and_blanks_of_other_scripts_are_like_those_of_ascii() {
    check_forms(&[
        "password\u{ff1a}CANARY",
        "password\u{ff1a} CANARY",
        "password\u{ff1d}CANARY",
        "password\u{a0}=\u{a0}CANARY",
        "password\u{202f}: CANARY",
        "password:\u{3000}CANARY",
        "{\"password\"\u{a0}:\u{a0}\"CANARY\"}",
        "curl\u{a0}-u\u{a0}me:CANARY x",
    ]);
    check_shown("a\u{a0}b password\u{ff1a}hunter2hunter2 c", "a\u{a0}b password\u{ff1a}[redacted] c");
    check_unchanged(&["na\u{ef}ve\u{a0}: caf\u{e9}", "時刻\u{ff1a}12:30", "path\u{ff1a}/tmp/a1b2c3d4"]);
}

#[test]
fn literal_texts_in_shell_expansions_are_recognized() {
    check_forms(&[
        "PASSWORD=$(echo CANARY)",
        "PASSWORD=\"$(echo 'CANARY')\" make",
        "PASSWORD=$(printf %s CANARY)",
        "PASSWORD=`echo -n CANARY` make",
        "PASSWORD=$(echo CANARY | tr -d x)",
        "PASSWORD=${X:-CANARY}",
        "PASSWORD=\"${PASSWORD:-CANARY}\"",
        "export TOKEN=${TOKEN-CANARY}",
        "password: ${DB_PASSWORD:=CANARY}",
        "psql --password \"$(echo CANARY)\" x",
        "mysql -u root --password=${X:-CANARY}",
        "sshpass -p \"${X:-CANARY}\" ssh h",
    ]);
    check_shown("PASSWORD=${X:-hunter} make", "PASSWORD=${X:-[redacted]} make");
    check_unchanged(&[
        "PASSWORD=$(cat /run/secret) make",
        "PASSWORD=$(pass show db/main2)",
        "PASSWORD=$(echo $X)",
        "PASSWORD=$(echo \"$X\" | base64 -d)",
        "PASSWORD=${X:-$Y}",
        "PASSWORD=${X:-}",
        "PASSWORD=${X:?missing}",
        "NAME=${X:-main2024}",
        "NAME=$(echo main2024)",
    ]);
}

#[test]
fn members_that_hold_a_named_value_are_recognized() {
    for value in [
        json!({"name": "password", "content": S}),
        json!({"name": "password", "default": S}),
        json!({"default": S, "type": "string", "name": "api_key"}),
        json!({"id": "password", "input": S}),
        json!({"key": "password", "answer": S}),
        json!({"field": "token", "example": S}),
        json!({"sessionid": S}),
        json!({"cookies": [{"name": "sessionid", "value": S}]}),
    ] {
        check_hidden(&value);
        check_hidden(&json!(value.to_string()));
        check_hidden(&json!({"body": value.to_string()}));
    }
    check_forms(&["sessionid=CANARY", "Cookie: sessionid=CANARY"]);
    for value in [
        json!({"name": "token", "content": "The token is read from a file."}),
        json!({"name": "password", "default": "none", "required": true}),
        json!({"name": "password", "input": {"path": "a.txt"}}),
        json!({"id": "password", "input": ""}),
        json!({"name": "read_file", "content": "abc123def456"}),
        json!({"sessionId": "0b1c2d3e-0000-4000-8000-000000000000", "sessionid": 7}),
    ] {
        check(value.clone(), &value);
    }
}

#[test]
fn secrets_of_more_programs_are_known_by_their_options() {
    for line in [
        "htpasswd -nbB u SECRET",
        "htpasswd -nb u SECRET",
        "htpasswd -b -n u SECRET",
        "openssl aes-256-cbc -k SECRET -in a",
        "openssl chacha20 -K SECRET -in a",
        "poetry publish -u me -p SECRET",
        "uv publish -t SECRET",
        "uv publish -p SECRET dist/x",
        "hatch publish -a SECRET",
        "gem push --key SECRET x.gem",
        "glab auth login -t SECRET",
        "vercel -t SECRET deploy",
        "vercel deploy -t SECRET",
        "codecov -t SECRET",
        "skopeo copy --src-creds u:SECRET docker://a docker://b",
        "skopeo copy --dest-creds=u:SECRET docker://a docker://b",
        "podman pull --creds u:SECRET x",
        "mysqladmin password SECRET",
        "mysqladmin -u root password SECRET",
        "smbclient //h/s SECRET",
        "redis-cli AUTH SECRET",
        "redis-cli -h x AUTH me SECRET",
        "wandb login SECRET",
        "wandb login --relogin SECRET",
        "snyk auth SECRET",
        "sonar-scanner -Dsonar.login=SECRET",
        "mvn sonar:sonar -Dsonar.login=SECRET -DskipTests",
    ] {
        let line = line.replace("SECRET", S);
        check_hidden(&json!({"command": line}));
        check_hidden(&json!(["sh", "-c", line]));
        check_hidden(&json!({"log": format!("ran:\n$ {line}\nok")}));
        let words: Vec<&str> = line.split(' ').collect();
        check_hidden(&json!({"command": words[0], "args": words[1..]}));
        check_hidden(&json!({"argv": words}));
    }
    check_forms(&[
        "gpg --batch --passphrase-fd 0 -d x <<< CANARY",
        "gpg --passphrase-fd=0 -d x <<< 'CANARY'",
        "echo CANARY | gpg --passphrase-fd 0 -d x",
        "echo -n CANARY | cryptsetup luksOpen /dev/sdb x -",
    ]);
    check_unchanged(&[
        "htpasswd -n me",
        "htpasswd -c file me",
        "openssl req -new -key a1b2c3d4.pem -keyout b1c2d3e4.pem",
        "openssl s_client -connect h:443",
        "poetry publish -r internal2024",
        "poetry add -p 3 x",
        "uv run -p python3.12 x",
        "uv pip install -t target2024 x",
        "gem push --key rubygems x.gem",
        "smbclient -L //h/s",
        "smbclient //h/s -c 'get abc12345'",
        "snyk auth",
        "wandb login --host a.example",
        "mysqladmin ping",
        "mysqladmin -u root status",
        "redis-cli get abc12345",
        "skopeo copy docker://a:1 docker://b:2",
        "-Dsonar.login=admin",
        "glab mr create -t title2024",
    ]);
}
