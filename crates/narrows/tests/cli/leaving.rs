//! How the built-in agent leaves a client that has gone, or half of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use crate::support::Place;

/// Half a second is what a client may count on; the rest is for a machine that has other things to do. What is to be
/// told from it takes five seconds or more.
const SOON: Duration = Duration::from_secs(3);

/// More answers than a pipe holds.
const MANY: usize = 4000;

/// `narrows acp`, with its ends in our hands.
fn start(place: &Place) -> (Child, ChildStdin, ChildStdout) {
    let mut command = place.narrows(["--log", "off", "acp", "--no-store"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("narrows starts");
    let (input, output) = (child.stdin.take(), child.stdout.take());
    (child, input.expect("piped"), output.expect("piped"))
}

/// Asks for something that is answered at once.
fn ask(input: &mut ChildStdin, count: usize) {
    let line = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"no/such\"}\n";
    input.write_all(line.repeat(count).as_bytes()).expect("it reads");
}

/// Waits until it has ended well, which must be soon after `since`.
#[track_caller]
fn ends_soon(place: &Place, mut child: Child, since: Instant) {
    let status = child.wait().expect("it ends");
    let took = since.elapsed();
    assert_eq!(status.code(), Some(0));
    assert!(took < SOON, "it took {took:?}");
    place.nothing_is_left();
}

#[test]
fn a_client_that_does_not_read_is_not_waited_for() {
    let place = Place::new();
    let (child, mut input, output) = start(&place);
    ask(&mut input, MANY);
    drop(input);
    ends_soon(&place, child, Instant::now());
    drop(output);
}

#[test]
fn a_client_that_reads_slowly_gets_everything() {
    let place = Place::new();
    let (mut child, mut input, mut output) = start(&place);
    ask(&mut input, MANY);
    drop(input);
    let (began, mut got, mut piece) = (Instant::now(), Vec::new(), vec![0; 16 << 10]);
    loop {
        let length = output.read(&mut piece).expect("it can be read");
        if length == 0 {
            break;
        }
        got.extend_from_slice(&piece[..length]);
        // sleep: this is the slowness
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(began.elapsed() > Duration::from_millis(400), "it was not slow");
    assert_eq!(got.iter().filter(|byte| **byte == b'\n').count(), MANY);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    place.nothing_is_left();
}

#[test]
fn a_client_that_closes_our_output_is_left_though_it_could_still_ask() {
    let place = Place::new();
    let (child, mut input, output) = start(&place);
    ask(&mut input, 1);
    let mut output = BufReader::new(output);
    output.read_line(&mut String::new()).expect("an answer");
    drop(output);
    let since = Instant::now();
    ask(&mut input, 1);
    ends_soon(&place, child, since);
    drop(input);
}
