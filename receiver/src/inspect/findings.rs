//! What is to be said about a region: what is damaged, what a power cut has left, and what the next boot makes of it.
//!
//! The two are told apart by what one power cut can leave (SPEC.md, "Items" and "Page of a ring"): after it the next boot
//! comes, and brings everything in order before it goes on.

use pillarbox::scan::{
    Half, Magic, Mark, Metadata, OutOfBounds, Page, Rest, Ring, ScanError, Standing, Unfinished,
};
use pillarbox::{Cause, DeviceId, Entry, Key, Reason};

use super::survey::Survey;
use super::view::{Fate, Finding, PageHealth, PageView, RecordView, Where};

/// What is said of the last item of a page in use, if its bytes do not fit.
pub(super) fn unfinished_item(is_record: bool) -> &'static str {
    if is_record {
        "the removal of the youngest record was cut; the next boot zeroes what is left of it."
    } else {
        "the youngest item is not whole: its append was cut, and the next boot zeroes it; or it is damaged."
    }
}

/// An address as people write it.
pub(super) fn address(at: u64) -> String {
    format!("{at:#08x}")
}

pub(super) fn corrupt(ring: Where, page: u16) -> String {
    format!("an item on page {page} of {ring} is damaged: the device skips it and counts it as corrupt.")
}

pub(super) fn others(origins: &[u32], notes: &mut Vec<Finding>) {
    notes.extend(origins.iter().map(|origin| Finding {
        address: Some((*origin).into()),
        says: format!("another region begins here: --origin {origin:#x} shows it."),
    }));
}

pub(super) fn no_metadata(why: &ScanError<OutOfBounds>, at: u32, problems: &mut Vec<Finding>) {
    let says = match why {
        ScanError::OtherFormat(_) => format!("{why}. Use the pillarbox that belongs to the firmware."),
        _ => "the metadata cannot be read: no snapshot is whole. So nobody can say whose region it is and how far its counters \
              came; what follows are the records on all pages that can be found."
            .into(),
    };
    problems.push(Finding { address: Some(at.into()), says });
}

pub(super) fn no_region(origin: Option<u32>, len: usize, problems: &mut Vec<Finding>) {
    let says = match origin {
        Some(origin) if origin as usize >= len => {
            format!("--origin {origin:#x} lies behind the end of the dump, which has {len:#x} bytes.")
        }
        Some(_) => "no outbox begins here. Leave --origin out, and it is looked for.".into(),
        None => "there is no outbox in this dump: no page begins with the magic. Does it hold the whole region, and was the \
                 device's outbox ever opened?"
            .into(),
    };
    problems.push(Finding { address: origin.map(u64::from), says });
}

/// What is to be said about a page, and so how it is.
pub(super) fn page(survey: &mut Survey<'_>, page: &Page, view: &mut PageView) {
    let name = format!("page {} of {}", page.page, view.ring);
    let at = u64::from(page.address);
    let mut health = PageHealth::Sound;
    if page.standing == Standing::Senseless {
        health = PageHealth::Damaged;
        survey.problem(at, format!("{name} is marked as full and was never used: the next boot erases it."));
    }
    let rest = at + u64::from(page.end);
    match page.rest {
        Rest::Blank => {}
        Rest::Cut => {
            health = health.max(PageHealth::Cut);
            survey.note(rest, format!("an append to {name} was cut; the next boot brings it in order."));
        }
        Rest::Damaged => {
            health = PageHealth::Damaged;
            let says = match view.strays {
                0 => "the device sees nothing behind them.".into(),
                1 => "the device does not see the whole record behind them.".into(),
                strays => format!("the device does not see the {strays} whole records behind them."),
            };
            survey.problem(rest, format!("the bytes here on {name} are damaged: {says}"));
        }
    }
    let is_exact = page.magic == Magic::Exact;
    if is_exact && (page.in_use == Mark::Cut || page.closed == Mark::Cut) {
        health = health.max(PageHealth::Cut);
        survey.note(at, format!("a mark of {name} was cut; the next boot sets it."));
    }
    if page.standing == Standing::Erasing || view.unfinished > 0 {
        health = health.max(PageHealth::Cut);
    }
    if view.corrupt > 0 {
        health = PageHealth::Damaged;
    }
    let end = at + u64::from(page.len);
    if end > survey.len() {
        health = PageHealth::Missing;
    }
    view.health = health;
}

/// What can only be said when all pages were seen.
pub(super) fn rings(survey: &mut Survey<'_>) {
    missing(survey);
    let erasing: Vec<(u64, String)> = survey
        .pages
        .iter()
        .filter(|page| page.state == "erasing" && page.health != PageHealth::Missing)
        .map(|page| (page.address, format!("page {} of {}", page.page, page.ring)))
        .collect();
    // A cut leaves one page without its magic, and the next boot erases it before anything else.
    match &erasing[..] {
        [] => {}
        [(at, name)] => survey.note(*at, format!("{name} was being erased; the next boot erases it again.")),
        several => {
            for (at, name) in several.iter().cloned() {
                survey.problem(
                    at,
                    format!("{name} has no magic, and it is not the only one: the next boot erases it, whatever it holds."),
                );
            }
            let is_one = |page: &&mut super::PageView| page.state == "erasing";
            survey
                .pages
                .iter_mut()
                .filter(is_one)
                .for_each(|page| page.health = page.health.max(PageHealth::Damaged));
        }
    }
    let mut in_use: Vec<(Where, u64)> = survey
        .pages
        .iter()
        .filter(|page| {
            page.state == "in use" && page.ring != Where::Unknown && page.health != PageHealth::Missing
        })
        .map(|page| (page.ring, page.address))
        .collect();
    in_use.sort_unstable();
    for pair in in_use.windows(2) {
        if let [(ring, _), (other, at)] = pair
            && ring == other
        {
            survey.problem(*at, format!("more than one page of {ring} is marked as the one in use."));
        }
    }
}

fn missing(survey: &mut Survey<'_>) {
    let mut gone: Vec<(Where, u64, u32)> = Vec::new();
    for page in survey.pages.iter().filter(|page| page.health == PageHealth::Missing) {
        match gone.iter_mut().find(|(ring, ..)| *ring == page.ring) {
            Some((_, at, count)) => (*at, *count) = ((*at).min(page.address), *count + 1),
            None => gone.push((page.ring, page.address, 1)),
        }
    }
    let end = survey.len();
    for (ring, at, count) in gone {
        let pages = if count == 1 { "a page".into() } else { format!("{count} pages") };
        let are = if count == 1 { "is" } else { "are" };
        survey.problem(
            at,
            format!(
                "{pages} of {ring} {are} not, or not whole, in the dump, which ends at {}.",
                address(end)
            ),
        );
    }
}

/// Whole records on pages without their magic, which the next boot erases: as it should, if the account says why.
pub(super) fn strays(survey: &mut Survey<'_>, metadata: &Metadata) {
    let explains = |entry: &Entry, key: Key, is_dead: bool| {
        let is_final = match entry.reason {
            Reason::Uncertain => false,
            Reason::Parked => !is_dead,
            _ => true,
        };
        is_final && entry.covers(key.incarnation, key.lane, key.counter)
    };
    let begun = |record: &RecordView| match metadata.unfinished {
        Some(Unfinished::Clear) => true,
        Some(Unfinished::Evict { ring, page, .. }) => is_in(record, ring) && record.page == page,
        _ => false,
    };
    let lost: Vec<(u64, Where, u16, String)> = survey
        .keyed()
        .filter(|(record, _)| record.state == Fate::Stray && !begun(record))
        .filter(|(record, key)| {
            let is_dead = record.ring == Where::DeadLetters;
            !metadata.account.iter().any(|entry| explains(entry, *key, is_dead))
        })
        .map(|(record, _)| (u64::from(record.address), record.ring, record.page, record.key.clone()))
        .collect();
    for (at, ring, number, key) in lost {
        let is_it = |page: &&mut PageView| (page.ring, page.page) == (ring, number);
        survey
            .pages
            .iter_mut()
            .filter(is_it)
            .for_each(|page| page.health = page.health.max(PageHealth::Damaged));
        survey.problem(
            at,
            format!("{key} is whole, but lies where the device does not look, and nothing explains why."),
        );
    }
}

/// What is to be said about the metadata.
pub(super) fn metadata(survey: &mut Survey<'_>, origin: u32, metadata: &Metadata, halves: &[Half]) {
    for half in halves {
        let at = u64::from(half.address);
        let is_newest = half.newest == Some(metadata.sequence);
        if half.magic != Magic::Exact && is_newest {
            survey
                .problem(at, "the half of the metadata that holds the newest snapshot has no magic.".into());
        } else if half.magic != Magic::Exact {
            survey.note(
                at,
                "this half of the metadata was being erased; it is written anew when it is needed.".into(),
            );
        }
        if half.gaps > 0 {
            let gaps = half.gaps;
            survey.problem(
                at,
                format!("{gaps} bytes before or between the snapshots of this half are damaged."),
            );
        }
        if half.magic == Magic::Exact && half.broken > 0 {
            survey.note(
                at,
                "a snapshot behind the last whole one was cut, or is damaged; the one before it counts."
                    .into(),
            );
        }
        if half.newest > Some(metadata.sequence) {
            survey
                .problem(at, "a newer snapshot is whole and makes no sense; an older one was taken.".into());
        }
    }
    if let Some(unfinished) = &metadata.unfinished {
        survey.note(origin.into(), self::unfinished(unfinished, &metadata.layout.device));
    }
    let spans: Vec<_> = metadata.layout.lanes.iter().chain([&metadata.layout.dead_letters]).collect();
    for (at, one) in spans.iter().enumerate() {
        let end = |span: &pillarbox::LaneSpan| u32::from(span.first) + u32::from(span.pages);
        let overlap = spans
            .iter()
            .skip(at + 1)
            .any(|other| u32::from(one.first) < end(other) && u32::from(other.first) < end(one));
        if overlap {
            survey
                .problem(origin.into(), "the layout makes no sense: two rings have pages in common.".into());
        }
    }
    let ceilings: Vec<u64> = metadata.lanes.iter().map(|lane| lane.counters.ceiling).collect();
    let above: Vec<(u64, String)> = survey
        .keyed()
        .filter(|(record, key)| {
            let ceiling = ceilings.get(usize::from(key.lane));
            let is_of_this = key.incarnation == metadata.incarnation && record.state != Fate::Removed;
            is_of_this && ceiling.is_some_and(|ceiling| key.counter >= *ceiling)
        })
        .map(|(record, _)| (u64::from(record.address), record.key.clone()))
        .collect();
    for (at, key) in above {
        survey.problem(at, format!("{key} is not below its lane's ceiling: the newest metadata are gone, and older ones were taken."));
    }
}

/// What has begun, in a sentence.
pub(super) fn unfinished(unfinished: &Unfinished, device: &DeviceId) -> String {
    let name = |key: &Key| key.of(device);
    let place = |ring: &Ring, page: &u16| match ring {
        Ring::Lane(lane) => format!("page {page} of lane {lane}"),
        Ring::DeadLetters => format!("page {page} of the dead letters"),
        Ring::Unknown => format!("page {page}"),
    };
    match unfinished {
        Unfinished::Clear => "everything was being cleared; the next boot finishes it.".into(),
        Unfinished::Evict { ring, page, last } => {
            format!(
                "{} was being given up, up to {}; the next boot finishes it.",
                place(ring, page),
                name(last)
            )
        }
        Unfinished::Remove { ring, page, key } => {
            format!("{} was being removed from {}; the next boot finishes it.", name(key), place(ring, page))
        }
        Unfinished::Park { ring, page, key, cause } => {
            let why = match cause {
                Cause::Rejected => "rejected too often",
                Cause::Expired => "too old",
                Cause::Blocking => "in the way",
            };
            format!(
                "{} on {}, which is {why}, was being moved to the dead letters; the next boot finishes it.",
                name(key),
                place(ring, page)
            )
        }
    }
}

/// What the next boot removes because it was begun.
pub(super) struct Leaving(Option<Unfinished>);

/// What the next boot removes; `last_of` tells the last record on a page.
pub(super) fn leaving(metadata: &Metadata, last_of: impl Fn(Where, u16) -> Option<Key>) -> Leaving {
    Leaving(metadata.unfinished.filter(|unfinished| match unfinished {
        Unfinished::Evict { ring: Ring::Lane(lane), page, last } => {
            last_of(Where::Lane(*lane), *page) == Some(*last)
        }
        Unfinished::Evict { page, last, .. } => last_of(Where::DeadLetters, *page) == Some(*last),
        _ => true,
    }))
}

impl Leaving {
    /// Why this record is removed, if it is.
    pub(super) fn of(&self, record: &RecordView, key: Key) -> Option<&'static str> {
        let is_it =
            |ring: Ring, page: u16, wanted: Key| is_in(record, ring) && record.page == page && key == wanted;
        match self.0? {
            Unfinished::Clear => Some("cleared"),
            Unfinished::Evict { ring, page, .. } => {
                (is_in(record, ring) && record.page == page).then_some("evicted")
            }
            Unfinished::Remove { ring, page, key } => is_it(ring, page, key).then_some("removed"),
            Unfinished::Park { ring, page, key, .. } => is_it(ring, page, key).then_some("parked"),
        }
    }
}

fn is_in(record: &RecordView, ring: Ring) -> bool {
    match ring {
        Ring::Lane(lane) => record.ring == Where::Lane(lane),
        Ring::DeadLetters => record.ring == Where::DeadLetters,
        Ring::Unknown => false,
    }
}
