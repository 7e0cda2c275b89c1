//! An answer in the form of a JSON Schema.
