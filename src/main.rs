//! heft.
fn main() {}
