//! The targets on the stable compiler: over their corpus, and over mutations of it that are the same in every run.

use std::path::Path;

/// How many mutations of each file are tried.
const MUTATIONS: usize = 400;

/// What is put into a file at random: the pieces that a message consists of, and those that break one.
const PIECES: [&[u8]; 32] = [
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\n",
    b"\r\n",
    b" ",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"null",
    b"true",
    b"-0",
    b"1e5",
    b"\\u0069d",
    b"\\ud800",
    b"\"id\":1,",
    b"\"method\":\"m\",",
    b"\"jsonrpc\":\"2.0\",",
    b"\"params\":{",
    b"\"result\":",
    b"\"sessionId\":\"s\",",
    b"\"requestId\":2,",
    b"\"pool\":\"p\",",
    b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"},",
    b"[[[[[[[[[[[[[[[[",
    b"]]]]]]]]]]]]]]]]",
    b"\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\",
];

/// Numbers without a pattern, the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }

    /// One or a few changes to `seed`.
    fn mutate(&mut self, seed: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=self.below(4) {
            let (at, to) = (self.below(bytes.len() + 1), self.below(bytes.len() + 1));
            let (from, to) = (at.min(to), at.max(to).min(at.min(to) + 64));
            match self.below(7) {
                0 if at < bytes.len() => bytes[at] = self.below(256) as u8,
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 => drop(bytes.drain(from..to)),
                3 => {
                    let copy = bytes[from..to].to_vec();
                    bytes.splice(at..at, copy);
                }
                4 => bytes.truncate(at),
                5 => {
                    let start = self.below(other.len());
                    let end = (start + self.below(64)).min(other.len());
                    bytes.splice(at..at, other[start..end].iter().copied());
                }
                _ => {
                    let piece = PIECES[self.below(PIECES.len())];
                    bytes.splice(at..at, piece.iter().copied());
                }
            }
        }
        bytes
    }
}

fn run(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(name);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).expect("the corpus").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect("a file")).collect();
    assert!(!seeds.is_empty());
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    for seed in &seeds {
        target(seed);
        for _ in 0..MUTATIONS {
            let other = &seeds[dice.below(seeds.len())];
            target(&dice.mutate(seed, other));
        }
    }
}

#[test]
fn batch() {
    run("batch", narrows_fuzz_targets::batch);
}

#[test]
fn scanner() {
    run("scanner", narrows_fuzz_targets::scanner);
}

#[test]
fn splitter() {
    run("splitter", narrows_fuzz_targets::splitter);
}

#[test]
fn answer() {
    run("answer", narrows_fuzz_targets::answer);
}

#[test]
fn audit() {
    run("audit", narrows_fuzz_targets::audit);
}

#[test]
fn manifest() {
    run("manifest", narrows_fuzz_targets::manifest);
}

#[test]
fn redact() {
    run("redact", narrows_fuzz_targets::redact);
}
