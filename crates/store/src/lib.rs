//! The agent's sessions on disk: histories in SQLite, and a lock per open session that ends with its process.
//!
//! A [`Store`] keeps its sessions in a directory or in memory. Working on a session requires its
//! [`Claim`]. Only the holder of the claim can change the session, and no other caller can open it
//! meanwhile, in this process or another.
//!
//! ```
//! use narrows_store::{NewSession, Store, Turn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), narrows_store::StoreError> {
//! let store = Store::in_memory();
//! let new = NewSession { id: "s1".into(), cwd: "/src".into(), ..NewSession::default() };
//! let claim = store.create(new).await?;
//! let turn = Turn::new(vec![r#"{"role":"user"}"#.into()], vec![r#"{"text":"hello"}"#.into()]);
//! assert_eq!(store.append(&claim, turn).await?, 1);
//! drop(claim);
//!
//! let (claim, record) = store.claim("s1").await?;
//! assert_eq!((claim.id(), record.turns), ("s1", 1));
//! # Ok(())
//! # }
//! ```
//!
//! Guarantees, even if the process crashes:
//! - A turn is stored whole or not at all, and once [`Store::append`] has returned it is on the disk.
//! - The claims of a process end with the process in any case.
//! - A file that is unreadable, or was written by a newer program, is not changed.

mod claim;
mod cursor;
mod database;
mod error;
mod history;
mod lock;
mod record;
mod schema;
mod sessions;
mod startup_cleanup;
mod store;
mod writer;

pub use claim::Claim;
pub use error::StoreError;
pub use record::{Change, NewSession, Page, Record, Timestamp, Turn};
pub use store::Store;
