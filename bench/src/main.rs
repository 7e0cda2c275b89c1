//! The measurements behind every figure we give.
fn main() {}
