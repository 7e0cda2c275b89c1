//! Skips 32 and 64 bytes at a time with AVX2: quotes, escapes and brackets become bit masks.
#![expect(
    unsafe_code,
    reason = "vector loads, and calls of functions compiled for more than the base processor"
)]

use core::arch::x86_64::{
    __m256i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_set1_epi8, _mm256_and_si256,
    _mm256_cmpeq_epi8, _mm256_cmpgt_epi8, _mm256_loadu_si256, _mm256_max_epu8, _mm256_min_epi8,
    _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8, _mm256_setr_epi8,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16,
};

use super::{ContainerFault, Job, Scalar, Skip, StringEnd, has_four_hex_digits};
use crate::utf8::is_utf8;

/// Proof that this processor has AVX2 and the other features used here. Only [`Avx2::detect`] creates one.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    #[inline]
    pub(super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2");
        found.then_some(Self(()))
    }
}

impl Skip for Avx2 {
    #[inline(always)]
    fn string(self, text: &[u8], at: usize) -> Option<StringEnd> {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { string::<false>(text, at) }
    }

    #[inline(always)]
    fn strict_string(self, text: &[u8], at: usize) -> Option<StringEnd> {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { string::<true>(text, at) }
    }

    #[inline(always)]
    fn container(self, text: &[u8], at: usize, levels: u32) -> Result<usize, ContainerFault> {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { container(text, at, levels) }
    }

    #[inline]
    fn run<J: Job>(self, job: J) -> J::Out {
        #[target_feature(enable = "avx2,pclmulqdq,popcnt,bmi1,bmi2")]
        fn with_features<J: Job>(skip: Avx2, job: J) -> J::Out {
            job.run(skip)
        }
        // SAFETY: `self` proves that the processor has the features.
        unsafe { with_features(self, job) }
    }
}

const VECTOR_BYTES: usize = 32;
/// Size of a block: two vectors, with one bit per byte in a `u64`.
const BLOCK_BYTES: usize = 64;

#[target_feature(enable = "avx2")]
#[inline]
fn load(text: &[u8], at: usize) -> __m256i {
    assert!(at < text.len() && text.len() - at >= VECTOR_BYTES);
    // SAFETY: the assertion keeps all 32 bytes inside `text`; the load has no alignment demand.
    unsafe { _mm256_loadu_si256(text.as_ptr().add(at).cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn equal(vector: __m256i, byte: u8) -> u32 {
    _mm256_movemask_epi8(_mm256_cmpeq_epi8(vector, _mm256_set1_epi8(byte.cast_signed()))).cast_unsigned()
}

#[target_feature(enable = "avx2")]
#[inline]
fn wide(vector: __m256i) -> u32 {
    _mm256_movemask_epi8(vector).cast_unsigned()
}

/// Sets all bits of each byte of `vector` that is below 0x20.
#[target_feature(enable = "avx2")]
#[inline]
fn controls(vector: __m256i) -> __m256i {
    let top = _mm256_set1_epi8(0x1f);
    _mm256_cmpeq_epi8(_mm256_max_epu8(vector, top), top)
}

/// Sets all bits of each byte of `vector` that is a quote or a backslash.
#[target_feature(enable = "avx2")]
#[inline]
fn ends(vector: __m256i) -> __m256i {
    // A lookup by the low nibble returns the only byte with that nibble that can match. For the other
    // nibbles it returns a byte that matches nothing.
    const WANTED: [i8; 16] = [1, 0, b'"' as i8, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'\\' as i8, 0, 0, 0];
    _mm256_cmpeq_epi8(_mm256_shuffle_epi8(table(WANTED), vector), vector)
}

/// Returns one bit per byte of `vector` that is a quote, a backslash, or (if `STRICT`) a control character.
#[target_feature(enable = "avx2")]
#[inline]
fn string_stops<const STRICT: bool>(vector: __m256i) -> u32 {
    let mut stops = ends(vector);
    if STRICT {
        stops = _mm256_or_si256(stops, controls(vector));
    }
    _mm256_movemask_epi8(stops).cast_unsigned()
}

/// Returns one bit per byte of `vector` that may follow a backslash: `"\/bfnrtu`.
#[target_feature(enable = "avx2")]
#[inline]
fn escapable(vector: __m256i) -> u32 {
    // Each high nibble of the set has one bit. A byte is in the set if the table entries of its two nibbles
    // share a bit.
    const HIGH: [i8; 16] = [0, 0, 1, 0, 0, 2, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    const LOW: [i8; 16] = [0, 0, 1 | 4 | 8, 0, 8, 8, 4, 0, 0, 0, 0, 0, 2, 0, 4, 1];
    let low = _mm256_shuffle_epi8(table(LOW), vector);
    let nibble = _mm256_and_si256(_mm256_srli_epi16::<4>(vector), _mm256_set1_epi8(0x0f));
    let high = _mm256_shuffle_epi8(table(HIGH), nibble);
    let outside = _mm256_cmpeq_epi8(_mm256_and_si256(low, high), _mm256_setzero_si256());
    !_mm256_movemask_epi8(outside).cast_unsigned()
}

/// Returns the 16 bytes in both halves of a vector, the form of a table for `shuffle_epi8`.
#[target_feature(enable = "avx2")]
#[inline]
fn table(t: [i8; 16]) -> __m256i {
    _mm256_setr_epi8(
        t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11], t[12], t[13], t[14], t[15],
        t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11], t[12], t[13], t[14], t[15],
    )
}

/// 64 bytes as two vectors. At the end of the text, the first bytes may be those of the previous block.
#[derive(Clone, Copy)]
struct Block {
    low: __m256i,
    high: __m256i,
    /// Number of bytes at the beginning that belong to the previous block.
    seen: u32,
}

impl Block {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn load(text: &[u8], at: usize) -> Self {
        if text.len() - at >= BLOCK_BYTES {
            return Self { low: load(text, at), high: load(text, at + VECTOR_BYTES), seen: 0 };
        }
        if let Some(start) = text.len().checked_sub(BLOCK_BYTES) {
            let seen = (at - start) as u32;
            return Self { low: load(text, start), high: load(text, start + VECTOR_BYTES), seen };
        }
        let mut tail = [0; BLOCK_BYTES];
        tail[..text.len() - at].copy_from_slice(&text[at..]);
        Self { low: load(&tail, 0), high: load(&tail, VECTOR_BYTES), seen: 0 }
    }

    /// Joins the bits of both vectors: one bit per byte from `at` on, zero past the end of the text.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn bits(self, low: u32, high: u32) -> u64 {
        (u64::from(low) | u64::from(high) << 32) >> self.seen
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn equal(self, byte: u8) -> u64 {
        self.bits(equal(self.low, byte), equal(self.high, byte))
    }

    /// Returns the bytes that are `bracket` or the bracket 0x20 below it: `{` and `[`, or `}` and `]`.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn brackets(self, bracket: u8) -> u64 {
        let fold = _mm256_set1_epi8(0x20);
        let (low, high) = (_mm256_or_si256(self.low, fold), _mm256_or_si256(self.high, fold));
        self.bits(equal(low, bracket), equal(high, bracket))
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn escapable(self) -> u64 {
        self.bits(escapable(self.low), escapable(self.high))
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn controls(self) -> u64 {
        let low = _mm256_movemask_epi8(controls(self.low)).cast_unsigned();
        let high = _mm256_movemask_epi8(controls(self.high)).cast_unsigned();
        self.bits(low, high)
    }
}

/// Returns the bits of the escaped characters. `carry` is 1 if the last block ended in an odd number of
/// backslashes.
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

/// Computes the prefix XOR: bit n is the parity of bits 0 to n, so quotes become the ranges between them.
#[target_feature(enable = "pclmulqdq")]
#[inline]
fn inside(quotes: u64) -> u64 {
    let product = _mm_clmulepi64_si128::<0>(_mm_set_epi64x(0, quotes.cast_signed()), _mm_set1_epi8(-1));
    _mm_cvtsi128_si64(product).cast_unsigned()
}

#[target_feature(enable = "avx2,pclmulqdq,popcnt,bmi1,bmi2")]
#[inline]
fn string<const STRICT: bool>(text: &[u8], at: usize) -> Option<StringEnd> {
    // Most strings end in their first vector, so this part is inlined in all callers.
    if text.len().checked_sub(at)? >= VECTOR_BYTES {
        let vector = load(text, at);
        let stops = string_stops::<STRICT>(vector);
        let stop = at + stops.trailing_zeros() as usize;
        let plain = !STRICT || wide(vector) & (stops ^ stops.wrapping_sub(1)) == 0;
        if stops != 0 && text[stop] == b'"' && plain {
            return Some(StringEnd { quote: stop, escaped: false });
        }
    }
    long_string::<STRICT>(text, at)
}

#[target_feature(enable = "avx2,pclmulqdq,popcnt,bmi1,bmi2")]
#[inline(never)]
fn long_string<const STRICT: bool>(text: &[u8], start: usize) -> Option<StringEnd> {
    // The OR of all bytes of the string, and possibly of some bytes outside of it. Shows whether all are
    // ASCII.
    let mut all = _mm256_setzero_si256();
    let mut at = if STRICT { ascii_blocks(text, start) } else { start };
    at = plain_blocks::<STRICT>(text, at, &mut all);
    let end = loop {
        let (stops, width) = if text.len().checked_sub(at)? >= VECTOR_BYTES {
            let vector = load(text, at);
            all = _mm256_or_si256(all, vector);
            (string_stops::<STRICT>(vector), VECTOR_BYTES)
        } else if text.len() >= VECTOR_BYTES && at < text.len() {
            // For the last bytes, the last whole vector is loaded, and the bits before `at` are dropped.
            let last = text.len() - VECTOR_BYTES;
            let vector = load(text, last);
            all = _mm256_or_si256(all, vector);
            (string_stops::<STRICT>(vector) >> (at - last), text.len() - at)
        } else {
            return if STRICT { Scalar.strict_string(text, at) } else { Scalar.string(text, at) };
        };
        if stops != 0 {
            let stop = at + stops.trailing_zeros() as usize;
            break match text[stop] {
                b'"' => StringEnd { quote: stop, escaped: false },
                b'\\' => escaped_string::<STRICT>(text, stop, &mut all)?,
                _ => return None,
            };
        }
        at += width;
    };
    (!STRICT || wide(all) == 0 || is_utf8(&text[start..end.quote])).then_some(end)
}

/// Skips blocks of plain ASCII as [`plain_blocks`] with `STRICT` does. The signed minimum also shows bytes
/// that are not ASCII.
#[target_feature(enable = "avx2")]
#[inline]
fn ascii_blocks(text: &[u8], start: usize) -> usize {
    let mut at = start;
    while at < text.len() && text.len() - at >= 4 * VECTOR_BYTES {
        let (a, b) = (load(text, at), load(text, at + VECTOR_BYTES));
        let (c, d) = (load(text, at + 2 * VECTOR_BYTES), load(text, at + 3 * VECTOR_BYTES));
        let ends = _mm256_or_si256(_mm256_or_si256(ends(a), ends(b)), _mm256_or_si256(ends(c), ends(d)));
        let lowest = _mm256_min_epi8(_mm256_min_epi8(a, b), _mm256_min_epi8(c, d));
        let others = _mm256_cmpgt_epi8(_mm256_set1_epi8(0x20), lowest);
        if _mm256_movemask_epi8(_mm256_or_si256(ends, others)) != 0 {
            break;
        }
        at += 4 * VECTOR_BYTES;
    }
    at
}

/// Skips four vectors at a time as long as no byte needs a check of its own. Returns the index of the first
/// vector not skipped.
#[target_feature(enable = "avx2")]
#[inline]
fn plain_blocks<const STRICT: bool>(text: &[u8], start: usize, all: &mut __m256i) -> usize {
    let mut at = start;
    while at < text.len() && text.len() - at >= 4 * VECTOR_BYTES {
        let (a, b) = (load(text, at), load(text, at + VECTOR_BYTES));
        let (c, d) = (load(text, at + 2 * VECTOR_BYTES), load(text, at + 3 * VECTOR_BYTES));
        let mut stops = _mm256_or_si256(_mm256_or_si256(ends(a), ends(b)), _mm256_or_si256(ends(c), ends(d)));
        if STRICT {
            // The minimum of all four vectors shows whether any byte is a control character.
            let lowest = _mm256_min_epu8(_mm256_min_epu8(a, b), _mm256_min_epu8(c, d));
            stops = _mm256_or_si256(stops, controls(lowest));
        }
        if _mm256_movemask_epi8(stops) != 0 {
            break;
        }
        *all = _mm256_or_si256(*all, _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d)));
        at += 4 * VECTOR_BYTES;
    }
    at
}

/// Scans the rest of a string from its first backslash on, one block at a time, and adds its bits to `all`.
///
/// With `STRICT`, returns `None` for control characters and malformed escapes.
#[target_feature(enable = "avx2,pclmulqdq,popcnt,bmi1,bmi2")]
#[inline]
fn escaped_string<const STRICT: bool>(text: &[u8], backslash: usize, all: &mut __m256i) -> Option<StringEnd> {
    let mut at = backslash;
    let mut carry = 0;
    while at < text.len() {
        let block = Block::load(text, at);
        *all = _mm256_or_si256(*all, _mm256_or_si256(block.low, block.high));
        let escaped = escaped(block.equal(b'\\'), &mut carry);
        let quotes = block.equal(b'"') & !escaped;
        if STRICT {
            // Bits before the closing quote, or all of them.
            let within = quotes.wrapping_sub(1) & !quotes;
            if (block.controls() | (escaped & !block.escapable())) & within != 0 {
                return None;
            }
            let mut unicode = escaped & block.equal(b'u') & within;
            while unicode != 0 {
                if !has_four_hex_digits(text, at + unicode.trailing_zeros() as usize + 1) {
                    return None;
                }
                unicode &= unicode - 1;
            }
        }
        if quotes != 0 {
            return Some(StringEnd { quote: at + quotes.trailing_zeros() as usize, escaped: true });
        }
        at += BLOCK_BYTES;
    }
    None
}

#[target_feature(enable = "avx2,pclmulqdq,popcnt,bmi1,bmi2")]
#[inline]
fn container(text: &[u8], at: usize, levels: u32) -> Result<usize, ContainerFault> {
    if levels == 0 {
        return Err(ContainerFault::TooDeep);
    }
    let mut at = at;
    let mut open: u32 = 1;
    let mut carry = 0;
    let mut in_string = 0;
    while at < text.len() {
        let block = Block::load(text, at);
        let (quotes, backslashes) = (block.equal(b'"'), block.equal(b'\\'));
        if in_string & !(quotes | backslashes | carry) == u64::MAX {
            // The whole block is inside one string.
            at += BLOCK_BYTES;
            continue;
        }
        let quotes = quotes & !escaped(backslashes, &mut carry);
        let strings = inside(quotes) ^ in_string;
        in_string = (strings.cast_signed() >> 63).cast_unsigned();
        let opening = block.brackets(b'{') & !strings;
        let mut closing = block.brackets(b'}') & !strings;
        let mut closed = closing.count_ones();
        // Closing brackets are only walked one by one in a block that could close the container or go too
        // deep. The depth is highest before such a bracket and lowest after it.
        if open <= closed || open + opening.count_ones() > levels {
            closed = 0;
            while closing != 0 {
                let through = closing ^ (closing - 1);
                let opened = open + (opening & through).count_ones();
                if opened - closed > levels {
                    return Err(ContainerFault::TooDeep);
                }
                closed += 1;
                if opened == closed {
                    return Ok(at + closing.trailing_zeros() as usize + 1);
                }
                closing &= closing - 1;
            }
        }
        open = open + opening.count_ones() - closed;
        if open > levels {
            return Err(ContainerFault::TooDeep);
        }
        at += BLOCK_BYTES;
    }
    Err(ContainerFault::Unclosed)
}
