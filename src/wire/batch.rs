//! The batch: what a device says about one lane of one incarnation.

use core::ops::Range;

use sha2::{Digest, Sha256};

use super::{
    ENTRIES_MAX, ENVELOPE_MAX, LATE_MAX, RECORDS_MAX, REPORT_MAX, SECTION_MAX, Sections, TAG_LEN, TagKeys,
    VERSION, WINDOW, WireError, check_elements, check_start, close_section, elements, write_section_header,
};
use crate::{DeviceId, Entry, Key, Kind, Reason, Stored, Timestamp, codec::Walk, stored::shift};

const CLOSING: u8 = 1 << 0;
const HAS_WALL: u8 = 1 << 1;
const IN_ORDER: u8 = 1 << 2;

const ACCOUNT: u8 = 1;
const REPORT: u8 = 2;
const RECORDS: u8 = 3;
const LATE: u8 = 4;

// Which fields of a record are told.
const GAP: u8 = 1 << 0;
const KIND: u8 = 1 << 1;
const BOOT: u8 = 1 << 2;
const CLOCK: u8 = 1 << 3;
const NO_WALL: u8 = 1 << 4;
const LENGTH: u8 = 1 << 5;
const UNKNOWN: u8 = 0xc0;

/// What stands at the head of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Head {
    /// Who says it.
    pub device: DeviceId,
    /// Whose counters these are.
    pub incarnation: u32,
    /// The lane.
    pub lane: u8,
    /// The incarnation takes no more records.
    pub is_closing: bool,
    /// A record that is not settled holds up those behind it.
    pub is_in_order: bool,
    /// Every counter below is settled or accounted for.
    pub floor: u64,
    /// The next counter.
    pub issued: u64,
    /// Number of this boot.
    pub boot: u32,
    /// Tells this boot from another with the same number.
    pub boot_nonce: u32,
    /// Tells this envelope from every other.
    pub attempt_nonce: u64,
    /// Milliseconds since boot.
    pub uptime_ms: u64,
    /// Milliseconds since 1970, if the device knows them.
    pub wall_ms: Option<u64>,
}

impl Head {
    /// Bytes that it takes at most.
    const MAX: usize = 1 + 1 + (1 + DeviceId::MAX_LEN) + 4 + 1 + 10 + 10 + 5 + 4 + 8 + 10 + 10;

    /// Walks it. The reader has looked at version and flags.
    fn walk(&mut self, walk: &mut Walk<'_>) {
        walk.byte(&mut { VERSION });
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let mut flags = flag(self.is_closing, CLOSING)
            | flag(self.wall_ms.is_some(), HAS_WALL)
            | flag(self.is_in_order, IN_ORDER);
        walk.byte(&mut flags);
        self.is_closing = flags & CLOSING != 0;
        self.is_in_order = flags & IN_ORDER != 0;
        walk_device(&mut self.device, walk);
        walk_u32_fixed(&mut self.incarnation, walk);
        walk.byte(&mut self.lane);
        walk.shortest(&mut self.floor, u64::MAX);
        // Should it not be true, it wraps around to a number below the floor, and `is_possible` sees it.
        let mut distance = self.issued.wrapping_sub(self.floor);
        walk.shortest(&mut distance, u64::MAX);
        self.issued = self.floor.wrapping_add(distance);
        walk_u32(&mut self.boot, walk);
        walk_u32_fixed(&mut self.boot_nonce, walk);
        let mut attempt_nonce = self.attempt_nonce.to_le_bytes();
        walk.fixed(&mut attempt_nonce);
        self.attempt_nonce = u64::from_le_bytes(attempt_nonce);
        walk.shortest(&mut self.uptime_ms, u64::MAX);
        if flags & HAS_WALL != 0 {
            walk.shortest(self.wall_ms.get_or_insert(0), u64::MAX);
        }
    }

    fn is_possible(&self) -> bool {
        self.floor <= self.issued && self.issued <= Key::COUNTER_LIMIT
    }

    fn before_records(&self) -> Before {
        Before::records(self.floor, self.boot, self.uptime_ms, self.wall_ms)
    }

    fn is_of(&self, key: Key) -> bool {
        key.incarnation == self.incarnation && key.lane == self.lane
    }
}

fn walk_device(device: &mut DeviceId, walk: &mut Walk<'_>) {
    let from = walk.end();
    device.walk(walk);
    // The length takes one byte: it is at most 32.
    if walk.end() != from.map(|from| from + 1 + device.as_str().len()) {
        walk.fail();
    }
}

fn walk_u32_fixed(value: &mut u32, walk: &mut Walk<'_>) {
    let mut bytes = value.to_le_bytes();
    walk.fixed(&mut bytes);
    *value = u32::from_le_bytes(bytes);
}

fn walk_u32(value: &mut u32, walk: &mut Walk<'_>) {
    let mut number = u64::from(*value);
    walk.shortest(&mut number, u32::MAX.into());
    *value = number as u32;
}

fn walk_u16(value: &mut u16, walk: &mut Walk<'_>) {
    let mut number = u64::from(*value);
    walk.shortest(&mut number, u16::MAX.into());
    *value = number as u16;
}

/// A difference, as the bits of an i64; small ones take few bytes, whatever their sign.
fn walk_zigzag(difference: &mut u64, walk: &mut Walk<'_>) {
    let mut number = *difference << 1 ^ ((*difference as i64) >> 63) as u64;
    walk.shortest(&mut number, u64::MAX);
    *difference = number >> 1 ^ (number & 1).wrapping_neg();
}

/// What came before a record: what it repeats is left out.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// The counter after the last.
    next: u64,
    kind: u16,
    boot: u32,
    uptime_ms: u64,
    /// Wall clock minus uptime, where there was a wall clock last. Two u64 may be further apart than an i64
    /// tells.
    clock: Option<i128>,
    len: u16,
}

impl Before {
    /// Before the first record.
    fn records(floor: u64, boot: u32, uptime_ms: u64, wall_ms: Option<u64>) -> Self {
        let clock = wall_ms.map(|wall| i128::from(wall) - i128::from(uptime_ms));
        Self { next: floor, kind: 0, boot, uptime_ms, clock, len: 0 }
    }

    /// Walks what stands before the body of a record, which then is the one before. Fails when the record's
    /// times are too far from the last one's to be told. Gives the flags.
    fn walk(&mut self, record: &mut Stored<'_>, len: &mut u16, is_late: IsLate, walk: &mut Walk<'_>) -> u8 {
        let time = &mut record.time;
        if let IsLate::Yes = is_late {
            walk_u32_fixed(&mut record.key.incarnation, walk);
            walk.byte(&mut record.key.lane);
            walk.shortest(&mut record.key.counter, u64::MAX);
            self.next = record.key.counter;
        }
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let mut gap = record.key.counter.wrapping_sub(self.next);
        let clock = time.wall_ms.map(|wall| i128::from(wall) - i128::from(time.uptime_ms));
        let mut flags = flag(gap != 0, GAP)
            | flag(record.kind.0 != self.kind, KIND)
            | flag(time.boot != self.boot, BOOT)
            | flag(clock != self.clock, if clock.is_some() { CLOCK } else { NO_WALL })
            | flag(*len != self.len, LENGTH);
        walk.byte(&mut flags);
        // What is not told is as it was before; on the way out it is that already.
        if flags & GAP != 0 {
            walk.shortest(&mut gap, u64::MAX);
        } else {
            gap = 0;
        }
        // Beyond all counters in place of beyond all numbers: either is refused.
        record.key.counter = self.next.saturating_add(gap);
        self.next = record.key.counter.saturating_add(1);
        if flags & KIND != 0 {
            self.kind = record.kind.0;
            walk_u16(&mut self.kind, walk);
        }
        record.kind = Kind(self.kind);
        if flags & BOOT != 0 {
            self.boot = time.boot;
            walk_u32(&mut self.boot, walk);
            self.uptime_ms = 0;
        }
        time.boot = self.boot;
        let mut rise = time.uptime_ms.wrapping_sub(self.uptime_ms);
        walk_zigzag(&mut rise, walk);
        // A difference that is too large for an i64 was cut, and leads out of the u64 here: on both ways this
        // fails.
        match self.uptime_ms.checked_add_signed(rise as i64) {
            Some(uptime_ms) => time.uptime_ms = uptime_ms,
            None => walk.fail(),
        }
        self.uptime_ms = time.uptime_ms;
        if flags & CLOCK != 0 {
            let last = self.clock.unwrap_or(0);
            let mut change = (clock.unwrap_or(0) - last) as u64;
            walk_zigzag(&mut change, walk);
            self.clock = Some(last + i128::from(change as i64));
        }
        time.wall_ms = None;
        if let Some(clock) = self.clock
            && flags & NO_WALL == 0
        {
            match u64::try_from(clock + i128::from(time.uptime_ms)) {
                Ok(wall_ms) => time.wall_ms = Some(wall_ms),
                Err(_) => walk.fail(),
            }
        }
        if flags & LENGTH != 0 {
            self.len = *len;
            walk_u16(&mut self.len, walk);
        }
        *len = self.len;
        flags
    }

    /// Takes the next record from the bytes, if any are left. It has this key, but for what the bytes say of
    /// it.
    fn read<'a>(
        &mut self,
        rest: &mut &'a [u8],
        key: Key,
        is_late: IsLate,
    ) -> Result<Option<Stored<'a>>, WireError> {
        if rest.is_empty() {
            return Ok(None);
        }
        let mut record = Stored {
            key,
            kind: Kind(0),
            time: Timestamp { boot: 0, uptime_ms: 0, wall_ms: None },
            tag: None,
            cause: None,
            body: &[],
        };
        let mut len = 0;
        let mut walk = Walk::reading(rest);
        let flags = self.walk(&mut record, &mut len, is_late, &mut walk);
        // Unknown flags before anything else: of what follows them nothing is known.
        if flags & UNKNOWN != 0 {
            return Err(WireError::Unknown(flags & UNKNOWN));
        }
        let behind = walk.end().and_then(|end| rest.get(end..)).ok_or(WireError::Malformed)?;
        let (body, behind) = behind.split_at_checked(len.into()).ok_or(WireError::Malformed)?;
        if flags & (CLOCK | NO_WALL) == CLOCK | NO_WALL || matches!(is_late, IsLate::Yes) && flags & GAP != 0
        {
            return Err(WireError::Rule);
        }
        *rest = behind;
        Ok(Some(Stored { body, ..record }))
    }
}

/// Where a record stands: late ones say themselves whose they are.
#[derive(Clone, Copy)]
enum IsLate {
    No,
    Yes,
}

/// Puts a batch together in a buffer, record by record as they are read from the flash. The head is written
/// last, right before the first record.
///
/// The buffer needs [`HEAD_MAX`](Self::HEAD_MAX), [`ENTRY_MAX`](Self::ENTRY_MAX) for each entry of the
/// account, and [`RECORD_MAX`](Self::RECORD_MAX) and the body for each record.
pub struct BatchWriter<'b> {
    buffer: &'b mut [u8],
    boot: u32,
    uptime_ms: u64,
    wall_ms: Option<u64>,
    before: Before,
    floor: u64,
    /// The counter after the last record's; dead letters have counters of their own.
    next: u64,
    /// The first record's.
    key: Option<Key>,
    /// Where the records begin and end. What stands before the first of them takes no more bytes than there
    /// are, so a place in the buffer is also the most that the envelope takes up to there.
    records: (usize, usize),
    count: usize,
    /// Where the late records end, which begin `SECTION_MAX` behind the others.
    late_end: usize,
    late_count: usize,
}

impl<'b> BatchWriter<'b> {
    /// Numbers of the report for which there is room for certain: as many as have a meaning.
    pub const REPORT_LEN: usize = 8;
    /// Bytes that a head takes at most, with the numbers and lengths of the sections, the report, and the
    /// tag.
    pub const HEAD_MAX: usize = Head::MAX + Self::REPORT_LEN * 5 + 4 * SECTION_MAX + TAG_LEN;
    /// Bytes that an entry of the account takes at most.
    pub const ENTRY_MAX: usize = 1 + 10 + 10;
    /// Bytes that a record takes at most beside its body, also a late one.
    pub const RECORD_MAX: usize = (4 + 1 + 9) + 1 + 3 + 5 + 10 + 10 + 3;

    /// Begins a batch at this time of this boot, with room for so many entries of the account before the
    /// records.
    pub fn new(
        buffer: &'b mut [u8],
        boot: u32,
        uptime_ms: u64,
        wall_ms: Option<u64>,
        entries: usize,
    ) -> Self {
        // The tag, and number and length of the late section, stand behind.
        let account = entries.saturating_mul(Self::ENTRY_MAX);
        let front = (Self::HEAD_MAX - TAG_LEN - SECTION_MAX).saturating_add(account);
        let at = front.min(buffer.len().saturating_sub(TAG_LEN));
        Self {
            buffer,
            boot,
            uptime_ms,
            wall_ms,
            before: Before::records(0, boot, uptime_ms, wall_ms),
            floor: 0,
            next: 0,
            key: None,
            records: (at, at),
            count: 0,
            late_end: at + SECTION_MAX,
            late_count: 0,
        }
    }

    /// Where the records begin: the floor. Before the first of them; later it is too late, and nothing
    /// changes.
    pub fn set_floor(&mut self, floor: u64) {
        if self.count == 0 {
            self.floor = floor;
            self.before.next = floor;
        }
    }

    /// Adds a record; `false` if it does not fit in a batch of at most so many bytes.
    ///
    /// What cannot be in the same batch does not fit either: a record of another incarnation or lane, one
    /// that does not come after the last, one beyond the window, one after a dead letter, or one whose times
    /// are further from the last one's than can be told (292 million years).
    pub fn record(&mut self, record: &Stored<'_>, at_most: usize) -> bool {
        let key = record.key;
        let first = self.key.unwrap_or(key);
        if self.count >= RECORDS_MAX
            || self.late_count > 0
            || (first.incarnation, first.lane) != (key.incarnation, key.lane)
            || key.counter < self.before.next
            || key.counter - self.floor >= WINDOW
            || key.counter >= Key::COUNTER_LIMIT
        {
            return false;
        }
        let (_, at) = self.records;
        let Some(end) = self.write(at, record, IsLate::No, at_most) else { return false };
        self.records.1 = end;
        self.late_end = end + SECTION_MAX;
        self.next = self.before.next;
        self.key = Some(first);
        self.count += 1;
        true
    }

    /// Adds a dead letter, after all records; `false` if it does not fit.
    pub fn late(&mut self, record: &Stored<'_>, at_most: usize) -> bool {
        if self.late_count >= LATE_MAX || record.key.counter >= Key::COUNTER_LIMIT {
            return false;
        }
        let Some(end) = self.write(self.late_end, record, IsLate::Yes, at_most) else { return false };
        self.late_end = end;
        self.late_count += 1;
        true
    }

    /// Writes a record to its place. Gives its end.
    #[inline(never)]
    fn write(&mut self, at: usize, record: &Stored<'_>, is_late: IsLate, at_most: usize) -> Option<usize> {
        let limit = at_most.min(ENVELOPE_MAX).min(self.buffer.len()).checked_sub(TAG_LEN)?;
        let room = self.buffer.get_mut(at..limit)?;
        let mut before = self.before;
        let mut walk = Walk::writing(room);
        let len = record.body.len();
        before.walk(&mut { *record }, &mut u16::try_from(len).ok()?, is_late, &mut walk);
        let head = walk.end()?;
        let body = room.get_mut(head..)?.get_mut(..len)?;
        body.iter_mut().zip(record.body).for_each(|(place, byte)| *place = *byte);
        self.before = before;
        Some(at + head + len)
    }

    /// Records that were added.
    pub fn records(&self) -> usize {
        self.count
    }

    /// Dead letters that were added.
    pub fn lates(&self) -> usize {
        self.late_count
    }

    /// Writes the head, as many entries as there is room for, and the tag. Gives where the envelope lies in the
    /// buffer, and the number of entries.
    ///
    /// Boot, uptime and wall clock of the head become those with which the batch began. The floor, the
    /// incarnation and the lane have to be those of the records, `issued` beyond them, and the entries of the
    /// same lane.
    pub fn finish(
        mut self,
        head: &mut Head,
        account: &[Entry],
        report: &[u32],
        keys: &TagKeys,
    ) -> Result<(Range<usize>, usize), WireError> {
        head.boot = self.boot;
        head.uptime_ms = self.uptime_ms;
        head.wall_ms = self.wall_ms;
        let is_head_of = |key| head.is_of(key) && head.floor == self.floor && head.issued >= self.next;
        if !head.is_possible() || !self.key.is_none_or(is_head_of) || !can_be_told(head, account) {
            return Err(WireError::Rule);
        }
        let (start, entries) = self.write_front(head, account, report).ok_or(WireError::Room)?;
        let end = self.close_late().ok_or(WireError::Room)?;
        let envelope = self.buffer.get_mut(start..end + TAG_LEN).ok_or(WireError::Room)?;
        let (bytes, place) = envelope.split_last_chunk_mut().ok_or(WireError::Room)?;
        *place = keys.batch_tag(bytes);
        Ok((start..end + TAG_LEN, entries))
    }

    /// Writes everything before the records to the buffer's begin, then moves it up to them. Gives where it
    /// begins then, and how many entries there was room for.
    fn write_front(&mut self, head: &mut Head, account: &[Entry], report: &[u32]) -> Option<(usize, usize)> {
        let (records, records_end) = self.records;
        let front = self.buffer.get_mut(..records)?;
        let mut walk = Walk::writing(front);
        head.walk(&mut walk);
        let mut at = walk.end()?;

        // What would not fit if everything took as much as it can is left out: first of the account, whose
        // entries come again until they are confirmed.
        let room = records.saturating_sub(at + 3 * SECTION_MAX);
        let numbers = report.len().min(REPORT_MAX).min(room / 5);
        let entries = account.len().min(ENTRIES_MAX).min((room - numbers * 5) / Self::ENTRY_MAX);
        if entries > 0 {
            let mut walk = Walk::writing(front.get_mut(at + SECTION_MAX..)?);
            for entry in account.iter().take(entries) {
                walk_entry(&mut { *entry }, &mut walk);
            }
            let end = at + SECTION_MAX + walk.end()?;
            at = close_section(front, ACCOUNT, at, end)?;
        }
        if numbers > 0 {
            let mut walk = Walk::writing(front.get_mut(at + SECTION_MAX..)?);
            report.iter().take(numbers).for_each(|number| walk.number(&mut u64::from(*number)));
            let end = at + SECTION_MAX + walk.end()?;
            at = close_section(front, REPORT, at, end)?;
        }
        if records_end > records {
            at += write_section_header(front.get_mut(at..)?, RECORDS, records_end - records)?;
        }
        let start = records.checked_sub(at)?;
        shift(self.buffer, 0, start, at);
        Some((start, entries))
    }

    /// Gives the end of everything but the tag.
    fn close_late(&mut self) -> Option<usize> {
        let (_, at) = self.records;
        if self.late_count == 0 {
            return Some(at);
        }
        close_section(self.buffer, LATE, at, self.late_end)
    }
}

/// Whether these are entries of the head's lane, and about counters.
fn can_be_told(head: &Head, account: &[Entry]) -> bool {
    account.iter().all(|entry| entry.is_of(head.incarnation, head.lane) && is_about_counters(entry))
}

fn is_about_counters(entry: &Entry) -> bool {
    entry.len > 0 && entry.end() <= Key::COUNTER_LIMIT
}

/// Walks an entry, whose incarnation and lane are the head's. Gives the reason's number if it is none.
fn walk_entry(entry: &mut Entry, walk: &mut Walk<'_>) -> Option<u8> {
    let mut number = entry.reason as u8;
    walk.byte(&mut number);
    walk.shortest(&mut entry.first, u64::MAX);
    walk.shortest(&mut entry.len, u64::MAX);
    match Reason::ALL.get(usize::from(number)) {
        Some(reason) => {
            entry.reason = *reason;
            None
        }
        None => Some(number),
    }
}

/// Reads an entry of whatever lane.
fn read_entry(walk: &mut Walk<'_>) -> Result<Entry, WireError> {
    let mut entry = Entry { incarnation: 0, lane: 0, reason: Reason::Lost, first: 0, len: 0 };
    match walk_entry(&mut entry, walk) {
        Some(unknown) => Err(WireError::Unknown(unknown)),
        None if is_about_counters(&entry) => Ok(entry),
        None => Err(WireError::Rule),
    }
}

fn read_number(walk: &mut Walk<'_>) -> Result<u32, WireError> {
    let mut number = 0;
    walk_u32(&mut number, walk);
    Ok(number)
}

/// A batch that was read and found to keep the rules.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// Its head.
    pub head: Head,
    account: &'a [u8],
    report: &'a [u8],
    records: &'a [u8],
    late: &'a [u8],
    before_late: Before,
}

impl<'a> Batch<'a> {
    /// Whose batch this claims to be, so that its tag can be checked.
    pub fn device(envelope: &[u8]) -> Result<DeviceId, WireError> {
        check_start(envelope, u8::MAX)?;
        let mut device = DeviceId::blank();
        let mut walk = Walk::reading(envelope.get(2..).ok_or(WireError::Malformed)?);
        walk_device(&mut device, &mut walk);
        walk.end().ok_or(WireError::Malformed)?;
        Ok(device)
    }

    /// Reads an envelope whose tag was found right. Everything is checked here: what it holds can be relied
    /// on.
    pub fn decode(envelope: &'a [u8]) -> Result<Self, WireError> {
        let (bytes, _) = envelope.split_last_chunk::<TAG_LEN>().ok_or(WireError::Malformed)?;
        check_start(bytes, CLOSING | HAS_WALL | IN_ORDER)?;
        if envelope.len() > ENVELOPE_MAX {
            return Err(WireError::Rule);
        }
        let mut head = Head {
            device: DeviceId::blank(),
            incarnation: 0,
            lane: 0,
            is_closing: false,
            is_in_order: false,
            floor: 0,
            issued: 0,
            boot: 0,
            boot_nonce: 0,
            attempt_nonce: 0,
            uptime_ms: 0,
            wall_ms: None,
        };
        let mut walk = Walk::reading(bytes);
        head.walk(&mut walk);
        let rest = walk.end().and_then(|end| bytes.get(end..)).ok_or(WireError::Malformed)?;
        if !head.is_possible() {
            return Err(WireError::Rule);
        }
        let before_late = head.before_records();
        let mut batch = Self { head, account: &[], report: &[], records: &[], late: &[], before_late };
        let mut sections = Sections::new(rest);
        while let Some((number, content)) = sections.next(LATE)? {
            match number {
                ACCOUNT => batch.account = content,
                REPORT => batch.report = content,
                RECORDS => batch.records = content,
                _ => batch.late = content,
            }
        }
        batch.check_account()?;
        check_elements(elements(batch.report, read_number), REPORT_MAX)?;
        batch.before_late = batch.check_records()?;
        batch.check_late()?;
        Ok(batch)
    }

    fn check_account(&self) -> Result<(), WireError> {
        check_elements(elements(self.account, read_entry), ENTRIES_MAX)?;
        for (n, one) in self.entries().enumerate() {
            if self.entries().take(n).any(|other| one.overlaps(&other)) {
                return Err(WireError::Rule);
            }
        }
        Ok(())
    }

    /// Gives what comes before the late ones.
    fn check_records(&self) -> Result<Before, WireError> {
        let head = &self.head;
        let mut before = head.before_records();
        let mut rest = self.records;
        let mut count = 0;
        while let Some(record) = before.read(&mut rest, self.key(), IsLate::No)? {
            // It comes after the last in any case, and `issued` is below the limit of all counters.
            let counter = record.key.counter;
            count += 1;
            if counter - head.floor >= WINDOW || counter >= head.issued || count > RECORDS_MAX {
                return Err(WireError::Rule);
            }
        }
        Ok(before)
    }

    fn check_late(&self) -> Result<(), WireError> {
        let mut before = self.before_late;
        let mut rest = self.late;
        let mut count = 0;
        while let Some(record) = before.read(&mut rest, self.key(), IsLate::Yes)? {
            count += 1;
            if record.key.counter >= Key::COUNTER_LIMIT || count > LATE_MAX {
                return Err(WireError::Rule);
            }
        }
        Ok(())
    }

    /// The key of a record of this batch, but for the counter.
    fn key(&self) -> Key {
        Key { incarnation: self.head.incarnation, lane: self.head.lane, counter: 0 }
    }

    /// The account.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + 'a {
        let Key { incarnation, lane, .. } = self.key();
        elements(self.account, read_entry).map_while(Result::ok).map(move |entry| Entry {
            incarnation,
            lane,
            ..entry
        })
    }

    /// The report, by place.
    pub fn report(&self) -> impl Iterator<Item = u32> + 'a {
        elements(self.report, read_number).map_while(Result::ok)
    }

    /// The records, with neither tag nor cause.
    pub fn records(&self) -> impl Iterator<Item = Stored<'a>> + 'a {
        let (mut before, mut rest, key) = (self.head.before_records(), self.records, self.key());
        core::iter::from_fn(move || before.read(&mut rest, key, IsLate::No).ok().flatten())
    }

    /// Dead letters that were sent again.
    pub fn late(&self) -> impl Iterator<Item = Stored<'a>> + 'a {
        let (mut before, mut rest, key) = (self.before_late, self.late, self.key());
        core::iter::from_fn(move || before.read(&mut rest, key, IsLate::Yes).ok().flatten())
    }
}

/// What tells one content from another under the same key.
pub fn fingerprint(record: &Stored<'_>) -> [u8; 16] {
    let Timestamp { boot, uptime_ms, wall_ms } = record.time;
    let mut hash = Sha256::new();
    hash.update(record.kind.0.to_le_bytes());
    hash.update(boot.to_le_bytes());
    hash.update(uptime_ms.to_le_bytes());
    hash.update([wall_ms.is_some().into()]);
    hash.update(wall_ms.unwrap_or(0).to_le_bytes());
    hash.update(record.body);
    let mut fingerprint = [0; 16];
    fingerprint.iter_mut().zip(hash.finalize()).for_each(|(place, byte)| *place = byte);
    fingerprint
}
