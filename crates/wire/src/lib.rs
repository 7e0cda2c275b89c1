//! Bytes to frames and back.
//!
//! A [`Splitter`] cuts a byte stream into lines, [`websocket`] cuts one into messages, a [`Frame`] is one of them with
//! what a single pass over it found ([`scan()`]), a [`Batch`] is an array of them, [`message`] writes new ones, and
//! [`RpcError`] is how anything goes wrong. No I/O, no async, no knowledge of any method: those live in the crates above.
//!
//! Two promises hold for every [`Frame`] whose kind is not [`Kind::Invalid`]: its bytes are valid UTF-8 and valid
//! JSON throughout, and every key that decides where it goes stands there at most once. It may be forwarded as it is.

mod alike;
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
mod skip;
mod split;
mod utf8;
mod view;
pub mod websocket;

pub use alike::Alike;
pub use batch::{Batch, MAX_ENTRIES, Step};
pub use envelope::{Envelope, Kind, Span};
pub use error::{Code, Effects, RpcError};
pub use fault::Fault;
pub use frame::{Frame, RawId};
pub use grammar::MAX_DEPTH;
pub use lookalike::{folds_to, written_key_folds_to};
pub use member::{Doubled, elements, keys, member, members};
pub use scan::{Check, scan, scan_portable};
pub use split::{HEAD, Line, MAX_LINE, Piece, Splitter, is_one_line, make_line};
pub use view::{Part, View};
