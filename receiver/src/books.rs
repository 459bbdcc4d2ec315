//! A stand-in until the books are there.
use pillarbox::{Entry, Reason};
#[allow(missing_docs)]
pub struct Said {
    pub floor: u64,
    pub issued: u64,
    pub is_closing: bool,
}
#[allow(missing_docs)]
pub enum Seen {
    New,
    Duplicate,
    Doubtful,
    Beyond,
}
#[allow(missing_docs)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {}
#[allow(missing_docs)]
pub struct Closing {
    pub confirmed: u32,
    pub explain: Vec<(u64, u64)>,
}
#[allow(missing_docs)]
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Ledger {
    pub issued: u64,
    pub received: u64,
    pub pending: u64,
    pub unexplained: u64,
    pub explained: [u64; Reason::COUNT],
    pub is_closed: bool,
}
#[allow(missing_docs)]
impl Ledger {
    pub fn lost(&self) -> u64 {
        0
    }
    pub fn uncertain(&self) -> u64 {
        0
    }
    pub fn explained_as(&self, _: Reason) -> u64 {
        0
    }
}
#[allow(missing_docs)]
#[derive(Debug)]
pub struct BooksError;
#[allow(missing_docs)]
impl Books {
    pub fn begin(&mut self, _: &Said, _: &[Entry]) {}
    pub fn seen(&self, _: u64) -> Seen {
        Seen::New
    }
    pub fn store(&mut self, _: u64) {}
    pub fn finish(&mut self, _: &Said, _: &[Entry]) -> Closing {
        Closing { confirmed: 0, explain: vec![] }
    }
    pub fn floor(&self) -> u64 {
        0
    }
    pub fn issued(&self) -> u64 {
        0
    }
    pub fn claimed(&self) -> u64 {
        0
    }
    pub fn is_closed(&self) -> bool {
        false
    }
    pub fn reason(&self, _: u64) -> Option<Reason> {
        None
    }
    pub fn ledger(&self) -> Ledger {
        Ledger::default()
    }
    pub fn encode(&self) -> Vec<u8> {
        vec![]
    }
    pub fn decode(_: &[u8]) -> Result<Self, BooksError> {
        Ok(Self {})
    }
}
impl std::fmt::Display for BooksError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("")
    }
}
impl std::error::Error for BooksError {}
