//! Finding the end of a JSON string or container as fast as the machine allows.
//!
//! Two implementations of one trait: [`Scalar`] runs everywhere, `Avx2` where the processor has it. The scanner
//! is written once over the trait and chosen once per message, so nothing is dispatched per string.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;
#[cfg(test)]
mod tests;

pub(crate) use scalar::Scalar;

/// Where a string ends, and whether an escape stands in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StringEnd {
    /// Index of the closing quote.
    pub(crate) quote: usize,
    /// Whether a backslash stands before it.
    pub(crate) escaped: bool,
}

/// Why a container could not be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerFault {
    /// The input ended first.
    Unclosed,
    /// More levels than allowed.
    TooDeep,
}

/// How one kind of processor skips. All indices are into `text`.
///
/// A value of an implementing type is the proof that this processor can run it.
pub(crate) trait Skip: Copy {
    /// The end of the string whose first inner byte is at `at`. Contents are not checked.
    fn string(self, text: &[u8], at: usize) -> Option<StringEnd>;

    /// Like [`Skip::string`], but control characters, malformed escapes and what is not UTF-8 make it `None`.
    fn strict_string(self, text: &[u8], at: usize) -> Option<StringEnd>;

    /// The index after the bracket that closes the container whose first inner byte is at `at`.
    ///
    /// Brackets are counted, not matched. `levels` is how many containers may be open at once, the one around
    /// `at` included.
    fn container(self, text: &[u8], at: usize, levels: u32) -> Result<usize, ContainerFault>;

    /// Runs `job` in a function of its own, compiled for this processor.
    fn run<J: Job>(self, job: J) -> J::Out;
}

/// Whether four hexadecimal digits stand at `at`.
#[inline]
fn four_hex(text: &[u8], at: usize) -> bool {
    text.get(at..at + 4).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Work that is written once over [`Skip`] and run with whatever the processor has.
pub(crate) trait Job {
    /// What comes out.
    type Out;
    /// Does it. Should be `inline(always)`, so that it is compiled for each processor.
    fn run<S: Skip>(self, skip: S) -> Self::Out;
}

/// Runs `job` with the fastest implementation this processor has.
#[inline]
pub(crate) fn run<J: Job>(job: J) -> J::Out {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::detect() {
        return avx2.run(job);
    }
    job.run(Scalar)
}
