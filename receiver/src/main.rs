//! The program `pillarbox`.

fn main() {}
