//! Skipping 32 and 64 bytes at a time with AVX2: quotes, escapes and brackets become bit masks.
//!
//! The functions are `inline(always)` and carry no target feature of their own: they are only ever inlined into
//! [`crate::scan`]'s entry that has the features, which is entered after `has_vectors()` said yes.
#![expect(
    unsafe_code,
    reason = "vector loads and intrinsics; every load is bounds-checked by the line above it"
)]

use core::arch::x86_64::{
    __m256i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_set1_epi8, _mm256_and_si256,
    _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_max_epu8, _mm256_movemask_epi8, _mm256_or_si256,
    _mm256_set1_epi8, _mm256_setr_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16,
};

use super::{ContainerFault, Scalar, Skip, StringEnd, four_hex};

pub(crate) struct Avx2;

/// Bytes of one vector.
const LANE: usize = 32;
/// Bytes of one block: two vectors, one bit each in a `u64`.
const BLOCK: usize = 64;

/// One vector of `text` at `at`.
#[inline(always)]
fn load(text: &[u8], at: usize) -> __m256i {
    assert!(at + LANE <= text.len());
    // SAFETY: the assertion keeps all 32 bytes inside `text`; the load has no alignment demand.
    unsafe { _mm256_loadu_si256(text.as_ptr().add(at).cast()) }
}

/// One bit per byte of `vector` that equals `byte`.
#[inline(always)]
fn equal(vector: __m256i, byte: u8) -> u32 {
    // SAFETY: the module is entered only on processors with AVX2.
    unsafe {
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(vector, _mm256_set1_epi8(byte.cast_signed()))).cast_unsigned()
    }
}

/// One bit per byte of `vector` that is a quote or a backslash, or (if `CONTROLS`) below 0x20.
#[inline(always)]
fn string_stops<const CONTROLS: bool>(vector: __m256i) -> u32 {
    // SAFETY: the module is entered only on processors with AVX2.
    unsafe {
        let quote = _mm256_cmpeq_epi8(vector, _mm256_set1_epi8(b'"'.cast_signed()));
        let backslash = _mm256_cmpeq_epi8(vector, _mm256_set1_epi8(b'\\'.cast_signed()));
        let mut stops = _mm256_or_si256(quote, backslash);
        if CONTROLS {
            let top = _mm256_set1_epi8(0x1f);
            stops = _mm256_or_si256(stops, _mm256_cmpeq_epi8(_mm256_max_epu8(vector, top), top));
        }
        _mm256_movemask_epi8(stops).cast_unsigned()
    }
}

/// One bit per byte of `vector` that may follow a backslash: `"\/bfnrtu`.
#[inline(always)]
fn escapable(vector: __m256i) -> u32 {
    // Each high nibble that occurs owns one bit; a byte is in the set if the tables of its nibbles share it.
    const HIGH: [i8; 16] = [0, 0, 1, 0, 0, 2, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    const LOW: [i8; 16] = [0, 0, 1 | 4 | 8, 0, 8, 8, 4, 0, 0, 0, 0, 0, 2, 0, 4, 1];
    // SAFETY: the module is entered only on processors with AVX2.
    unsafe {
        let low = _mm256_shuffle_epi8(table(LOW), vector);
        let nibble = _mm256_and_si256(_mm256_srli_epi16::<4>(vector), _mm256_set1_epi8(0x0f));
        let high = _mm256_shuffle_epi8(table(HIGH), nibble);
        let outside = _mm256_cmpeq_epi8(_mm256_and_si256(low, high), _mm256_setzero_si256());
        !_mm256_movemask_epi8(outside).cast_unsigned()
    }
}

/// The same 16 bytes in both halves, as `shuffle_epi8` wants its table.
#[inline(always)]
fn table(t: [i8; 16]) -> __m256i {
    // SAFETY: the module is entered only on processors with AVX2.
    unsafe {
        _mm256_setr_epi8(
            t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11], t[12], t[13], t[14],
            t[15], t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11], t[12], t[13],
            t[14], t[15],
        )
    }
}

/// 64 bytes as two vectors.
#[derive(Clone, Copy)]
struct Block {
    low: __m256i,
    high: __m256i,
}

impl Block {
    #[inline(always)]
    fn load(text: &[u8], at: usize) -> Self {
        Self { low: load(text, at), high: load(text, at + LANE) }
    }

    #[inline(always)]
    fn bits(self, of: impl Fn(__m256i) -> u32) -> u64 {
        u64::from(of(self.low)) | u64::from(of(self.high)) << 32
    }

    #[inline(always)]
    fn equal(self, byte: u8) -> u64 {
        self.bits(|vector| equal(vector, byte))
    }

    /// Bytes that are `bracket` or its sibling 0x20 below it: `{` and `[`, `}` and `]`.
    #[inline(always)]
    fn brackets(self, bracket: u8) -> u64 {
        self.bits(|vector| {
            // SAFETY: the module is entered only on processors with AVX2.
            let folded = unsafe { _mm256_or_si256(vector, _mm256_set1_epi8(0x20)) };
            equal(folded, bracket)
        })
    }
}

/// Bits of the characters that a backslash escapes; `carry` says that the last block ended in an odd backslash.
#[inline(always)]
fn escaped(backslashes: u64, carry: &mut u64) -> u64 {
    if backslashes == 0 {
        return core::mem::take(carry);
    }
    // A run of backslashes escapes every second character after its start. Adding the runs that start at odd
    // positions carries a bit out of each run; the difference to the even pattern shows which runs were odd.
    const EVEN: u64 = 0x5555_5555_5555_5555;
    let backslashes = backslashes & !*carry;
    let follows = backslashes << 1 | *carry;
    let odd_starts = backslashes & !EVEN & !follows;
    let (sequences, overflow) = odd_starts.overflowing_add(backslashes);
    *carry = u64::from(overflow);
    (EVEN ^ (sequences << 1)) & follows
}

/// Prefix XOR: bit n is the parity of bits 0..=n, so quotes become the stretches between them.
#[inline(always)]
fn inside(quotes: u64) -> u64 {
    // SAFETY: the module is entered only on processors with PCLMULQDQ.
    unsafe {
        let product = _mm_clmulepi64_si128::<0>(_mm_set_epi64x(0, quotes.cast_signed()), _mm_set1_epi8(-1));
        _mm_cvtsi128_si64(product).cast_unsigned()
    }
}

/// The first stop from `at` on: its index, or where to go on if there is none in this vector.
#[inline(always)]
fn first_stop<const CONTROLS: bool>(text: &[u8], at: usize) -> Option<Result<usize, usize>> {
    let (stops, width) = if at + LANE <= text.len() {
        (string_stops::<CONTROLS>(load(text, at)), LANE)
    } else {
        // The last bytes: look at the last whole vector and drop what came before `at`.
        let start = text.len().checked_sub(LANE)?;
        let shift = at - start;
        if shift >= LANE {
            return None;
        }
        (string_stops::<CONTROLS>(load(text, start)) >> shift, LANE - shift)
    };
    Some(if stops == 0 { Err(at + width) } else { Ok(at + stops.trailing_zeros() as usize) })
}

impl Skip for Avx2 {
    #[inline(always)]
    fn string(text: &[u8], at: usize) -> Option<StringEnd> {
        let mut at = at;
        if text.len() < LANE {
            return Scalar::string(text, at);
        }
        loop {
            match first_stop::<false>(text, at)? {
                Ok(stop) if text[stop] == b'"' => return Some(StringEnd { quote: stop, escaped: false }),
                Ok(stop) => return escaped_string::<false>(text, stop),
                Err(next) => at = next,
            }
        }
    }

    #[inline(always)]
    fn strict_string(text: &[u8], at: usize) -> Option<StringEnd> {
        let mut at = at;
        if text.len() < LANE {
            return Scalar::strict_string(text, at);
        }
        loop {
            match first_stop::<true>(text, at)? {
                Ok(stop) => match text[stop] {
                    b'"' => return Some(StringEnd { quote: stop, escaped: false }),
                    b'\\' => return escaped_string::<true>(text, stop),
                    _ => return None,
                },
                Err(next) => at = next,
            }
        }
    }

    #[inline(always)]
    fn container(text: &[u8], at: usize, levels: u32) -> Result<usize, ContainerFault> {
        if levels == 0 {
            return Err(ContainerFault::TooDeep);
        }
        let mut at = at;
        let mut open: u32 = 1;
        let mut carry = 0;
        let mut in_string = 0;
        let mut tail = [0; BLOCK];
        while at < text.len() {
            let block = if at + BLOCK <= text.len() {
                Block::load(text, at)
            } else {
                tail[..text.len() - at].copy_from_slice(&text[at..]);
                Block::load(&tail, 0)
            };
            let quotes = block.equal(b'"') & !escaped(block.equal(b'\\'), &mut carry);
            let strings = inside(quotes) ^ in_string;
            in_string = (strings.cast_signed() >> 63).cast_unsigned();
            let mut opening = block.brackets(b'{') & !strings;
            let mut closing = block.brackets(b'}') & !strings;
            // Only a block that could close the container or exceed the depth is looked at bit by bit.
            if open > closing.count_ones() && open + opening.count_ones() <= levels {
                open = open + opening.count_ones() - closing.count_ones();
            } else {
                while (opening | closing) != 0 {
                    let bit = (opening | closing).trailing_zeros();
                    if opening & (1 << bit) != 0 {
                        opening &= opening - 1;
                        open += 1;
                        if open > levels {
                            return Err(ContainerFault::TooDeep);
                        }
                    } else {
                        closing &= closing - 1;
                        open -= 1;
                        if open == 0 {
                            return Ok(at + bit as usize + 1);
                        }
                    }
                }
            }
            at += BLOCK;
        }
        Err(ContainerFault::Unclosed)
    }
}

/// The rest of a string from its first backslash on, a block at a time.
///
/// With `STRICT`, control characters and malformed escapes make it `None`.
#[inline(always)]
fn escaped_string<const STRICT: bool>(text: &[u8], backslash: usize) -> Option<StringEnd> {
    let mut at = backslash;
    let mut carry = 0;
    let mut tail = [0; BLOCK];
    while at < text.len() {
        let block = if at + BLOCK <= text.len() {
            Block::load(text, at)
        } else {
            // Zeros after the end stop a strict scan and never look like a quote.
            tail[..text.len() - at].copy_from_slice(&text[at..]);
            Block::load(&tail, 0)
        };
        let escaped = escaped(block.equal(b'\\'), &mut carry);
        let quotes = block.equal(b'"') & !escaped;
        // Bits before the closing quote, or all of them.
        let within = quotes.wrapping_sub(1) & !quotes;
        if STRICT {
            let controls = block.bits(|vector| {
                // SAFETY: the module is entered only on processors with AVX2.
                unsafe {
                    let top = _mm256_set1_epi8(0x1f);
                    _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(vector, top), top)).cast_unsigned()
                }
            });
            if (controls | (escaped & !block.bits(escapable))) & within != 0 {
                return None;
            }
            let mut unicode = escaped & block.equal(b'u') & within;
            while unicode != 0 {
                if !four_hex(text, at + unicode.trailing_zeros() as usize + 1) {
                    return None;
                }
                unicode &= unicode - 1;
            }
        }
        if quotes != 0 {
            return Some(StringEnd { quote: at + quotes.trailing_zeros() as usize, escaped: true });
        }
        at += BLOCK;
    }
    None
}

/// Runs `job` with vectors. The caller has asked [`super::has_vectors`].
#[inline]
pub(super) fn run<J: super::Job>(job: J) -> J::Out {
    // SAFETY: `has_vectors` has found all three features on this processor.
    unsafe { with_features(job) }
}

#[target_feature(enable = "avx2,pclmulqdq,bmi1")]
fn with_features<J: super::Job>(job: J) -> J::Out {
    job.run::<Avx2>()
}
