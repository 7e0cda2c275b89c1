//! The only way out of a sandbox: a proxy that lets through what a list names.
//!
//! [`HostAllowList`] is what may be reached, [`serve`] answers `CONNECT` and plain requests by it. Names are resolved here and
//! nowhere else, once, and what was resolved is what is connected to, so that no second answer leads elsewhere. Addresses of
//! this machine and of private networks are reached only by those who name them literally. Whatever is refused is told to
//! whoever asked, and to us as a [`Denial`].
//!
//! There is no TLS here: what goes through a tunnel is between both ends.

mod head;
mod host;
mod list;
mod proxy;

pub use host::{Host, HostError, Target};
pub use list::{EntryError, HostAllowList};
pub use proxy::{Denial, Options, Reason, Resolve, SystemResolver, serve};
