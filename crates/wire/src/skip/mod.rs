//! Finds the end of a JSON string or container with vector instructions where available.
//!
//! [`Scalar`] runs everywhere, `Avx2` where the processor supports it. The scanner is generic over [`Skip`], and the
//! implementation is chosen once per message, so no string pays for dispatch.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;
#[cfg(test)]
mod tests;

pub(crate) use scalar::Scalar;

/// The end of a string, and whether it contains an escape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StringEnd {
    /// Index of the closing quote.
    pub(crate) quote: usize,
    /// A backslash occurs before the closing quote.
    pub(crate) escaped: bool,
}

/// Why a container could not be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerFault {
    /// The input ended before the closing bracket.
    Unclosed,
    /// More levels than allowed.
    TooDeep,
}

/// The skipping functions of one kind of processor. All indices are into `text`.
///
/// A value of an implementing type proves that this processor can run it.
pub(crate) trait Skip: Copy {
    /// Returns the end of the string whose first inner byte is at `at`. Contents are not checked.
    fn string(self, text: &[u8], at: usize) -> Option<StringEnd>;

    /// Like [`Skip::string`], but returns `None` for control characters, malformed escapes and invalid UTF-8.
    fn strict_string(self, text: &[u8], at: usize) -> Option<StringEnd>;

    /// Returns the index after the bracket that closes the container whose first inner byte is at `at`.
    ///
    /// Brackets are counted, not matched. `levels` limits the containers open at once, including the one around `at`.
    fn container(self, text: &[u8], at: usize, levels: u32) -> Result<usize, ContainerFault>;

    /// Runs `job` in a function that is compiled for this processor.
    fn run<J: Job>(self, job: J) -> J::Out;
}

/// Returns `true` if there are four hexadecimal digits at `at`.
#[inline]
fn has_four_hex_digits(text: &[u8], at: usize) -> bool {
    text.get(at..at + 4).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Work that is written once over [`Skip`] and compiled for each processor.
pub(crate) trait Job {
    /// The result.
    type Out;
    /// Runs the job. Should be `inline(always)`, so that it is compiled for each processor.
    fn run<S: Skip>(self, skip: S) -> Self::Out;
}

/// Runs `job` with the fastest implementation for this processor.
#[inline]
pub(crate) fn run<J: Job>(job: J) -> J::Out {
    #[cfg(target_arch = "x86_64")]
    if let Some(avx2) = avx2::Avx2::detect() {
        return avx2.run(job);
    }
    job.run(Scalar)
}
