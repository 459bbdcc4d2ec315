//! The dead letters: records that could not be sent, kept aside so that nothing behind them has to wait.

use embassy_sync::blocking_mutex::raw::RawMutex;
use heapless::Vec;

use super::{Books, Core, Task, tidy::final_reason};
use crate::{
    Clock, Entry, Key, Reason, Stored,
    ledger::{Act, DEAD_LETTERS, Intent, LATE},
    list::take_where,
    rings::{Look, Work},
    walk::{Here, Scope, Visit},
};

/// A dead letter that is looked for.
pub(crate) struct Letter {
    key: Key,
    is_looked_for: bool,
    found: Option<(u16, Reason)>,
}

impl Letter {
    fn new(key: Key) -> Self {
        Self { key, is_looked_for: false, found: None }
    }

    /// Looks for it once.
    fn look(&mut self) -> Option<Work> {
        let is_first = !core::mem::replace(&mut self.is_looked_for, true);
        is_first.then_some(Work::Walk(DEAD_LETTERS, Scope::Pending, Look::Task))
    }

    fn visit(&mut self, stored: &Stored<'_>, here: &Here) -> Visit {
        if stored.key != self.key {
            return Visit::Keep;
        }
        self.found = Some((here.page, final_reason(stored)));
        Visit::Stop
    }
}

/// Sends a dead letter again, under its old key.
pub(crate) struct Retry {
    letter: Letter,
    /// It is on its way: there is such a letter, and not too many others are under way.
    pub(crate) is_late: bool,
}

impl Retry {
    pub(crate) fn new(key: Key) -> Self {
        Self { letter: Letter::new(key), is_late: false }
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Retry {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        let Letter { key, found, .. } = self.letter;
        let late = &mut core.books.ledger.late;
        self.is_late = late.contains(&key);
        if !self.is_late && found.is_some() {
            self.is_late = late.push(key).is_ok();
            core.books.must_commit |= self.is_late;
            self.letter.found = None;
        }
        if self.is_late { None } else { self.letter.look() }
    }

    fn visit(&mut self, _: &mut Books<'_, M, C, LANES>, stored: &Stored<'_>, here: &Here) -> Visit {
        self.letter.visit(stored, here)
    }
}

/// Gives a dead letter up for good.
pub(crate) struct Discard {
    letter: Letter,
    /// There was such a letter.
    pub(crate) is_discarded: bool,
}

impl Discard {
    pub(crate) fn new(key: Key) -> Self {
        Self { letter: Letter::new(key), is_discarded: false }
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Discard {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        let key = self.letter.key;
        if let Some((page, reason)) = self.letter.found.take() {
            self.is_discarded = true;
            core.books.give_up(Entry::of(key, reason), 1);
            take_where(&mut core.books.ledger.late, |late| *late == key);
            core.books.intend(Intent::new(Act::Remove, DEAD_LETTERS, page, key));
        }
        self.letter.look()
    }

    fn visit(&mut self, _: &mut Books<'_, M, C, LANES>, stored: &Stored<'_>, here: &Here) -> Visit {
        self.letter.visit(stored, here)
    }
}

/// Shows the dead letters that are to be sent again.
pub(crate) struct Late<'t> {
    take: &'t mut dyn FnMut(&Stored<'_>) -> bool,
    is_looked_for: bool,
    found: Vec<Key, LATE>,
}

impl<'t> Late<'t> {
    pub(crate) fn new(take: &'t mut dyn FnMut(&Stored<'_>) -> bool) -> Self {
        Self { take, is_looked_for: false, found: Vec::new() }
    }
}

impl<M: RawMutex, C: Clock, const LANES: usize> Task<M, C, LANES> for Late<'_> {
    fn turn(&mut self, core: &mut Core<'_, M, C, LANES>) -> Option<Work> {
        let late = &mut core.books.ledger.late;
        if !self.is_looked_for && !late.is_empty() {
            self.is_looked_for = true;
            return Some(Work::Walk(DEAD_LETTERS, Scope::Pending, Look::Task));
        }
        if self.is_looked_for && core.desk.outcome.is_complete {
            // Others have made room for younger dead letters.
            take_where(late, |key| !self.found.contains(key));
        }
        None
    }

    fn visit(&mut self, books: &mut Books<'_, M, C, LANES>, stored: &Stored<'_>, _: &Here) -> Visit {
        if !books.ledger.late.contains(&stored.key) {
            return Visit::Keep;
        }
        let _ = self.found.push(stored.key);
        if (self.take)(stored) { Visit::Keep } else { Visit::Stop }
    }
}
