//! The answer: what a receiver says about a batch.

use super::{TAG_LEN, TagKeys, WireError};

/// What is to be said about a record beyond settled or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Verdict {
    /// Not now: it is kept and sent again.
    Retry,
    /// It will not be taken as it is.
    Rejected,
    /// It is kept aside, raw: settled.
    Quarantined,
    /// Its key came with other content before; both are kept: settled.
    Conflict,
}

/// What a receiver says, before it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerDraft<'a> {
    /// Take another incarnation for new records.
    pub is_renew: bool,
    /// Nothing of the batch counts in the books.
    pub is_stale: bool,
    /// The books of this incarnation and lane are closed.
    pub is_closed: bool,
    /// Milliseconds since 1970.
    pub server_time_ms: u64,
    /// Random name of the database.
    pub epoch: u64,
    /// Bit n: entry n of the account is in the books.
    pub confirmed: u32,
    /// Bit n of this bitmap: record n.
    pub settled: &'a [u8],
    /// The same for the late records.
    pub late_settled: &'a [u8],
    /// Beyond that.
    pub verdicts: &'a [(u16, Verdict)],
    /// First and number of counters that are neither received nor explained.
    pub explain: &'a [(u64, u64)],
    /// Seconds until the next batch is welcome.
    pub retry_after_s: Option<u32>,
    /// Bytes that a batch should not exceed.
    pub preferred_size: Option<u32>,
}

impl AnswerDraft<'_> {
    /// Writes the answer to the batch with that tag. Gives its length.
    pub fn encode(
        &self,
        buffer: &mut [u8],
        keys: &TagKeys,
        batch_tag: &[u8; TAG_LEN],
    ) -> Result<usize, WireError> {
        let _ = (buffer, keys, batch_tag);
        todo!()
    }
}

/// An answer that was read and found to keep the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Take another incarnation for new records.
    pub is_renew: bool,
    /// Nothing of the batch counts in the books.
    pub is_stale: bool,
    /// The books of this incarnation and lane are closed.
    pub is_closed: bool,
    /// Milliseconds since 1970.
    pub server_time_ms: u64,
    /// Random name of the database.
    pub epoch: u64,
    /// Bit n: entry n of the account is in the books.
    pub confirmed: u32,
    /// Seconds until the next batch is welcome.
    pub retry_after_s: Option<u32>,
    /// Bytes that a batch should not exceed.
    pub preferred_size: Option<u32>,
    settled: &'a [u8],
    late_settled: &'a [u8],
    verdicts: &'a [u8],
    explain: &'a [u8],
}

impl<'a> Answer<'a> {
    /// Reads what [`TagKeys::open_answer`] gave: everything before the tag, and the tag was right.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let _ = bytes;
        todo!()
    }

    /// Whether record n is settled.
    pub fn is_settled(&self, n: usize) -> bool {
        let _ = (n, self.settled);
        false
    }

    /// Whether late record n is settled.
    pub fn is_late_settled(&self, n: usize) -> bool {
        let _ = (n, self.late_settled);
        false
    }

    /// Records, and then late ones, about which there is more to say.
    pub fn verdicts(&self) -> impl Iterator<Item = (u16, Verdict)> + 'a {
        let _ = self.verdicts;
        core::iter::empty()
    }

    /// First and number of counters that are neither received nor explained.
    pub fn explain(&self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let _ = self.explain;
        core::iter::empty()
    }
}
