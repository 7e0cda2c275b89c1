//! One client that measures its wait for the first update.

use std::io;
use std::time::{Duration, Instant};

use crate::agent::usage;
use crate::bus::load::{Lost, Outcome};
use crate::bus::message::Dialect;
use crate::bus::talk::{Habit, Talk, Tally};

/// A connection on which one client sends and waits.
pub(crate) trait Speech {
    fn send(&mut self, line: &[u8]) -> io::Result<()>;
    /// Waits for messages, and passes all available ones to `each`.
    fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<()>;
}

/// Runs turn after turn for a while. The latencies are those of the first update of each turn.
pub(crate) fn run(
    speech: &mut dyn Speech,
    process: u32,
    habit: Habit,
    warm: Duration,
    measured: Duration,
) -> Result<Outcome, String> {
    let mut client = Client { speech, tally: Tally::default(), said: Vec::new(), firsts: Vec::new() };
    let mut talk = Talk::begin(0, Dialect::Acp, habit, &mut client.said);
    while !talk.is_ready() {
        client.turn(&mut talk)?;
        if client.tally.wrong() > 0 {
            return Err("the client has no session".to_owned());
        }
    }
    talk.go(Instant::now(), &mut client.said);
    client.until(&mut talk, Instant::now() + warm)?;
    client.firsts.clear();
    client.tally.answered = 0;
    let used = || [usage::own_time(process), usage::processor_time(process)];
    let (from, before) = (Instant::now(), used());
    client.until(&mut talk, from + measured)?;
    let (took, after) = (from.elapsed().as_secs_f64(), used());
    let answered = client.tally.answered as f64;
    talk.leave();
    while talk.missing() > 0 {
        client.turn(&mut talk)?;
    }
    let mut firsts = client.firsts;
    firsts.sort_unstable();
    let at = |share: f64| {
        let place = (firsts.len() as f64 * share) as usize;
        firsts.get(place).map_or(f64::NAN, |first| first.as_secs_f64() * 1e6)
    };
    let Tally { doubled, crossed, torn, refused, .. } = client.tally;
    Ok(Outcome {
        rate: answered / took,
        p50: at(0.5),
        p99: at(0.99),
        cpu: (after[0] - before[0]) / answered,
        tree: (after[1] - before[1]) / answered,
        lost: Lost { doubled, crossed, torn, refused, ..Lost::default() },
    })
}

struct Client<'a> {
    speech: &'a mut dyn Speech,
    tally: Tally,
    said: Vec<u8>,
    firsts: Vec<Duration>,
}

impl Client<'_> {
    fn until(&mut self, talk: &mut Talk, end: Instant) -> Result<(), String> {
        while Instant::now() < end {
            self.turn(talk)?;
        }
        Ok(())
    }

    fn turn(&mut self, talk: &mut Talk) -> Result<(), String> {
        let Self { speech, tally, said, firsts } = self;
        let asked = Instant::now();
        let mut waiting = !said.is_empty();
        for line in std::mem::take(said).split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            speech.send(line).map_err(|error| format!("sending failed: {error}"))?;
        }
        let mut hear = |line: &[u8]| {
            let now = Instant::now();
            if std::mem::take(&mut waiting) {
                firsts.push(now.duration_since(asked));
            }
            talk.receive(line, now, said, tally);
        };
        speech.receive(&mut hear).map_err(|error| format!("says nothing: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::bus::worker::Echo;

    /// An echo in memory that omits every update of this number.
    struct Memory(Echo, VecDeque<Vec<u8>>, Option<usize>);

    impl Speech for Memory {
        fn send(&mut self, line: &[u8]) -> io::Result<()> {
            let mut out = Vec::new();
            self.0.answer(line, &mut out);
            let lines = out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let kept = lines.enumerate().filter(|(place, _)| Some(*place) != self.2);
            self.1.extend(kept.map(|(_, line)| line.to_vec()));
            Ok(())
        }

        fn receive(&mut self, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
            each(&self.1.pop_front().ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        }
    }

    fn measure(without: Option<usize>) -> Outcome {
        let habit = Habit { sessions: 1, depth: 1, text: 50, chunks: 3 };
        let mut memory = Memory(Echo::new(), VecDeque::new(), without);
        let [warm, measured] = [1, 20].map(Duration::from_millis);
        run(&mut memory, std::process::id(), habit, warm, measured).expect("a run")
    }

    #[test]
    fn every_message_is_judged() {
        let outcome = measure(None);
        assert_eq!(outcome.lost.total(), 0);
        assert!(outcome.rate > 0.0 && outcome.p50 > 0.0 && outcome.p50 <= outcome.p99, "{outcome:?}");
        assert!(measure(Some(1)).lost.torn > 0);
    }
}
