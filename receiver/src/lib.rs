//! The receiver: takes what devices post, exactly once in effect, stores it, and can say what is missing.

// The way of a batch: over HTTP, judged by the books, into a store.
pub mod books;
mod exact_json;
pub mod http;
pub mod intake;
pub mod kinds;
pub mod metrics;
pub mod serve;
pub mod store;

// What people ask for and look at.
pub mod admin;
pub mod check;
pub mod cli;
pub mod inspect;
pub mod ledger;
pub mod moment;
