//! The answer: what a receiver says about a batch.

use super::{
    ENVELOPE_MAX, EXPLAIN_MAX, SECTION_MAX, Sections, TAG_LEN, TagKeys, VERDICTS_MAX, VERSION, WireError,
    check_elements, check_start, close_section, elements,
};
use crate::{Key, codec::Walk};

const RENEW: u8 = 1 << 0;
const STALE: u8 = 1 << 1;
const CLOSED: u8 = 1 << 2;

const SETTLED: u8 = 1;
const LATE_SETTLED: u8 = 2;
const VERDICTS: u8 = 3;
const EXPLAIN: u8 = 4;
const RETRY_AFTER: u8 = 5;
const PREFERRED_SIZE: u8 = 6;

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
        let is_counters = |&(first, len): &(u64, u64)| is_range_of_counters(first, len);
        if self.verdicts.len() > VERDICTS_MAX
            || self.explain.len() > EXPLAIN_MAX
            || !self.explain.iter().all(is_counters)
        {
            return Err(WireError::Rule);
        }
        let len = self.write(buffer).ok_or(WireError::Room)?;
        if len + TAG_LEN > ENVELOPE_MAX {
            return Err(WireError::Rule);
        }
        let (bytes, rest) = buffer.split_at_mut_checked(len).ok_or(WireError::Room)?;
        let place = rest.first_chunk_mut().ok_or(WireError::Room)?;
        *place = keys.answer_tag(batch_tag, bytes);
        Ok(len + TAG_LEN)
    }

    fn write(&self, buffer: &mut [u8]) -> Option<usize> {
        let mut head = Answer {
            is_renew: self.is_renew,
            is_stale: self.is_stale,
            is_closed: self.is_closed,
            server_time_ms: self.server_time_ms,
            epoch: self.epoch,
            confirmed: self.confirmed,
            ..Answer::BLANK
        };
        let mut walk = Walk::writing(buffer);
        head.walk(&mut walk);
        let mut at = walk.end()?;
        let mut section = |number, write: &dyn Fn(&mut Walk<'_>)| {
            let content = at + SECTION_MAX;
            // Where there is no room for a section's number and length, an empty one still has enough.
            let mut walk = Walk::writing(buffer.get_mut(content..).unwrap_or_default());
            write(&mut walk);
            let end = content + walk.end()?;
            at = close_section(buffer, number, at, end)?;
            Some(at)
        };
        section(SETTLED, &|walk| write_bitmap(self.settled, walk))?;
        section(LATE_SETTLED, &|walk| write_bitmap(self.late_settled, walk))?;
        section(VERDICTS, &|walk| {
            for (n, verdict) in self.verdicts {
                walk.number(&mut u64::from(*n));
                walk.byte(&mut { *verdict as u8 });
            }
        })?;
        section(EXPLAIN, &|walk| {
            for (first, len) in self.explain {
                walk.number(&mut { *first });
                walk.number(&mut { *len });
            }
        })?;
        section(RETRY_AFTER, &|walk| write_option(self.retry_after_s, walk))?;
        section(PREFERRED_SIZE, &|walk| write_option(self.preferred_size, walk))
    }
}

/// Absent bits are clear, so clear ones at the end are left out.
fn write_bitmap(bits: &[u8], walk: &mut Walk<'_>) {
    let len = bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bits.iter().take(len).for_each(|byte| walk.byte(&mut { *byte }));
}

fn write_option(value: Option<u32>, walk: &mut Walk<'_>) {
    if let Some(value) = value {
        walk.number(&mut u64::from(value));
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
    const BLANK: Self = Self {
        is_renew: false,
        is_stale: false,
        is_closed: false,
        server_time_ms: 0,
        epoch: 0,
        confirmed: 0,
        retry_after_s: None,
        preferred_size: None,
        settled: &[],
        late_settled: &[],
        verdicts: &[],
        explain: &[],
    };

    /// Reads what [`TagKeys::open_answer`] gave: everything before the tag, and the tag was right.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        check_start(bytes, RENEW | STALE | CLOSED)?;
        if bytes.len() + TAG_LEN > ENVELOPE_MAX {
            return Err(WireError::Rule);
        }
        let mut answer = Self::BLANK;
        let mut walk = Walk::reading(bytes);
        answer.walk(&mut walk);
        let rest = walk.end().and_then(|end| bytes.get(end..)).ok_or(WireError::Malformed)?;
        let mut sections = Sections::new(rest);
        while let Some((number, content)) = sections.next(PREFERRED_SIZE)? {
            match number {
                SETTLED => answer.settled = content,
                LATE_SETTLED => answer.late_settled = content,
                VERDICTS => answer.verdicts = content,
                EXPLAIN => answer.explain = content,
                RETRY_AFTER => answer.retry_after_s = read_option(content)?,
                _ => answer.preferred_size = read_option(content)?,
            }
        }
        check_elements(elements(answer.verdicts, read_verdict), VERDICTS_MAX)?;
        check_elements(elements(answer.explain, read_range), EXPLAIN_MAX)?;
        Ok(answer)
    }

    /// Walks what stands before the sections. The reader has looked at version and flags.
    fn walk(&mut self, walk: &mut Walk<'_>) {
        walk.byte(&mut { VERSION });
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let mut flags =
            flag(self.is_renew, RENEW) | flag(self.is_stale, STALE) | flag(self.is_closed, CLOSED);
        walk.byte(&mut flags);
        self.is_renew = flags & RENEW != 0;
        self.is_stale = flags & STALE != 0;
        self.is_closed = flags & CLOSED != 0;
        walk.shortest(&mut self.server_time_ms, u64::MAX);
        let mut epoch = self.epoch.to_le_bytes();
        walk.fixed(&mut epoch);
        self.epoch = u64::from_le_bytes(epoch);
        let mut confirmed = u64::from(self.confirmed);
        walk.shortest(&mut confirmed, u32::MAX.into());
        self.confirmed = confirmed as u32;
    }

    /// Whether record n is settled.
    pub fn is_settled(&self, n: usize) -> bool {
        is_set(self.settled, n)
    }

    /// Whether late record n is settled.
    pub fn is_late_settled(&self, n: usize) -> bool {
        is_set(self.late_settled, n)
    }

    /// Records, and then late ones, about which there is more to say.
    pub fn verdicts(&self) -> impl Iterator<Item = (u16, Verdict)> + 'a {
        elements(self.verdicts, read_verdict).map_while(Result::ok)
    }

    /// First and number of counters that are neither received nor explained.
    pub fn explain(&self) -> impl Iterator<Item = (u64, u64)> + 'a {
        elements(self.explain, read_range).map_while(Result::ok)
    }
}

fn is_set(bits: &[u8], n: usize) -> bool {
    bits.get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 1)
}

/// A section that is there without being empty holds one number and nothing else.
fn read_option(content: &[u8]) -> Result<Option<u32>, WireError> {
    if content.is_empty() {
        return Ok(None);
    }
    let mut walk = Walk::reading(content);
    let mut value = 0;
    walk.shortest(&mut value, u32::MAX.into());
    if walk.end() != Some(content.len()) {
        return Err(WireError::Malformed);
    }
    Ok(Some(value as u32))
}

fn read_verdict(walk: &mut Walk<'_>) -> Result<(u16, Verdict), WireError> {
    let (mut n, mut verdict) = (0, 0);
    walk.shortest(&mut n, u16::MAX.into());
    walk.byte(&mut verdict);
    let verdict = match verdict {
        0 => Verdict::Retry,
        1 => Verdict::Rejected,
        2 => Verdict::Quarantined,
        3 => Verdict::Conflict,
        unknown => return Err(WireError::Unknown(unknown)),
    };
    Ok((n as u16, verdict))
}

fn read_range(walk: &mut Walk<'_>) -> Result<(u64, u64), WireError> {
    let (mut first, mut len) = (0, 0);
    walk.shortest(&mut first, u64::MAX);
    walk.shortest(&mut len, u64::MAX);
    if is_range_of_counters(first, len) { Ok((first, len)) } else { Err(WireError::Rule) }
}

fn is_range_of_counters(first: u64, len: u64) -> bool {
    first.checked_add(len).is_some_and(|end| end <= Key::COUNTER_LIMIT)
}
