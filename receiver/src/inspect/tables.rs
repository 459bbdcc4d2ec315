//! An inspection as people read it.

use std::fmt::Write;

use comfy_table::{Cell, Table, presets};

use super::findings::address;
use super::view::{Fate, Inspection, PageHealth, PageView, RecordView, RegionView, Where};
use crate::moment::Span;

/// The whole inspection; with every page if `all` are wanted.
pub(super) fn write(found: &Inspection, all: bool) -> String {
    let mut out = String::new();
    let mut put = |part: String| {
        if !part.is_empty() {
            out.push_str(part.trim_end());
            out.push_str("\n\n");
        }
    };
    put(found.region.as_ref().map(region).unwrap_or_default());
    put(lanes(found));
    let is_dead = |record: &&RecordView| record.ring == Where::DeadLetters;
    put(records("Records", found.records.iter().filter(|record| !is_dead(record))));
    put(records("Dead letters", found.records.iter().filter(is_dead)));
    put(account(found));
    put(marginalia(found));
    put(pages(found, all));
    put(totals(found));
    put(findings("Notes", &found.notes));
    put(findings("Damaged", &found.problems));
    out.push_str(if found.is_sound { "Nothing is damaged.\n" } else { "Something is damaged.\n" });
    out
}

fn table<const N: usize>(title: &str, head: [&str; N], rows: Vec<[String; N]>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(head.map(|cell| Cell::new(cell.to_uppercase())));
    rows.into_iter().for_each(|row| {
        table.add_row(row);
    });
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    format!("{title}\n{}", lines.join("\n"))
}

fn region(region: &RegionView) -> String {
    let mut text = format!("{}: incarnation {}, boot {}\n", region.device, region.incarnation, region.boot);
    let end = u64::from(region.origin) + region.bytes;
    let _ = writeln!(
        text,
        "from {} to {}, pages of {} bytes, words of {}, records of at most {}, snapshot {}",
        address(region.origin.into()),
        address(end),
        region.page,
        region.word,
        region.record_max,
        region.sequence
    );
    text
}

fn lanes(found: &Inspection) -> String {
    let head = ["lane", "pages", "pending", "next", "ceiling", "uncertain", "at the last clean stop"];
    let rows = found.lanes.iter().map(|lane| {
        [
            lane.lane.to_string(),
            span(lane.pages),
            lane.pending.to_string(),
            lane.next.to_string(),
            lane.ceiling.to_string(),
            lane.uncertain.map_or("none".into(), |(first, most)| format!("from {first} on, at most {most}")),
            lane.at_stop
                .map_or_else(String::new, |(records, bytes)| format!("{records} records, {bytes} bytes")),
        ]
    });
    table("Lanes", head, rows.collect())
}

fn span((first, pages): (u16, u16)) -> String {
    format!("{first} to {}", (u32::from(first) + u32::from(pages)).saturating_sub(1))
}

fn records<'r>(title: &str, records: impl Iterator<Item = &'r RecordView>) -> String {
    let head = ["key", "state", "kind", "time", "body", "address"];
    table(title, head, records.map(record).collect())
}

fn record(record: &RecordView) -> [String; 6] {
    let kind = record
        .name
        .as_ref()
        .map_or_else(|| record.kind.to_string(), |name| format!("{name} ({})", record.kind));
    let time = match record.at {
        Some(at) => at.to_string(),
        None => format!("boot {} + {}", record.boot, Span(record.uptime_ms)),
    };
    let body = match (&record.data, &record.hex, &record.unreadable) {
        (Some(data), ..) => data.to_string(),
        (None, Some(hex), Some(why)) => format!("0x{hex} ({why})"),
        (None, Some(hex), None) => format!("0x{hex}"),
        (None, None, _) => String::new(),
    };
    [record.key.clone(), state(record), kind, time, body, address(record.address.into())]
}

fn state(record: &RecordView) -> String {
    let mut says = vec![match (record.state, record.leaving) {
        (Fate::Leaving, Some(why)) => format!("leaving: {why}"),
        (state, _) => state.name().to_owned(),
    }];
    says.extend(record.cause.map(str::to_owned));
    says.extend(record.is_late.then(|| "to be sent again".into()));
    says.extend(record.tag.map(|tag| format!("tag {tag}")));
    says.extend(record.attempts.map(|attempts| format!("rejections: {attempts}")));
    says.join(", ")
}

fn account(found: &Inspection) -> String {
    let head = ["incarnation", "lane", "reason", "first", "count"];
    let rows = found.account.iter().map(|entry| {
        [
            entry.incarnation.to_string(),
            entry.lane.to_string(),
            entry.reason.to_owned(),
            entry.first.to_string(),
            entry.count.to_string(),
        ]
    });
    table("Account: what will not arrive, and why", head, rows.collect())
}

/// What is on its way again, which incarnations were left, which tags are alive.
fn marginalia(found: &Inspection) -> String {
    let mut text = String::new();
    for key in &found.late {
        let _ = writeln!(text, "{key} is a dead letter that is to be sent again.");
    }
    for former in &found.former {
        let issued: Vec<String> = former.issued.iter().map(u64::to_string).collect();
        let _ = writeln!(
            text,
            "incarnation {} takes no more records; the counters after its last are {}.",
            former.incarnation,
            issued.join(", ")
        );
    }
    for (lane, tag, key) in
        found.lanes.iter().flat_map(|lane| lane.tags.iter().map(|(tag, key)| (lane.lane, tag, key)))
    {
        let _ = writeln!(text, "tag {tag} of lane {lane} is {key}.");
    }
    text
}

fn pages(found: &Inspection, all: bool) -> String {
    let head = [
        "ring", "page", "address", "state", "health", "pending", "removed", "void", "corrupt", "spent",
        "free",
    ];
    let is_plain = |page: &&PageView| !all && page.state == "open" && page.health == PageHealth::Sound;
    let rows = found.pages.iter().filter(|page| !is_plain(page)).map(|page| {
        let magic = page.magic.filter(|magic| *magic != "exact");
        [
            page.ring.to_string(),
            page.page.to_string(),
            address(page.address),
            magic.map_or(page.state.to_owned(), |magic| format!("{}, magic {magic}", page.state)),
            health(page.health).to_owned(),
            (page.pending + page.strays).to_string(),
            page.removed.to_string(),
            page.void.to_string(),
            (page.corrupt + page.unfinished).to_string(),
            page.spent_words.to_string(),
            page.free.to_string(),
        ]
    });
    let mut text = table("Pages", head, rows.collect());
    let plain = found.pages.iter().filter(is_plain).count();
    if plain > 0 {
        let _ = write!(text, "\nand {plain} open {}.", if plain == 1 { "page" } else { "pages" });
    }
    let metadata = found.metadata.iter().map(|half| {
        [
            address(half.address.into()),
            if half.has_magic { "exact".into() } else { "none".into() },
            half.snapshots.to_string(),
            half.newest.map_or_else(String::new, |newest| newest.to_string()),
            half.broken.to_string(),
            half.free.to_string(),
        ]
    });
    let head = ["address", "magic", "snapshots", "newest", "broken bytes", "free"];
    format!("{}\n\n{}", table("Metadata", head, metadata.collect()), text).trim_start().to_owned()
}

fn health(health: PageHealth) -> &'static str {
    match health {
        PageHealth::Sound => "sound",
        PageHealth::Cut => "cut",
        PageHealth::Damaged => "DAMAGED",
        PageHealth::Missing => "MISSING",
    }
}

fn totals(found: &Inspection) -> String {
    let totals = &found.totals;
    format!(
        "pending {}, dead letters {}, leaving {}, removed {}; strays {}, corrupt {}, void {}; pages {}, bad ones {}; free bytes \
         {}",
        totals.pending,
        totals.dead,
        totals.leaving,
        totals.removed,
        totals.strays,
        totals.corrupt,
        totals.void + totals.unfinished,
        totals.pages,
        totals.bad_pages,
        totals.free
    )
}

fn findings(title: &str, findings: &[super::Finding]) -> String {
    let lines: Vec<String> = findings.iter().map(|finding| format!("  {finding}")).collect();
    if lines.is_empty() { String::new() } else { format!("{title}\n{}", lines.join("\n")) }
}
