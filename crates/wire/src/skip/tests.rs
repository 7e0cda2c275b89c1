//! Compares every implementation with a simple one that reads byte by byte.

use super::{ContainerFault, Job, Scalar, Skip, StringEnd, run};

fn naive_string(text: &[u8], at: usize, strict: bool) -> Option<StringEnd> {
    let mut bytes = text.iter().enumerate().skip(at);
    let mut escaped = false;
    loop {
        match bytes.next()? {
            (quote, b'"') if strict && std::str::from_utf8(&text[at..quote]).is_err() => return None,
            (quote, b'"') => return Some(StringEnd { quote, escaped }),
            (_, b'\\') => {
                escaped = true;
                match bytes.next()?.1 {
                    b'u' if strict => {
                        for _ in 0..4 {
                            bytes.next().filter(|(_, digit)| digit.is_ascii_hexdigit())?;
                        }
                    }
                    other if strict && !b"\"\\/bfnrt".contains(other) => return None,
                    _ => {}
                }
            }
            (_, 0..0x20) if strict => return None,
            _ => {}
        }
    }
}

fn naive_container(text: &[u8], at: usize, levels: u32) -> Result<usize, ContainerFault> {
    let (mut open, mut in_string, mut escaped) = (1, false, false);
    if levels == 0 {
        return Err(ContainerFault::TooDeep);
    }
    for (index, &byte) in text.iter().enumerate().skip(at) {
        let skipped = escaped;
        escaped = byte == b'\\' && !skipped;
        match byte {
            b'"' if !skipped => in_string = !in_string,
            b'{' | b'[' if !in_string => open += 1,
            b'}' | b']' if !in_string => open -= 1,
            _ => continue,
        }
        if open == 0 {
            return Ok(index + 1);
        }
        if open > levels {
            return Err(ContainerFault::TooDeep);
        }
    }
    Err(ContainerFault::Unclosed)
}

/// The results of every [`Skip`] method for one position in a text.
#[derive(Debug, PartialEq)]
struct Answers {
    string: Option<StringEnd>,
    strict: Option<StringEnd>,
    containers: [Result<usize, ContainerFault>; 4],
}

const LEVELS: [u32; 4] = [0, 1, 3, 128];

struct Ask<'a> {
    text: &'a [u8],
    at: usize,
}

impl Job for Ask<'_> {
    type Out = Answers;

    #[inline(always)]
    fn run<S: Skip>(self, skip: S) -> Answers {
        let Self { text, at } = self;
        Answers {
            string: skip.string(text, at),
            strict: skip.strict_string(text, at),
            containers: LEVELS.map(|levels| skip.container(text, at, levels)),
        }
    }
}

#[track_caller]
fn check(text: &[u8], at: usize) {
    let naive = Answers {
        string: naive_string(text, at, false),
        strict: naive_string(text, at, true),
        containers: LEVELS.map(|levels| naive_container(text, at, levels)),
    };
    let shown = text.escape_ascii();
    assert_eq!(Ask { text, at }.run(Scalar), naive, "scalar, from {at} of {shown}");
    assert_eq!(run(Ask { text, at }), naive, "fastest, from {at} of {shown}");
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

#[test]
fn a_quote_or_bracket_at_every_place_of_every_length() {
    for length in 0..200 {
        for end in [&b"\""[..], b"]", b"}", b"\\\"\"", b"\"]", b"\n\"", b"\\u00e9\""] {
            let mut text = vec![b'a'; length];
            text.extend_from_slice(end);
            for at in (0..text.len()).step_by(7).chain([text.len()]) {
                check(&text, at);
            }
            // The text is also cut within the closing bytes.
            for cut in 1..end.len() {
                check(&text[..length + cut], 0);
            }
        }
    }
}

#[test]
fn runs_of_backslashes_across_block_borders() {
    for before in 0..70 {
        for run in 0..70 {
            let mut text = vec![b'a'; before];
            text.extend(std::iter::repeat_n(b'\\', run));
            text.extend_from_slice(b"\"}\"]\\\"\"}");
            check(&text, 0);
            text.splice(0..0, *b"\"");
            text.extend_from_slice(&[b'z'; 80]);
            check(&text, 0);
        }
    }
}

#[test]
fn an_escape_at_a_border_ends_with_the_character_after_it() {
    for before in 60..66 {
        for after in 60..70 {
            let mut text = vec![b'"'; 1];
            text.extend(std::iter::repeat_n(b'a', before));
            text.extend_from_slice(b"\\n");
            text.extend(std::iter::repeat_n(b'a', after));
            text.extend_from_slice(b"\"]\"]");
            check(&text, 0);
            check(&text, 1);
        }
    }
}

#[test]
fn every_byte_alone_and_after_a_backslash_and_as_a_hexadecimal_digit() {
    for byte in 0..=u8::MAX {
        for before in [0, 20, 31, 32, 62, 63, 64, 90] {
            for after in [0, 40] {
                for escape in [&b""[..], b"\\", b"\\u", b"\\u0", b"\\u00", b"\\u000"] {
                    let mut text = vec![b'a'; before];
                    text.extend_from_slice(escape);
                    text.push(byte);
                    text.extend_from_slice(b"000\"]");
                    text.extend(std::iter::repeat_n(b'a', after));
                    check(&text, 0);
                }
            }
        }
    }
}

#[test]
fn a_character_of_several_bytes_at_every_place() {
    for length in [1, 31, 32, 33, 63, 64, 65, 100] {
        for character in ["ä", "€", "😀"] {
            for escape in [&b""[..], b"\\n", b"\\u00e9"] {
                for before in 0..length {
                    let mut text = vec![b'a'; before];
                    text.extend_from_slice(character.as_bytes());
                    text.extend_from_slice(escape);
                    text.extend(std::iter::repeat_n(b'a', length - before));
                    text.extend_from_slice(b"\", \"\xff\"]");
                    check(&text, 0);
                    // Starts within the character, and ends before its last byte.
                    check(&text, before + 1);
                    text.remove(before + character.len() - 1);
                    check(&text, 0);
                }
            }
        }
    }
}

#[test]
fn depth_is_counted_to_the_bracket() {
    for depth in 1..200 {
        for gap in [0, 1, 13] {
            let mut text = Vec::new();
            for _ in 1..depth {
                text.push(b'[');
                text.extend(std::iter::repeat_n(b' ', gap));
            }
            check(&text, 0);
            text.extend(std::iter::repeat_n(b']', depth));
            check(&text, 0);
            text.extend_from_slice(b"[[[[[[]]]]]]");
            check(&text, 0);
        }
    }
}

#[test]
fn any_bytes_at_every_alignment() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for alphabet in [
        &b"\"\\[]{}a"[..],
        b"\"\\aaaaaaaau0",
        b"[]{}\" ,:",
        b"\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\x01",
        b"\"\\naaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xc3",
    ] {
        for _ in 0..1500 {
            let text: Vec<u8> = (0..dice.below(400)).map(|_| alphabet[dice.below(alphabet.len())]).collect();
            check(&text, 0);
            check(&text, dice.below(text.len() + 1));
        }
    }
}
