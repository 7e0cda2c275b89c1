//! Finding the end of a JSON string or container as fast as the machine allows.
//!
//! Two implementations of one trait: [`Scalar`] runs everywhere, `Avx2` where the processor has it. The scanner
//! is written once over the trait and chosen once per message, so nothing is dispatched per string.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;

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
pub(crate) trait Skip {
    /// The end of the string whose first inner byte is at `at`. Contents are not checked.
    fn string(text: &[u8], at: usize) -> Option<StringEnd>;

    /// Like [`Skip::string`], but control characters and malformed escapes make it `None`.
    fn strict_string(text: &[u8], at: usize) -> Option<StringEnd>;

    /// The index after the bracket that closes the container whose first inner byte is at `at`.
    ///
    /// Brackets are counted, not matched. `levels` is how many containers may be open at once, the one around
    /// `at` included.
    fn container(text: &[u8], at: usize, levels: u32) -> Result<usize, ContainerFault>;
}

/// Whether this processor runs the vector implementation.
pub(crate) fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("bmi1")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
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
    /// Does it. Must be `inline(always)`, so that the vector code is compiled with its features.
    fn run<S: Skip>(self) -> Self::Out;
}

/// Runs `job` with the fastest implementation this processor has.
#[inline]
pub(crate) fn run<J: Job>(job: J) -> J::Out {
    #[cfg(target_arch = "x86_64")]
    if has_vectors() {
        return avx2::run(job);
    }
    job.run::<Scalar>()
}
