//! Texts that are designed to make redaction slow.

use super::*;

/// The time of redaction is linear in the length of a text.
#[test]
fn long_texts_are_read_once() {
    let hostile =
        ["token=", "token=aaaaaaaa", "-----BEGIN PRIVATE KEY-----", "bearer aaaaaaaaaaaaaaaa", "--token  "];
    for piece in
        hostile.into_iter().chain(["=", ":", "://", "bearer ", "-----BEGIN ", "a=", "\" :", "sk- ", "_"])
    {
        let text = piece.repeat(300_000 / piece.len());
        assert_eq!(Redaction::default().is_secret(&text), hostile[..4].contains(&piece), "{piece}");
    }
}

#[test]
fn long_texts_of_any_shape_are_read_once() {
    for piece in [
        "a:token>b ",
        "<token>b",
        "sshpass -p 'x ",
        "sshpass -p \"",
        "Authorization: Digest ",
        "key=\"token\" value=\"",
        "value=",
        "machine h login u password ",
        "mysql -p",
        "curl -u ",
        "-u a:",
        "aws configure set token ",
        "é=",
        "token='",
        "cookie: a=",
        "?sig=",
        "pwd=\u{200b}",
        "\"",
        "'",
        ", ",
        "-----BEGIN PRIVATE KEY-----[redacted]",
    ] {
        let text = piece.repeat(300_000 / piece.len());
        _ = Redaction::default().hide(&text);
    }
}

/// Pieces of every form of secret, complete and cut off.
const PIECES: &[&str] = &[
    "\\u0061",
    "\\\\\\\\",
    "\\ud835",
    "%61",
    "%25",
    "%2525",
    "%20token=",
    "&#97;",
    "&quot;",
    "&#",
    "p%61ssword=",
    "p\\u0061ssword\\u003d",
    "{\"p\\u0061ssword\":\"",
    "https://api.telegram.org/bot1:",
    "https://discord.com/api/webhooks/1/",
    "/webhooks/",
    "a.b/hooks/Zx9kLm2Qp7wAb34cDe56fGh78iJk90",
    "://",
    "://a@",
    "1234567:",
    "bot123456:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "a:1@tcp(",
    "@tcp(",
    "jdbc:oracle:thin:a/",
    "jdbc:oracle:@",
    "h:5432:d:u:p\\:",
    "a:b:c:d:e ",
    "\"token\", \"",
    "\"token\",",
    "(\"token\", \"x\"",
    "set(\"token\", \"",
    "login(\"a\", ",
    "auth=(\"a\",",
    "token=(\"",
    "value=",
    "{value=",
    "{name=token,value=",
    "name=token,value=",
    "name=",
    "<a name=token>",
    "<a name=\"token\"",
    "<key>token</key> <",
    "</key>     <a>",
    "token: Option<String> = ",
    ": a = ",
    "token: a: b: c = Some(\"",
    "token[0]=",
    "token[",
    "}=\"",
    "#define token ",
    "# define ",
    "set -gx token ",
    "set token '",
    "Set-Item env:token -Value ",
    "--name token --value ",
    "proxy_set_header X-Api-Key ",
    "header ",
    "echo a | sudo -S ",
    "echo ",
    "<<< a --stdin ",
    "| ",
    "password a1\n",
    "password ",
    "machine a password ",
    "PASSWORD FOR a = '",
    "MTZx9kLm2Qp7wAb34cDe56fG.Zx9kLm.",
    "MMMM.",
    "abc8Q~",
    "Q~",
    "A_PAT=",
    "SECRET_KEY_BASE_BASE_BASE_",
    "TOKEN_A_B_C_",
    "A_PAT=\\",
    "token: {",
    "token: {\"a\": ",
    "token = a || '",
    "api.key=",
    "token: !a ",
    "token: !",
    "Token::a(\"",
    "token::a",
    "<a>",
    "<value>",
    "<value></a>",
    "<a name=token><value>",
    "<token><![CDATA[",
    "pwd=/",
    "://TOKEN_A_B_C_",
    "token=${",
    "-----BEGIN PRIVATE KEY----------END ",
    "-----BEGIN PRIVATE KEY-----[",
    "Private-Lines:",
    "Private-Lines:\n[",
];

/// If the search took quadratic time, one of these texts would exceed the time limit.
#[test]
fn the_work_for_a_text_of_one_piece_grows_with_its_length() {
    for piece in PIECES {
        let text = piece.repeat((64 << 10) / piece.len());
        _ = Redaction::default().is_secret(&text);
    }
}

/// If the search took quadratic time, this text would exceed the time limit.
#[test]
fn the_work_for_a_mebibyte_of_all_pieces_grows_with_its_length() {
    let text: String =
        PIECES.iter().map(|piece| piece.repeat((1 << 20) / PIECES.len() / piece.len())).collect();
    assert!(Redaction::default().is_secret(&text));
}

/// A text may have many tags with long texts. The text after a tag is searched once for all tags.
#[test]
fn the_tags_of_a_text_are_searched_once() {
    for piece in ["<a>", "<value>", "<value></a>", "</value>", "<value>  "] {
        let text = piece.repeat((64 << 10) / piece.len());
        let mut closing = pair::ClosingTags::default();
        for (at, _) in text.match_indices('>') {
            assert!(!pair::is_labeled_tag(&text, at, &mut closing, |_| None), "{piece}");
        }
        assert!(closing.searched <= text.len(), "{} bytes for {} of {piece}", closing.searched, text.len());
    }
}
