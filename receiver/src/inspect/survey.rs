//! Putting together what the scan shows: records with their bodies, pages with their counts, lanes with their counters.

use std::collections::{BTreeMap, BTreeSet};

use pillarbox::scan::{BUFFER, Item, Magic, Metadata, Page, Ring, Sight, Standing, State};
use pillarbox::{DeviceId, Key};

use super::findings;
use super::region::{Dump, Region};
use super::told::{cause_name, entry_view, former_view, half_view, region_view, where_of};
use super::view::{Fate, Finding, Inspection, LaneView, PageHealth, PageView, RecordView, Totals, Where};
use crate::admin::IncarnationName;
use crate::kinds::{Decoded, Kinds};
use crate::moment::Moment;

/// Looks at a dump.
pub(super) fn look(dump: &[u8], origin: Option<u32>, kinds: &Kinds) -> Inspection {
    let dump = Dump::new(dump);
    let mut survey = Survey::new(kinds, dump.len);
    let mut found = match dump.region(origin) {
        Region::Known { origin, metadata, others } => {
            survey.device = Some(metadata.layout.device.clone());
            findings::others(&others, &mut survey.notes);
            survey.known(&dump, origin, &metadata)
        }
        Region::Pages { geometry, why, at } => {
            findings::no_metadata(&why, at, &mut survey.problems);
            let mut image = dump.image(at % geometry.page(), geometry.page());
            let mut buffer = vec![0; BUFFER];
            for page in dump.pages_of(geometry) {
                // What is not wholly in the dump's raster cannot be read as a page; its neighbours are.
                if origin.is_none_or(|origin| page >= origin) {
                    let _ = image.survey_page(page, geometry, &mut buffer, |sight| survey.see(sight));
                }
            }
            survey.pages_alone(geometry.page())
        }
        Region::None => {
            findings::no_region(origin, dump.len, &mut survey.problems);
            survey.end()
        }
    };
    found.is_sound = found.problems.is_empty();
    found
}

/// What has been seen so far.
pub(super) struct Survey<'k> {
    kinds: &'k Kinds,
    device: Option<DeviceId>,
    len: usize,
    pub(super) records: Vec<RecordView>,
    /// The key of each of them, in the same order.
    keys: Vec<Key>,
    pub(super) pages: Vec<PageView>,
    /// What has been seen of the page whose items are being shown.
    counts: Counts,
    /// The youngest record of each ring.
    youngest: BTreeMap<Ring, usize>,
    pub(super) notes: Vec<Finding>,
    pub(super) problems: Vec<Finding>,
}

#[derive(Default)]
struct Counts {
    pending: u32,
    removed: u32,
    void: u32,
    corrupt: u32,
    unfinished: u32,
    strays: u32,
}

impl<'k> Survey<'k> {
    fn new(kinds: &'k Kinds, len: usize) -> Self {
        Self {
            kinds,
            len,
            device: None,
            records: Vec::new(),
            keys: Vec::new(),
            pages: Vec::new(),
            counts: Counts::default(),
            youngest: BTreeMap::new(),
            notes: Vec::new(),
            problems: Vec::new(),
        }
    }

    fn known(mut self, dump: &Dump, origin: u32, metadata: &Metadata) -> Inspection {
        let mut buffer = vec![0; BUFFER];
        let (geometry, layout) = (metadata.geometry, &metadata.layout);
        let mut image = dump.image(origin, geometry.page());
        if let Err(error) = image.survey(origin, geometry, layout, &mut buffer, |sight| self.see(sight)) {
            self.problem(origin.into(), format!("the rings cannot be read: {error}."));
        }
        let halves =
            dump.and_behind().halves(origin, geometry, &mut buffer).map(Vec::from).unwrap_or_default();
        findings::metadata(&mut self, origin, metadata, &halves);
        findings::rings(&mut self);
        findings::strays(&mut self, metadata);
        self.leave(metadata);
        let lanes = (0..).zip(&metadata.lanes).map(|(lane, _)| self.lane(lane, metadata)).collect();
        for attempts in metadata.lanes.iter().flat_map(|lane| &lane.attempts) {
            self.each_of(attempts.key, |record| record.attempts = Some(attempts.count));
        }
        for key in &metadata.late {
            self.each_of(*key, |record| record.is_late = record.ring == Where::DeadLetters);
        }
        let late = metadata.late.iter().map(|key| self.name(*key)).collect();
        Inspection {
            region: Some(region_view(origin, metadata)),
            lanes,
            account: metadata.account.iter().map(entry_view).collect(),
            late,
            former: metadata.former.iter().map(former_view).collect(),
            metadata: halves.iter().map(half_view).collect(),
            ..self.end()
        }
    }

    /// Of a region without metadata: its pages in the order in which they lie there, but for those that hold nothing and are not open.
    /// They may be anything: its metadata, or no part of it.
    fn pages_alone(mut self, page_len: u32) -> Inspection {
        let is_other =
            |page: &PageView| page.state != "open" && page.pending + page.removed + page.strays == 0;
        let (others, pages): (Vec<PageView>, Vec<PageView>) = self.pages.into_iter().partition(is_other);
        let others: BTreeSet<u64> = others.into_iter().map(|page| page.address).collect();
        let is_in_other = |finding: &Finding| {
            let at = finding.address.unwrap_or_default();
            others.range(..=at).next_back().is_some_and(|start| at - start < u64::from(page_len))
        };
        // The first problem is that there are no metadata.
        let mut problems = self.problems.into_iter();
        let first = problems.next();
        self.problems = first.into_iter().chain(problems.filter(|finding| !is_in_other(finding))).collect();
        self.notes.retain(|finding| !is_in_other(finding));
        self.pages = pages;
        findings::rings(&mut self);
        self.end()
    }

    fn end(self) -> Inspection {
        let mut totals = Totals { pages: self.pages.len() as u64, ..Totals::default() };
        for record in &self.records {
            match record.state {
                Fate::Pending => totals.pending += 1,
                Fate::Dead => totals.dead += 1,
                Fate::Leaving => totals.leaving += 1,
                Fate::Removed => totals.removed += 1,
                Fate::Stray => totals.strays += 1,
            }
        }
        for page in &self.pages {
            totals.void += u64::from(page.void);
            totals.corrupt += u64::from(page.corrupt);
            totals.unfinished += u64::from(page.unfinished);
            totals.free += u64::from(page.free);
            totals.bad_pages += u64::from(page.health >= PageHealth::Damaged);
        }
        Inspection {
            is_sound: self.problems.is_empty(),
            bytes: self.len as u64,
            region: None,
            lanes: Vec::new(),
            records: self.records,
            account: Vec::new(),
            late: Vec::new(),
            former: Vec::new(),
            metadata: Vec::new(),
            pages: self.pages,
            totals,
            notes: self.notes,
            problems: self.problems,
        }
    }

    pub(super) fn problem(&mut self, address: u64, says: String) {
        self.problems.push(Finding { address: Some(address), says });
    }

    pub(super) fn note(&mut self, address: u64, says: String) {
        self.notes.push(Finding { address: Some(address), says });
    }

    /// A record's name, for people.
    pub(super) fn name(&self, key: Key) -> String {
        match &self.device {
            Some(device) => key.of(device).to_string(),
            None => format!("?.{:08x}.{}.{}", key.incarnation, key.lane, key.counter),
        }
    }

    fn each_of(&mut self, key: Key, mut change: impl FnMut(&mut RecordView)) {
        let records = self.records.iter_mut().zip(&self.keys);
        records.filter(|(_, known)| **known == key).for_each(|(record, _)| change(record));
    }

    fn see(&mut self, sight: Sight<'_>) {
        match sight {
            Sight::Item(item) => self.item(&item),
            Sight::Page(page) => self.page(&page),
            Sight::Missing { ring, page, address } => self.pages.push(PageView {
                ring: where_of(ring),
                page,
                address,
                state: "missing",
                magic: None,
                health: PageHealth::Missing,
                pending: 0,
                removed: 0,
                void: 0,
                corrupt: 0,
                unfinished: 0,
                strays: 0,
                spent_words: 0,
                free: 0,
            }),
        }
    }

    fn item(&mut self, item: &Item<'_>) {
        let counts = &mut self.counts;
        let at = u64::from(item.address);
        let fate = match item.state {
            State::Pending => {
                counts.pending += 1;
                let is_dead = item.record.is_some_and(|record| record.cause.is_some());
                if is_dead || item.ring == Ring::DeadLetters { Fate::Dead } else { Fate::Pending }
            }
            State::Removed => {
                counts.removed += 1;
                Fate::Removed
            }
            State::Stray => {
                counts.strays += 1;
                Fate::Stray
            }
            State::Void => return counts.void += 1,
            State::Unfinished => {
                counts.unfinished += 1;
                self.note(at, findings::unfinished_item(item.record.is_some()).into());
                Fate::Removed
            }
            State::Corrupt => {
                counts.corrupt += 1;
                return self.problem(at, findings::corrupt(where_of(item.ring), item.page));
            }
        };
        let Some(record) = &item.record else { return };
        if matches!(item.state, State::Pending | State::Removed) {
            self.youngest.insert(item.ring, self.records.len());
        }
        let (data, unreadable) = match self.kinds.decode(record.kind.0, record.body) {
            Decoded::Json(value) => (Some(value), None),
            Decoded::Unknown => (None, None),
            Decoded::Unreadable(why) => (None, Some(why)),
        };
        self.keys.push(record.key);
        self.records.push(RecordView {
            key: self.name(record.key),
            incarnation: IncarnationName(record.key.incarnation),
            lane: record.key.lane,
            counter: record.key.counter,
            state: fate,
            leaving: None,
            cause: record.cause.map(cause_name),
            attempts: None,
            is_late: false,
            tag: record.tag,
            kind: record.kind.0,
            name: self.kinds.name(record.kind.0).map(str::to_owned),
            at: record.time.wall_ms.map(Moment),
            boot: record.time.boot,
            uptime_ms: record.time.uptime_ms,
            hex: data.is_none().then(|| hex::encode(record.body)),
            data,
            unreadable,
            ring: where_of(item.ring),
            page: item.page,
            address: item.address,
        });
    }

    fn page(&mut self, page: &Page) {
        let counts = std::mem::take(&mut self.counts);
        let mut view = PageView {
            ring: where_of(page.ring),
            page: page.page,
            address: page.address.into(),
            state: match page.standing {
                Standing::Erasing => "erasing",
                Standing::Open => "open",
                Standing::Senseless => "senseless",
                Standing::InUse => "in use",
                Standing::Closed => "closed",
            },
            magic: Some(match page.magic {
                Magic::Exact => "exact",
                Magic::Blank => "blank",
                Magic::Zeroed => "zeroed",
                Magic::Other => "other",
            }),
            health: PageHealth::Sound,
            pending: counts.pending,
            removed: counts.removed,
            void: counts.void,
            corrupt: counts.corrupt,
            unfinished: counts.unfinished,
            strays: counts.strays,
            spent_words: page.spent,
            free: page.free,
        };
        findings::page(self, page, &mut view);
        self.pages.push(view);
    }

    /// Which records the next boot removes: because of what was begun, or because a younger one has their tag.
    fn leave(&mut self, metadata: &Metadata) {
        let last_of = |ring: Where, page: u16| {
            let on_page = |record: &RecordView| {
                (record.ring, record.page) == (ring, page) && record.state != Fate::Stray
            };
            self.records.iter().rposition(on_page).and_then(|at| self.keys.get(at)).copied()
        };
        let leaving = findings::leaving(metadata, last_of);
        let superseded: Vec<(u8, Key, u16)> =
            (0..).zip(&metadata.lanes).filter_map(|(lane, _)| self.superseded(lane, metadata)).collect();
        for (record, key) in self.records.iter_mut().zip(&self.keys) {
            if !matches!(record.state, Fate::Pending | Fate::Dead) {
                continue;
            }
            let is_superseded = superseded.contains(&(record.lane, *key, record.page));
            let why = leaving.of(record, *key).or_else(|| {
                (is_superseded && record.ring == Where::Lane(record.lane)).then_some("superseded")
            });
            if why.is_some() {
                (record.state, record.leaving) = (Fate::Leaving, why);
            }
        }
    }

    /// The youngest record of a lane may have been appended without its tag being taken up.
    fn superseded(&self, lane: u8, metadata: &Metadata) -> Option<(u8, Key, u16)> {
        let at = *self.youngest.get(&Ring::Lane(lane))?;
        let (young, key) = (self.records.get(at)?, self.keys.get(at)?);
        let tags = &metadata.lanes.get(usize::from(lane))?.tags;
        let old = tags.iter().find(|known| Some(known.tag) == young.tag)?;
        let is_new = young.state == Fate::Pending
            && key.incarnation == metadata.incarnation
            && old.counter < key.counter;
        is_new.then_some((lane, Key { counter: old.counter, ..*key }, old.page))
    }

    fn lane(&self, lane: u8, metadata: &Metadata) -> LaneView {
        let kept = metadata.lanes.get(usize::from(lane));
        let counters = kept.map(|kept| kept.counters);
        let (next, ceiling) = counters.map_or((0, 0), |counters| (counters.next, counters.ceiling));
        let span =
            metadata.layout.lanes.get(usize::from(lane)).map_or((0, 0), |span| (span.first, span.pages));
        let youngest = self.youngest.get(&Ring::Lane(lane)).and_then(|at| self.keys.get(*at));
        let of_this = youngest.filter(|key| key.incarnation == metadata.incarnation);
        let known = next.max(of_this.map_or(0, |key| key.counter.saturating_add(1)));
        let is_pending = |record: &&RecordView| record.state == Fate::Pending && record.lane == lane;
        LaneView {
            lane,
            pages: span,
            next,
            ceiling,
            uncertain: ceiling.checked_sub(known).filter(|most| *most > 0).map(|most| (known, most)),
            pending: self.records.iter().filter(is_pending).count() as u64,
            at_stop: kept.and_then(|kept| kept.at_stop).map(|stop| (stop.records, stop.bytes)),
            tags: kept
                .iter()
                .flat_map(|kept| &kept.tags)
                .map(|tagged| {
                    let key = Key { incarnation: metadata.incarnation, lane, counter: tagged.counter };
                    (tagged.tag, self.name(key))
                })
                .collect(),
            attempts: kept
                .iter()
                .flat_map(|kept| &kept.attempts)
                .map(|attempts| (self.name(attempts.key), attempts.count))
                .collect(),
        }
    }

    /// Bytes of the dump.
    pub(super) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Every record with its key.
    pub(super) fn keyed(&self) -> impl Iterator<Item = (&RecordView, Key)> {
        self.records.iter().zip(self.keys.iter().copied())
    }
}
