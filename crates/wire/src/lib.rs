//! Message framing: bytes to JSON-RPC messages and back.
//!
//! A [`Splitter`] cuts a byte stream into lines, and [`websocket`] cuts one into messages. A [`Frame`] is a
//! message with the field positions that one scan found ([`scan()`]). A [`Batch`] is an array of messages,
//! [`message`] writes new messages, and [`RpcError`] is the error object. The crate does no I/O, is not
//! async and knows no methods.
//!
//! For every [`Frame`] whose kind is not [`Kind::Invalid`], the bytes are valid UTF-8 and valid JSON, and
//! every key that routes the message occurs at most once. The frame may be forwarded as it is.

mod batch;
mod envelope;
mod error;
mod fault;
mod frame;
mod grammar;
mod lookalike;
mod member;
pub mod message;
mod scan;
mod scan_cache;
mod skip;
mod split;
mod utf8;
mod view;
pub mod websocket;

pub use batch::{Batch, BatchStep, DEFAULT_MAX_BATCH_ENTRIES};
pub use envelope::{Envelope, Kind, Span};
pub use error::{Code, Effects, RpcError};
pub use fault::Fault;
pub use frame::{Frame, RawId};
pub use grammar::MAX_DEPTH;
pub use lookalike::{folds_to, written_key_folds_to};
pub use member::{DuplicateKey, elements, keys, member, members};
pub use scan::{Check, scan, scan_portable};
pub use scan_cache::ScanCache;
pub use split::{
    DEFAULT_MAX_LINE_BYTES, Line, LineRef, OVERLONG_HEAD_BYTES, Splitter, is_one_line, make_line,
};
pub use view::{Part, View};
