//! A device without flash and without bytes: counters that are pending, delivered, given up or parked, and an account
//! that is joined when it grows too long. It knows the truth that the receiver's books are compared with.

use std::collections::BTreeSet;
use std::ops::Range;

use pillarbox::{Entry, Reason, wire::WINDOW};

use crate::server::books::{Said, Seen};
use crate::server::ledger::Lane;
use crate::server::ranges::{Open, minus, rank};

/// An entry of the lane that these tests are about.
pub fn entry(reason: Reason, first: u64, len: u64) -> Entry {
    Entry { incarnation: 1, lane: 0, reason, first, len }
}

/// What a device is like.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Entries that the account holds, before it joins the nearest.
    entries: usize,
    /// Its dead letters are discarded at times.
    discards: bool,
    /// It gives up many records at once at times.
    leaps: bool,
    /// The receiver is restored from a backup at times.
    pub is_restored: bool,
}

impl Habits {
    /// Some device.
    pub fn any(random: &mut fastrand::Rng) -> Self {
        Self {
            entries: if random.bool() { 16 } else { usize::MAX },
            discards: random.bool(),
            leaps: random.bool(),
            is_restored: random.u8(..3) == 0,
        }
    }
}

/// A batch on its way.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its head.
    pub said: Said,
    /// Its account.
    pub entries: Vec<Entry>,
    /// The counters of its records.
    pub records: Vec<u64>,
    /// The counters of its late records.
    pub late: Vec<u64>,
}

/// What the receiver made of it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether each record is settled.
    pub settled: Vec<bool>,
    /// Whether each late record is settled.
    pub late_settled: Vec<bool>,
    /// Bit n: entry n is in the books.
    pub confirmed: u32,
    /// Counters that the receiver asks about.
    pub explain: Vec<Range<u64>>,
}

impl Answer {
    /// Whether every entry is in the books.
    pub fn is_all_confirmed(&self, sent: &Sent) -> bool {
        self.confirmed.count_ones() as usize == sent.entries.len()
    }

    /// Whether the receiver had no room for uncertain counters, or left them out.
    pub fn is_uncertain_waiting(&self, sent: &Sent) -> bool {
        let mut entries = sent.entries.iter().enumerate();
        entries.any(|(n, entry)| entry.reason == Reason::Uncertain && self.confirmed & (1 << n) == 0)
    }
}

impl Sent {
    /// Takes the batch into the books, as a receiver does.
    pub fn arrive(&self, lane: &mut Lane, refuse: impl Fn(u64) -> bool) -> Answer {
        lane.begin(&self.said, &self.entries);
        let mut take = |counter: &u64| match lane.seen(*counter) {
            Seen::New if refuse(*counter) => false,
            Seen::New => {
                lane.store(*counter);
                true
            }
            Seen::Duplicate | Seen::Doubtful => true,
            Seen::Beyond => false,
        };
        let settled = self.records.iter().map(&mut take).collect();
        let late_settled = self.late.iter().map(&mut take).collect();
        let (confirmed, explain) = lane.finish(&self.said, &self.entries);
        Answer { settled, late_settled, confirmed, explain }
    }
}

/// The device.
#[derive(Debug)]
pub struct Device {
    habits: Habits,
    next: u64,
    pending: BTreeSet<u64>,
    parked: BTreeSet<u64>,
    account: Vec<Open>,
    /// Every reason that was ever given, where no other stood over it.
    given: Vec<Open>,
    is_closing: bool,
    /// The account never had to say less than is true.
    pub is_exact: bool,
    /// The receiver had no room for uncertain counters once. Then it may take lost ones for uncertain later.
    pub had_no_room: bool,
}

impl Device {
    /// A device whose first counters were given up before the receiver heard of it.
    pub fn new(habits: Habits, given_up: u64) -> Self {
        let mut device = Self {
            habits,
            next: given_up,
            pending: BTreeSet::new(),
            parked: BTreeSet::new(),
            account: Vec::new(),
            given: Vec::new(),
            is_closing: false,
            is_exact: habits.entries == usize::MAX,
            had_no_room: false,
        };
        device.give_up(0..given_up, Reason::Evicted);
        device
    }

    fn floor(&self) -> u64 {
        self.pending.first().copied().unwrap_or(self.next)
    }

    /// Whether it has nothing more to say.
    pub fn is_done(&self) -> bool {
        self.pending.is_empty() && self.parked.is_empty() && self.account.is_empty()
    }

    /// The incarnation takes no more records.
    pub fn stop(&mut self) {
        self.is_closing = true;
    }

    fn give_up(&mut self, counters: Range<u64>, reason: Reason) {
        let new = Open::new(counters, reason);
        for list in [&mut self.account, &mut self.given] {
            put(list, new);
        }
        while self.account.len() > self.habits.entries {
            let gap = |at: &usize| self.account[at + 1].first - self.account[*at].end;
            let at = (0..self.account.len() - 1).min_by_key(gap).expect("there are two");
            let next = self.account.remove(at + 1);
            let one = &mut self.account[at];
            one.reason = if rank(one.reason) > rank(next.reason) { one.reason } else { next.reason };
            one.end = next.end;
        }
    }

    /// Some of what an application and a lane's policy do.
    pub fn live(&mut self, random: &mut fastrand::Rng) {
        for _ in 0..random.usize(..6) {
            match random.u8(..10) {
                0..=4 => {
                    let end = self.next + random.u64(..40);
                    self.pending.extend(self.next..end);
                    self.next = end;
                }
                5 => {
                    let all: Vec<u64> = self.pending.iter().copied().collect();
                    let every = random.usize(2..9);
                    let reasons = [Reason::Superseded, Reason::Expired, Reason::Rejected, Reason::Parked];
                    for counter in
                        all.into_iter().skip(random.usize(..50)).step_by(every).take(random.usize(..40))
                    {
                        let reason = random.choice(reasons).expect("there are some");
                        self.pending.remove(&counter);
                        self.give_up(counter..counter + 1, reason);
                        if reason == Reason::Parked {
                            self.parked.insert(counter);
                        }
                    }
                }
                6 => {
                    // A page's worth, oldest first.
                    for _ in 0..random.usize(..30) {
                        let Some(counter) = self.pending.pop_first() else { break };
                        self.give_up(counter..counter + 1, Reason::Evicted);
                    }
                }
                7 if self.habits.discards => {
                    if let Some(counter) = self.parked.pop_first() {
                        self.give_up(counter..counter + 1, Reason::Evicted);
                    }
                }
                8 if self.habits.leaps && random.u8(..4) == 0 => {
                    let bits = random.u8(1..40);
                    let end = self.next + random.u64(..1 << bits);
                    self.give_up(self.next..end, Reason::Evicted);
                    self.next = end;
                }
                _ => {}
            }
        }
    }

    /// Power is lost: the youngest records may be gone, and how many counters had been handed out is not known.
    pub fn reboot(&mut self, random: &mut fastrand::Rng, heard: u64) {
        let gone = (0..random.usize(..4)).filter_map(|_| self.pending.pop_last()).last();
        let first = gone.unwrap_or(self.next);
        let end = self.next + random.u64(..64);
        put(&mut self.account, Open::new(first..end, Reason::Uncertain));
        // The truth: what the receiver had heard of was handed out.
        for (range, reason) in
            [(first..heard.min(end), Reason::Lost), (heard.max(first)..end, Reason::Uncertain)]
        {
            for new in minus(range, &self.given.clone()) {
                put(&mut self.given, Open::new(new, reason));
            }
        }
        self.next = end;
        self.give_up(end..end, Reason::Lost);
    }

    /// The next batch: all that is uncertain, as much of the account as fits, and some records.
    pub fn batch(&mut self, random: &mut fastrand::Rng) -> Sent {
        let mut account = self.account.clone();
        account.sort_by_key(|open| open.reason != Reason::Uncertain);
        account.truncate(32);
        let uncertain = self.account.iter().filter(|open| open.reason == Reason::Uncertain).count();
        self.is_exact &= uncertain <= 32;
        let entries = account.iter().map(|open| entry(open.reason, open.first, open.len())).collect();
        let floor = self.floor();
        let sparse = random.u8(..4);
        let at_most = random.usize(..200);
        let records = self.pending.range(floor..floor + WINDOW).copied();
        let records = records.filter(|_| sparse == 0 || random.u8(..4) >= sparse).take(at_most).collect();
        let late = self.parked.iter().copied().filter(|_| random.u8(..4) == 0).take(16).collect();
        let said = Said { floor, issued: self.next, is_closing: self.is_closing };
        Sent { said, entries, records, late }
    }

    /// Gets the answer to what it sent.
    pub fn hear(&mut self, sent: &Sent, answer: &Answer) {
        for (counter, is_settled) in sent.records.iter().zip(&answer.settled) {
            if *is_settled {
                self.pending.remove(counter);
            }
        }
        for (counter, is_settled) in sent.late.iter().zip(&answer.late_settled) {
            if *is_settled {
                self.parked.remove(counter);
            }
        }
        for (n, done) in sent.entries.iter().enumerate() {
            if answer.confirmed & (1 << n) != 0 {
                let hole = Open::new(done.first..done.end(), done.reason);
                self.account = self
                    .account
                    .iter()
                    .flat_map(|open| match open.reason == done.reason {
                        true => minus(open.range(), &[hole])
                            .into_iter()
                            .map(|r| Open::new(r, open.reason))
                            .collect(),
                        false => vec![*open],
                    })
                    .collect();
            }
        }
        for asked in &answer.explain {
            let known: Vec<Open> = self.account.clone();
            for missing in minus(asked.clone(), &known) {
                self.is_exact = false;
                self.give_up(missing, Reason::Lost);
            }
        }
    }

    /// When the device always said what was true, the books say it too.
    pub fn compare(&self, lane: &Lane) {
        if !self.is_exact || self.habits.discards {
            return;
        }
        let mut expected = [0; Reason::COUNT];
        for open in &self.given {
            let received = lane.received().range(open.range()).count() as u64;
            expected[open.reason as usize] += open.len() - received;
        }
        let mut explained = lane.ledger().explained;
        if self.had_no_room {
            for counts in [&mut explained, &mut expected] {
                counts[Reason::Uncertain as usize] += std::mem::take(&mut counts[Reason::Lost as usize]);
            }
        }
        assert_eq!(explained, expected, "reasons");
    }
}

/// Explains counters; what stands over the new reason stays.
fn put(list: &mut Vec<Open>, new: Open) {
    let (over, under): (Vec<Open>, Vec<Open>) =
        list.iter().partition(|open| rank(open.reason) >= rank(new.reason));
    let mut all = over.clone();
    all.extend(minus(new.range(), &over).into_iter().map(|range| Open::new(range, new.reason)));
    for open in under {
        all.extend(minus(open.range(), &[new]).into_iter().map(|range| Open::new(range, open.reason)));
    }
    all.sort_by_key(|open| open.first);
    list.clear();
    for open in all {
        match list.last_mut() {
            Some(last) if last.end == open.first && last.reason == open.reason => last.end = open.end,
            _ => list.push(open),
        }
    }
}
