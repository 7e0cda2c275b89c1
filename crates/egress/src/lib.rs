//! The only network path out of a sandbox: a proxy with an allow-list.
//!
//! [`HostAllowList`] names the allowed hosts, and [`serve`] answers `CONNECT` and plain requests accordingly.
//! Each name is resolved once, here, and the connection goes to the resolved address, so a second DNS answer
//! cannot change the destination. Addresses of this machine and of private networks are reachable only if
//! they are listed literally. Refusals are sent to the client, and reported as a [`Denial`].
//!
//! The proxy does not terminate TLS: a tunnel carries it end to end.

mod head;
mod host;
mod list;
mod proxy;

pub use host::{Host, HostError, Target};
pub use list::{EntryError, HostAllowList};
pub use proxy::{Denial, Options, Reason, Resolve, SystemResolver, serve};
