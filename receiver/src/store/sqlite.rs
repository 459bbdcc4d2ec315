//! SQLite: a file next to you.
