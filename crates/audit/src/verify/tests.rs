//! The verifier, tried on logs that were tampered with.
