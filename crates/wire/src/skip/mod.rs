//! Finds the end of a JSON string or container, with vector instructions if available.
//!
//! [`Scalar`] runs everywhere, `Avx2` if the processor supports it. The scanner is generic over [`Skip`],
//! and the implementation is chosen once per message, not once per string.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;
#[cfg(test)]
mod tests;

pub(crate) use scalar::Scalar;

/// The end of a string, and whether it contains an escape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StringEnd {
    pub(crate) quote: usize,
    /// `true` if there is a backslash before the closing quote.
    pub(crate) escaped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContainerFault {
    Unclosed,
    TooDeep,
}

/// The skipping functions for one kind of processor. All indices are into `text`.
///
/// A value of an implementing type proves that this processor can run them.
pub(crate) trait Skip: Copy {
    /// Returns the end of the string whose first inner byte is at `at`. Does not check the content.
    fn string(self, text: &[u8], at: usize) -> Option<StringEnd>;

    /// Returns the end of a string as [`Skip::string`] does, but `None` for control characters, malformed
    /// escapes and invalid UTF-8.
    fn strict_string(self, text: &[u8], at: usize) -> Option<StringEnd>;

    /// Returns the index after the bracket that closes the container whose first inner byte is at `at`.
    ///
    /// Brackets are counted, not matched. `levels` limits the containers open at once, including the one
    /// around `at`.
    fn container(self, text: &[u8], at: usize, levels: u32) -> Result<usize, ContainerFault>;

    /// Runs `job` in a function that is compiled for this processor.
    fn run<J: Job>(self, job: J) -> J::Out;
}

#[inline]
fn has_four_hex_digits(text: &[u8], at: usize) -> bool {
    text.get(at..at + 4).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

/// Work that is written once, generic over [`Skip`], and compiled for each kind of processor.
pub(crate) trait Job {
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
