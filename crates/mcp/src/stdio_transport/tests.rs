use proptest::prelude::*;

use super::*;

fn lines(limit: usize, chunks: &[&[u8]]) -> Vec<Line> {
    let mut lines = LineBuffer::new(limit);
    let mut out = Vec::new();
    for chunk in chunks {
        lines.buffer.extend_from_slice(chunk);
        while let Some(line) = lines.next() {
            out.push(line);
        }
    }
    out
}

fn whole(text: &str) -> Line {
    Line::Whole(text.as_bytes().into())
}

#[test]
fn lines_are_split_for_any_reads() {
    assert_eq!(lines(9, &[b"a\nb", b"c\n\nd"]), [whole("a"), whole("bc"), whole("")]);
    assert_eq!(
        lines(3, &[b"abc\nabcd\nx\n"]),
        [whole("abc"), Line::Long { id: None, length: 4 }, whole("x")]
    );
}

#[test]
fn a_long_line_is_skipped_and_its_id_found() {
    #[track_caller]
    fn check(head: &str, tail: &str, expected: Option<i64>) {
        let middle = "x".repeat(3 * KEPT_END_BYTES);
        let chunks = [head.as_bytes(), middle.as_bytes(), middle.as_bytes(), tail.as_bytes(), b"\nnext\n"];
        let found = lines(KEPT_END_BYTES, &chunks);
        let length = head.len() + 2 * middle.len() + tail.len();
        assert_eq!(found, [Line::Long { id: expected.map(RequestId::Number), length }, whole("next")]);
    }
    check(r#"{"jsonrpc":"2.0","id":7,"result":""#, r#""}"#, Some(7));
    check(r#"{"id": 12, "jsonrpc":"2.0","result":""#, r#""}"#, Some(12));
    check(r#"{"result":{"content":""#, r#""},"jsonrpc":"2.0","id":3}"#, Some(3));
    check(r#"{"result":{"content":""#, r#""}, "id": 4, "jsonrpc": "2.0"}"#, Some(4));
    // The id is ambiguous, so it is not guessed.
    check(r#"{"result":{"id":9,"content":""#, r#""}}"#, None);
    check(r#"{"result":{"content":""#, r#"","id":9}, "jsonrpc":"2.0"}"#, None);
    check(r#"{"method":"x","params":{"id":9,"content":""#, r#""}}"#, None);
    check(r#"{"jsonrpc":"2.0","id":"7","result":""#, r#""}"#, None);
}

#[test]
fn answers_are_read_as_leniently_as_is_safe() {
    #[track_caller]
    fn check(line: &str, expected: &str) {
        let read = match parse_message(line.as_bytes()) {
            Parsed::Message(message) => match *message {
                JsonRpcMessage::Response(response) => format!("response {}", response.id),
                JsonRpcMessage::Error(error) => format!("error {:?} {}", error.id, error.error.message),
                JsonRpcMessage::Request(request) => format!("request {}", request.id),
                JsonRpcMessage::Notification(_) => "notification".to_owned(),
            },
            Parsed::Invalid => "noise".to_owned(),
            Parsed::Ignored => "nothing".to_owned(),
        };
        assert_eq!(read, expected, "{line}");
    }
    check(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "response 1");
    check("\u{feff} {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}} \r", "response 1");
    check(r#"{"id":1,"result":{"content":[]}}"#, "response 1");
    check(r#"{"jsonrpc":"1.0","id":1,"result":{}}"#, "response 1");
    check(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}"#, "error Some(Number(1)) no");
    check(r#"{"jsonrpc":"2.0","id":1,"error":"no"}"#, "error Some(Number(1)) its response cannot be read");
    check(r#"{"jsonrpc":"2.0","id":1}"#, "error Some(Number(1)) its response cannot be read");
    check(r#"{"jsonrpc":"2.0","id":9,"method":"roots/list"}"#, "request 9");
    check(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#, "notification");
    check("Server listening on stdio", "noise");
    check("[1,2]", "noise");
    check(r#"{"level":"info"}"#, "noise");
    check("   \r", "nothing");
}

proptest! {
    /// The split of the input into reads does not change the lines, and no line over the limit is kept.
    #[test]
    fn lines_do_not_depend_on_the_reads(
        text in prop::collection::vec(prop_oneof![3 => Just(b'\n'), 9 => any::<u8>()], 0..400),
        sizes in prop::collection::vec(1usize..40, 1..40),
        limit in 1usize..20,
    ) {
        let mut lines = LineBuffer::new(limit);
        let mut found = Vec::new();
        let mut rest = &text[..];
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, after) = rest.split_at(rest.len().min(*size));
            rest = after;
            lines.buffer.extend_from_slice(chunk);
            while let Some(line) = lines.next() {
                found.push(match line {
                    Line::Whole(line) => (line.len(), Some(line.to_vec())),
                    Line::Long { length, .. } => (length, None),
                });
            }
            prop_assert!(lines.buffer.len() <= limit);
        }
        let mut expected: Vec<_> = text
            .split(|byte| *byte == b'\n')
            .map(|line| (line.len(), (line.len() <= limit).then(|| line.to_vec())))
            .collect();
        expected.pop();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_line_is_parsed_without_panic(line in prop::collection::vec(any::<u8>(), 0..200)) {
        _ = parse_message(&line);
    }

    #[test]
    fn any_ends_are_searched_without_panic(head in ".{0,40}", tail in ".{0,40}") {
        _ = find_id(format!("{{\"id\"{head}").as_bytes(), format!("{tail}\"id\"{head}").as_bytes());
    }
}
