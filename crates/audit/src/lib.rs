//! A log that proves what was decided: hash-chained, on disk before it is acknowledged, and verified by code of its own.
