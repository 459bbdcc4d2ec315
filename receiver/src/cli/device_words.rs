//! A device's ledger as somebody reads it who was woken by it: what is wrong, what to do, then the numbers.

use crate::admin::DeviceSummary;
use crate::ledger::{DeviceLedger, IncarnationLedger, LaneLedger, Report, Totals, counted};
use crate::moment::{Moment, Span};

use super::output::{drawn, facts, grouped, table, wrapped};

/// What has been pending for longer needs somebody's attention: the alert rules say the same.
const LAG_MAX_MS: u64 = 300_000;
/// A clock that is off by less is right.
const CLOCK_RIGHT_MS: u64 = 2000;

/// Devices in a table, those first that need attention.
pub(super) fn list(devices: &[DeviceSummary], now_ms: u64) -> String {
    if devices.is_empty() {
        return "No device is like this. `pillarbox device list` shows all, `pillarbox device add NAME` lets one in.".into();
    }
    let attention = |device: &DeviceSummary| brief(device, now_ms);
    let mut sorted: Vec<_> = devices.iter().map(|device| (attention(device), device)).collect();
    sorted.sort_by_key(|(attention, device)| (attention.is_empty(), device.device.clone()));
    let alarmed = sorted.iter().filter(|(attention, _)| !attention.is_empty()).count();
    let heads = ["Device", "Tenant", "Last heard", "Received", "Pending", "Attention"];
    let mut rows = table(&heads, &[0, 3, 4]);
    for (attention, device) in sorted {
        let Totals { received, pending, .. } = device.totals;
        let heard = device.heard_at.map_or_else(|| "never".into(), |at| at.ago(now_ms));
        let (received, pending) = (grouped(received), grouped(pending));
        let name = device.device.clone();
        rows.add_row([name, device.tenant.clone(), heard, received, pending, attention]);
    }
    let all = counted(devices.len() as u64, "device", "devices");
    let said = match alarmed {
        0 => format!("{all}. Nothing is wrong with {}.", if devices.len() == 1 { "it" } else { "them" }),
        _ => format!("{alarmed} of {all} need attention: `pillarbox device show NAME` says what to do."),
    };
    format!("{}\n{}", wrapped(&said, "", ""), drawn(&rows))
}

/// What needs attention, in a few words for each.
fn brief(device: &DeviceSummary, now_ms: u64) -> String {
    let mut all: Vec<String> = device.problems.iter().map(|problem| problem.brief.clone()).collect();
    if let Some(span) = lag(&device.totals, now_ms) {
        all.push(format!("pending for {span}"));
    }
    if device.revoked_at.is_some() {
        all.push("revoked".into());
    }
    all.join(", ")
}

/// For how long something has been pending, if that is too long.
fn lag(totals: &Totals, now_ms: u64) -> Option<Span> {
    let lag_ms = now_ms.saturating_sub(totals.pending_since?.0);
    (lag_ms > LAG_MAX_MS).then_some(Span(lag_ms))
}

/// Everything about a device.
pub(super) fn ledger(device: &DeviceLedger, now_ms: u64) -> String {
    let mut text = format!("{} of tenant {}\n\n", device.device, device.tenant);
    for sentence in sentences(device, now_ms) {
        text += &wrapped(&sentence, "  * ", "    ");
    }
    text += "\n";
    text += &facts(facts_of(device, now_ms));
    for incarnation in device.incarnations.iter().rev() {
        text += &format!("\n{}", of_incarnation(incarnation, now_ms));
    }
    text
}

fn facts_of(device: &DeviceLedger, now_ms: u64) -> Vec<(&'static str, String)> {
    let ago = |at: Option<Moment>| at.map_or_else(|| "never".into(), |at| at.with_ago(now_ms));
    let mut facts =
        vec![("last heard", ago(device.heard_at)), ("let in", device.created_at.with_ago(now_ms))];
    if device.revoked_at.is_some() {
        facts.push(("revoked", ago(device.revoked_at)));
    }
    if device.is_rotating {
        let waits = "a new one waits for its first use; the old one is good until then";
        facts.push(("secret", waits.into()));
    }
    let signs = [
        (device.stale_batches, "stale batch", "stale batches"),
        (device.interleavings, "turn of two incarnations", "turns of two incarnations"),
        (device.conflicts, "key with two contents", "keys with two contents"),
    ];
    let signs = signs.into_iter().filter(|(count, ..)| *count > 0);
    let signs: Vec<String> = signs.map(|(count, one, many)| counted(count, one, many)).collect();
    facts.push(("clones", if signs.is_empty() { "no sign of any".into() } else { signs.join(", ") }));
    facts
}

/// What there is to say, the worst first.
fn sentences(device: &DeviceLedger, now_ms: u64) -> Vec<String> {
    let mut said: Vec<String> = device.problems.iter().map(|problem| problem.sentence.clone()).collect();
    if let Some(span) = lag(&device.totals, now_ms) {
        said.push(late(device, span, now_ms));
    }
    if let Some(at) = device.revoked_at {
        said.push(format!("It may not come in any more since {}: it was revoked.", at.with_ago(now_ms)));
    }
    if device.heard_at.is_none() && device.revoked_at.is_none() {
        said.push(
            "It has never been heard. If it should have been: has it this receiver's URL, this name, and the secret that \
             `device add` told? A wrong secret is answered with 401, in the log and in pillarbox_batches_total."
                .into(),
        );
    }
    if device.totals.uncertain_at_most > 0 {
        said.push(format!(
            "{} may have been numbered and lost in a power cut before this receiver heard of them: at most so many, perhaps none.",
            counted(device.totals.uncertain_at_most, "record", "records")
        ));
    }
    if said.is_empty() {
        said.push(all_is_well(&device.totals));
    }
    said
}

fn late(device: &DeviceLedger, span: Span, now_ms: u64) -> String {
    let pending = counted(device.totals.pending, "record has", "records have");
    let heard = device.heard_at.map_or(u64::MAX, |at| now_ms.saturating_sub(at.0));
    let what = if heard > LAG_MAX_MS {
        format!(
            "It has not been heard for {}: look at its power and its network. They are in its flash and come when it does.",
            Span(heard)
        )
    } else {
        "It is heard, and does not send them: look at its report for failed exchanges and rejections, and at the size that a \
         proxy lets through."
            .to_owned()
    };
    format!("{pending} been pending for {span} at least. {what}")
}

fn all_is_well(totals: &Totals) -> String {
    let Totals { issued, received, pending, .. } = totals;
    match pending {
        0 if issued == received => {
            format!("Nothing is wrong: all {} are here.", grouped_records(*received))
        }
        0 => format!(
            "Nothing is wrong: {} are here, and the device has said why the others are not.",
            grouped_records(*received)
        ),
        _ => format!(
            "Nothing is wrong: {} are here, {} on the way.",
            grouped_records(*received),
            counted(*pending, "is", "are")
        ),
    }
}

fn grouped_records(count: u64) -> String {
    format!("{} {}", grouped(count), if count == 1 { "record" } else { "records" })
}

fn of_incarnation(incarnation: &IncarnationLedger, now_ms: u64) -> String {
    let IncarnationLedger { incarnation: name, state, boot, first_heard_at, lanes } = incarnation;
    let said = format!(
        "Incarnation {name}: {}, boot {boot}, first heard {}",
        state.name(),
        first_heard_at.ago(now_ms)
    );
    let mut text = wrapped(&said, "", "  ");
    if lanes.is_empty() {
        return text + "  Nothing of it was taken.\n";
    }
    let mut heads = vec![String::new()];
    heads.extend(lanes.iter().map(|lane| {
        let closed = if lane.is_closed { ", closed" } else { "" };
        format!("Lane {}{closed}", lane.lane)
    }));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut rows = table(&heads, &[0]);
    for (name, of_lane) in LINES {
        let cells: Vec<String> = lanes.iter().map(|lane| of_lane(lane, now_ms)).collect();
        // What is nowhere says nothing.
        if cells.iter().any(|cell| !cell.is_empty()) {
            rows.add_row([(*name).to_owned()].into_iter().chain(cells));
        }
    }
    text += &drawn(&rows);
    for lane in lanes {
        if let Some(told) = &lane.report {
            let says = format!("Lane {} says of itself, {}", lane.lane, report(told, now_ms));
            text += &wrapped(&says, "", "  ");
        }
    }
    text
}

type OfLane = fn(&LaneLedger, u64) -> String;

/// What is shown of a lane, in this order. A line that is empty for all lanes is left out.
const LINES: &[(&str, OfLane)] = &[
    ("lost", |lane, _| some(lane.totals.lost)),
    ("unexplained", |lane, _| some(lane.totals.unexplained)),
    ("issued", |lane, _| grouped(lane.totals.issued)),
    ("received", |lane, _| grouped(lane.totals.received)),
    ("pending", pending),
    ("given up", |lane, _| some(lane.totals.given_up)),
    ("explained", |lane, _| explained(lane)),
    ("uncertain", |lane, _| match lane.totals.uncertain_at_most {
        0 => String::new(),
        count => format!("at most {}", grouped(count)),
    }),
    ("last heard", |lane, now_ms| lane.heard_at.ago(now_ms)),
    ("its clock", |lane, _| clock(lane)),
];

fn some(count: u64) -> String {
    if count == 0 { String::new() } else { grouped(count) }
}

fn pending(lane: &LaneLedger, now_ms: u64) -> String {
    let count = grouped(lane.totals.pending);
    match lane.totals.pending_since {
        Some(at) => format!("{count}, for {} at least", Span(now_ms.saturating_sub(at.0))),
        None => count,
    }
}

fn explained(lane: &LaneLedger) -> String {
    let all = lane.totals.plainly_explained().map(|(reason, count)| format!("{} {reason}", grouped(count)));
    all.collect::<Vec<_>>().join(", ")
}

fn clock(lane: &LaneLedger) -> String {
    match lane.clock_offset_ms {
        None => String::new(),
        Some(offset) if offset.unsigned_abs() < CLOCK_RIGHT_MS => "right".into(),
        Some(offset) if offset > 0 => format!("{} ahead", Span(offset.unsigned_abs())),
        Some(offset) => format!("{} behind", Span(offset.unsigned_abs())),
    }
}

fn report(report: &Report, now_ms: u64) -> String {
    let numbers = [
        (report.pending, "pending in flash"),
        (report.bytes, "bytes of flash"),
        (report.erases, "erases"),
        (report.corrupt, "corrupt"),
        (report.enqueued, "enqueued"),
        (report.delivered, "delivered"),
        (report.rejections, "rejections"),
        (report.failed_exchanges, "failed exchanges"),
    ];
    let told = numbers.into_iter().filter_map(|(number, what)| Some(format!("{} {what}", number?)));
    format!("{}: {}", report.reported_at.ago(now_ms), told.collect::<Vec<_>>().join(", "))
}
