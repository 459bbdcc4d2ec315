//! The receiver: takes what devices post, exactly once in effect, stores it, and can say what is missing.

pub mod books;
