//! Secrets in documented file formats: everything that their grammars allow between a name and its value, in
//! any order.

use super::forms::{check_forms, check_shown, check_unchanged};
use super::*;

#[test]
fn gaps_and_comments_between_name_and_value_of_json_make_no_difference() {
    check_forms(&[
        "{\"password\"\n  :\n \"CANARY\"}",
        "{\"password\"\t:\t\"CANARY\"}",
        "{\"a\": 1, \"password\":\n\n    \"CANARY\"}",
        "{\"a\": 1, \"password\"\r\n:\r\n\"CANARY\"}",
        "{\"password\": /* x */ \"CANARY\"}",
        "{\"password\" /* x */ : \"CANARY\"}",
        "{\"password\" // x\n : // y\n // z\n \"CANARY\"}",
        "{\"password\"/*\"*/:/*:*/\"CANARY\"}",
        "{password: /* x */ 'CANARY'}",
        "{password: // x\n 'CANARY'}",
        "{password /* x */: \"CANARY\"}",
        "const password = /* x */ \"CANARY\";",
        "let token = // x\n    \"CANARY\";",
        "{\"tokens\"\n:\n[\n\"CANARY\"\n]}",
        "{\"password\"\n:\n{\n\"current\": \"CANARY\"}}",
        r#"{\"password\"\n  :\n \"CANARY\"}"#,
        r#"{"p\u0061ssword"/**/:/**/"CANARY"}"#,
    ]);
    check_shown(
        "{\"password\"\n  : // why\n \"hunter2\", \"a\"\n:\n\"b\"}",
        "{\"password\"\n  : // why\n \"[redacted]\", \"a\"\n:\n\"b\"}",
    );
    check_unchanged(&[
        "{\"name\"\n  :\n \"someone12\"}",
        "{\"path\": /* the password */ \"abcdefgh12\"}",
        "the \"password\"\n// is it\n",
        "see \"token\":\nhttps://a.example/page2",
        "{\"tokens\"\n:\n12345678}",
        "\"password\" /* none */",
        "const path = /* token */ \"abcdefgh12\";",
    ]);
}

#[test]
fn properties_keys_and_comments_of_yaml_make_no_difference() {
    check_forms(&[
        "password: &a CANARY",
        "password: &a !!str CANARY",
        "password: !!str &a 'CANARY'",
        "password: !!str &a !!str CANARY",
        "password: !custom CANARY",
        "password: !<tag:yaml.org,2002:str> CANARY",
        "db:\n  password: &pw |\n    CANARY\n  a: 1",
        "password: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  CANARY",
        "password: !!binary |-\n  CANARY\n",
        "password: | # comment\n  CANARY",
        "password: >-\n  CANARY",
        "password: |2-\n   CANARY",
        "password: # comment\n  CANARY",
        "password:\n  # comment\n  CANARY",
        "password:\n# comment\n\n# more\n  CANARY",
        "password: &a\n  CANARY",
        "password: !!str\n  CANARY",
        "- a: 1\n  password: !!str # comment\n    CANARY",
        "{a: 1, password: &x CANARY}",
        "? password\n: CANARY",
        "a: 1\n? password\n: CANARY\nb: 2",
        "a:\n  ? password\n  : CANARY",
        "? \"password\"\n: \"CANARY\"",
        "? password # comment\n# comment\n: !!str CANARY",
        "- ? password\n  : CANARY",
        "!!str password: CANARY",
        "&a password: CANARY",
    ]);
    check_shown("a: &x b\npassword: &a hunter2abc\nc: *a", "a: &x b\npassword: &a [redacted]\nc: *a");
    check_shown(
        "? password\n: hunter2abc\n? name\n: someone12",
        "? password\n: [redacted]\n? name\n: someone12",
    );
    check_unchanged(&[
        "name: &a someone12",
        "name: !!str someone12",
        "password: !secret db_password_1",
        "Password: !Ref DbPassword1",
        "password: !ENV DB_PASSWORD_1",
        "fn f(token: &mut Tokenizer2) {}",
        "    token: &dyn Tokenizer2,",
        "const value = isLong\n    ? token\n    : other.value12;",
        "? name\n: someone12",
        "# password\n: nothing",
        "is it the password?\n: yes12345",
    ]);
}

#[test]
fn a_value_in_front_of_its_name_is_recognized() {
    check_forms(&[
        "{\"value\":\"CANARY\",\"name\":\"password\"}",
        "{\"value\":\"a}CANARY\",\"name\":\"password\"}",
        "{\"value\":\"CANARY\",\"description\":\"what it is for\",\"name\":\"password\"}",
        "{\n  \"value\": \"CANARY\",\n  \"name\": \"password\"\n}",
        "{\\\"value\\\":\\\"CANARY\\\",\\\"name\\\":\\\"password\\\"}",
        "[{\"value\":\"x\",\"name\":\"a\"},{\"value\":\"CANARY\",\"name\":\"password\"}]",
        "- value: CANARY\n  name: DB_PASSWORD",
        "env:\n  - value: CANARY\n    name: DB_PASSWORD\n  - value: x\n    name: y",
        "- value: \"CANARY\"\n  type: x\n  name: DB_PASSWORD",
        "- name: DB_PASSWORD\n  type: x\n  value: CANARY",
        "  value: CANARY\n  name: DB_PASSWORD",
        "<property value=\"CANARY\" name=\"password\"/>",
        "<property value='CANARY' type='x' name='password' />",
        "<property\n  value=\"a>CANARY\"\n  name=\"password\"\n/>",
        "<password>CANARY</password>",
        "<password type=\"x\">\n CANARY\n</password>",
        "<password>\n  <![CDATA[CANARY]]>\n</password>",
        "<password><![CDATA[a<CANARY]]></password>",
        "<password><!-- x -->CANARY</password>",
        "<password\n type=\"x\"\n>CANARY</password>",
        "<password><value>CANARY</value></password>",
        "<property><name>db.password</name><value>CANARY</value></property>",
        "<property>\n  <name>db.password</name>\n  <value>CANARY</value>\n</property>",
        "<property><value>CANARY</value><name>db.password</name></property>",
    ]);
    check_shown(
        "- value: someone12\n  name: USER\n- value: hunter2abc\n  name: DB_PASSWORD",
        "- value: someone12\n  name: USER\n- value: [redacted]\n  name: DB_PASSWORD",
    );
    check_unchanged(&[
        "{\"value\":\"someone12\",\"name\":\"user\"}",
        "[{\"value\":\"someone12\"},{\"name\":\"password\"}]",
        "- value: someone12\n  name: USER\n- name: DB_PASSWORD\n  from: vault",
        "- value: someone12\n- name: DB_PASSWORD",
        "value: someone12\ninner:\n  name: password",
        "<property value=\"someone12\" name=\"user\"/><property name=\"password\"/>",
        "<name>user</name><value>someone12</value><name>password</name>",
        "<passwords><user>someone12</user></passwords>",
        "<!-- <password> --><user>someone12</user>",
    ]);
}

#[test]
fn continued_lines_are_read_as_one() {
    check_forms(&[
        "db.password=\\\n  CANARY",
        "db.password = \\\r\n  CANARY",
        "db.password: \\\n    CANARY",
        "db.password \\\n    CANARY",
        "db.pass\\\n    word=CANARY",
        "db.password=abc\\\n    CANARY",
        "password:CANARY",
        "password CANARY",
        "export PASSWORD=\\\nCANARY",
        "mysql \\\n  -u root \\\n  -pCANARY db",
        "curl \\\n  -u me:CANARY \\\n  https://a.example",
        "Authorization: Bearer\r\n  CANARY",
        "Authorization: Bearer\n\tCANARY",
        "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic\r\n CANARY\r\n\r\n",
        "Authorization:\r\n  Bearer CANARY",
        "Authorization:\r\n Bearer\r\n CANARY",
        "Proxy-Authorization: Digest username=\"me\",\r\n  response=\"CANARY\"",
        "Cookie: a=1;\r\n sid=CANARY",
        "X-Api-Key:\r\n CANARY",
        "curl -H 'Authorization: Bearer\n  CANARY' x",
    ]);
    check_shown(
        "Authorization: Bearer\r\n  hunter2abc\r\nHost: someone12",
        "Authorization: Bearer\r\n  [redacted]\r\nHost: someone12",
    );
    check_unchanged(&[
        "path=\\\n  /usr/local/bin12",
        "docker run \\\n  -p 8080:80 \\\n  nginx",
        "# The token: bearer\n  of news12",
        "Accept: text/plain\r\n  ;q=0.5",
    ]);
}

#[test]
fn a_list_of_yaml_may_be_indented_like_its_name() {
    check_forms(&[
        "password:\n- CANARY",
        "password:\r\n- CANARY\r\n",
        "password:\n- 'CANARY'",
        "password:\n- \"CANARY\"\na: 1",
        "password:\n\n- CANARY",
        "password: # comment\n- CANARY",
        "password:\n# comment\n- CANARY",
        "password: &a\n- CANARY",
        "password: !!seq\n- CANARY",
        "password:\n- &a CANARY",
        "password:\n- !!str CANARY",
        "password:\n-\n  CANARY",
        "password:\n-   CANARY",
        "password:\n- - CANARY",
        "password:\n- a\n- CANARY",
        "password:\n- current: CANARY",
        "password:\n- |\n  CANARY",
        "passwords:\n- CANARY\n- x",
        "\"password\":\n- CANARY",
        "'password':\n- CANARY",
        "db:\n  password:\n  - CANARY\n  a: 1",
        "db:\n- password:\n  - CANARY\n",
        "a: 1\nAPI_KEY:\n- CANARY",
        "password:\n- an old one\n- CANARY",
    ]);
    check_shown(
        "db:\n  password:\n  - hunter2\n  - hunter3\n  name: someone12\n",
        "db:\n  password:\n  [redacted]\n  name: someone12\n",
    );
    check_unchanged(&[
        "- password:\n- name: someone12",
        "- password:\n- someone12",
        "The password:\n- at least 8 letters\n- one digit, or a sign\n",
        "Password:\n- must have 8 letters.\n",
        "path:\n- someone12\n",
        "password:\nother:\n- someone12\n",
    ]);
}

#[test]
fn a_blank_or_a_sign_may_be_escaped_for_a_shell() {
    check_forms(&[
        r"curl -H Cookie:\ sid=CANARY https://a.example",
        r"curl -H Cookie:\ a=1\;\ sid=CANARY https://a.example",
        r"curl -H Cookie\:\ sid\=CANARY https://a.example",
        r"curl -HCookie:\ sid=CANARY https://a.example",
        r"curl --header Set-Cookie:\ sid=CANARY",
        r"curl -H Authorization:\ Bearer\ CANARY https://a.example",
        r"curl -H Authorization:\ Basic\ CANARY https://a.example",
        r"curl -H Proxy-Authorization:\ Digest\ response=CANARY",
        r"curl -H X-Api-Key:\ CANARY https://a.example",
        r"curl -H X-Api-Key:\  CANARY",
        r"curl -d user=a\&password=CANARY https://a.example",
        r"curl -d password\=CANARY https://a.example",
        "curl -H Cookie:\\\tsid=CANARY",
        "curl \\\n  -H Cookie:\\ sid=CANARY \\\n  https://a.example",
    ]);
    check_shown(
        r"curl -H Cookie:\ sid=hunter2abc -o someone12",
        r"curl -H Cookie:\ sid=[redacted] -o someone12",
    );
    check_unchanged(&[
        r"cp my\ file12 C:\; echo a\=b12",
        r"find . -name x12 -exec ls {} \;",
        "cat my\\ token\\ file12 \\ \nls",
    ]);
}

#[test]
fn labels_under_any_key_and_in_any_case_are_recognized() {
    for value in [
        json!({"Name": "password", "Value": S}),
        json!({"NAME": "password", "VALUE": S}),
        json!({"id": "password", "val": S}),
        json!({"label": "API key", "value": S}),
        json!({"ParameterKey": "DbPassword", "ParameterValue": S}),
        json!({"ref": "password", "text": S}),
        json!({"type": "password", "value": S}),
        json!({"type": "token", "value": S}),
        json!({"selector": "#password", "text": S}),
        json!({"selector": "#login-password-input", "text": S}),
        json!({"selector": "input[name=password]", "value": S}),
        json!({"selector": "input[type='password']:visible", "value": S}),
        json!({"selector": "//input[@id='user_password']", "value": S}),
        json!({"element": "Password field", "ref": "e12", "text": S}),
        json!({"element": "Password textbox for admin", "ref": "e12", "text": S}),
        json!({"fields": [{"name": "Password", "type": "textbox", "ref": "e5", "value": S}]}),
        json!({"placeholder": "Your API key", "text": S}),
        json!({"locator": "getByLabel('Password')", "text": S}),
        json!({"variable_name": "DB_PASSWORD", "variable_value": S}),
    ] {
        check_hidden(&value);
        check_hidden(&json!(value.to_string()));
        check_hidden(&json!(serde_json::to_string_pretty(&value).unwrap()));
        check_hidden(&json!({"list": [value]}));
    }
    for plain in [
        json!({"Name": "user", "Value": "someone12"}),
        json!({"id": "password", "text": null}),
        json!({"id": "user", "val": "someone12"}),
        json!({"label": "Tokens", "value": "someone12"}),
        json!({"type": "text", "text": "the password is wrong"}),
        json!({"type": "token", "value": "identifier"}),
        json!({"type": "string", "value": "someone12"}),
        json!({"selector": "#username", "text": "someone12"}),
        json!({"element": "Forgot password link", "text": "click here 2"}),
        json!({"ref": "e12", "text": "someone12"}),
        json!({"label": "Password", "required": true}),
        json!({"type": "apiKey", "in": "header", "name": "X-API-Key"}),
    ] {
        check(plain.clone(), &plain);
        check_unchanged(&[&plain.to_string()]);
    }
}

#[test]
fn arguments_that_set_secrets_are_recognized() {
    for line in [
        "http --auth user:SECRET x",
        "http -a user:SECRET x",
        "http --auth=user:SECRET x",
        "https -a user:SECRET x",
        "xh --auth user:SECRET x",
        "http -A bearer -a SECRET x",
        "http --auth-type=bearer --auth SECRET x",
        "pulumi config set --secret name SECRET",
        "pulumi config set name --secret SECRET",
        "pulumi config set name SECRET --secret",
        "ngrok config add-authtoken SECRET",
        "ngrok authtoken SECRET",
        "net use X: \\\\h\\s /user:u SECRET",
        "net use X: \\\\h\\s SECRET /user:u",
        "vault kv put path key=SECRET",
        "vault kv put secret/x a=1 key=SECRET",
        "vault write path key=SECRET",
        "vault kv patch path key=SECRET",
        "fly secrets import X=SECRET",
        "heroku config:set X_TOKEN=SECRET",
        "infisical secrets set X=SECRET",
        "doppler secrets set X=SECRET",
        "doppler secrets set X SECRET",
        "net use \\\\h\\s SECRET",
        "net user me SECRET /add",
    ] {
        let line = line.replace("SECRET", S);
        check_hidden(&json!({"command": line}));
        check_hidden(&json!({"log": format!("ran:\n$ {line}\nok")}));
        check_hidden(&json!({"argv": line.split(' ').collect::<Vec<_>>()}));
    }
    check_forms(&[
        "ssh_key: TOKEN40",
        "ssh_key=TOKEN40",
        "{\"ssh_key\": \"TOKEN40\"}",
        "code_verifier=TOKEN40",
        "{\"code_verifier\": \"TOKEN40\"}",
        "grant_type=authorization_code&code_verifier=CANARY",
    ]);
    check_unchanged(&[
        "http -a user x",
        "pulumi config set aws:region eu-west-1",
        "pulumi config get name",
        "ngrok http 8080",
        "net use X: \\\\h\\s /persistent:yes",
        "net use X: /delete",
        "net use X: \\\\h\\s *",
        "net user me /delete",
        "doppler secrets get X1 --plain",
        "net start spooler2",
        "vault kv get path/key1",
        "vault kv get -field=key1 path",
        "fly auth token",
        "ssh_key: ~/.ssh/id_ed25519",
        "code_verifier: required",
    ]);
}

#[test]
fn airtable_tokens_are_recognized() {
    let hex = "0123456789abcdef".repeat(4);
    let redaction = Redaction::default();
    for text in [format!("patZx9kLm2Qp7wAbC.{hex}"), "keyZx9kLm2Qp7wAbC".to_owned()] {
        for text in [text.clone(), format!("use {text}, please"), format!("x(\"{text}\")")] {
            let shown = redaction.hide(&text).map(|hidden| hidden.text).unwrap_or_default();
            assert!(
                shown.contains(PLACEHOLDER) && !shown.contains("Zx9") && !shown.contains("abcdef"),
                "{text}: {shown}"
            );
        }
    }
    check_unchanged(&[
        "patternsOfThings.html",
        "keyboardShortcuts",
        "keyframesForLarge",
        "key12345678901234",
        "patentsForPeople1.0123456789abcdef",
        "keyValueStoreImpl2Extra",
    ]);
}

/// If the search took quadratic time, one of these texts would exceed the time limit.
#[test]
fn hostile_layouts_are_read_once() {
    for piece in [
        ": //",
        ": #",
        ": | #",
        ":/*",
        "*/:",
        "*/ :",
        "/*:",
        "\n// x\n :",
        "#\n",
        "# x\n:",
        "\n:",
        ": &a ",
        ": !a ",
        ": !",
        "? a\n: b\n",
        "\\\n ",
        "Authorization: a\n ",
        ": Bearer\n ",
        "{\"",
        "{",
        "{'",
        "{value:",
        "{\"value\":\"a\",",
        "{\\\"",
        "[{\"a\":[",
        "<value>",
        "<token><!--",
        "<token><![CDATA[",
        "<a value=\"",
        "- value: a\n",
        "\n  value: a",
        "net use \\\\h\\s ",
        "--secret ",
    ] {
        let text = piece.repeat((64 << 10) / piece.len());
        _ = Redaction::default().is_secret(&text);
    }
    check_forms(&["{\"password\"\n // x\n // y\n : \"CANARY\"}", "? password\n# x\n# y\n: CANARY"]);
}
