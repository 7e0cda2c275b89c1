//! Files of the session, by descriptor and never outside the roots.
