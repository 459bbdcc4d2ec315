//! The end of a world: what the devices were promised, what the server has, and whether the two agree.

use std::collections::{BTreeMap, BTreeSet};

use pillarbox::{DeviceId, Key, Reason};

use super::body::{Body, LANES, LOOSE};
use super::{Final, Ground, Tally, Witness};
use crate::device::Note;
use crate::link::Link;
use crate::server::Received;

/// Compares everything.
pub(super) fn reckon<S: Witness>(ground: &Ground<S>) -> Result<Tally, String> {
    let server = ground.server.borrow();
    let bodies = ground.bodies.borrow();
    let mut tally = Tally { worlds: 1, disputed: ground.plan.is_disputed().into(), ..Tally::default() };
    let log = server.log();
    once(&log)?;
    let log = by_number(&log)?;
    let aside = server.aside();
    let aside = by_number(&aside)?;
    for body in bodies.iter() {
        let Some(last) = body.last.borrow().clone() else {
            let unrest = body.unrest.borrow();
            return Err(format!("{} (body {}) does not come to rest: {unrest}", body.device, body.number));
        };
        tally.devices += 1;
        tally.boots += body.boots.get();
        tally.cuts += body.cuts.get();
        count_link(&body.link, &mut tally);
        records(ground, &*server, body, &log, &aside, &mut tally)?;
        let is_disputed = bodies.iter().any(|other| other.device == body.device && other.is_disputed.get());
        // To a database that was put back, what was confirmed before may look lost.
        if !is_disputed && !ground.plan.has_restores {
            books(&*server, body, &last, &mut tally)?;
        }
    }
    if !ground.plan.is_disputed() {
        order(&server.log(), |device, key| server.reason(device, key).is_some())?;
    }
    Ok(tally)
}

fn count_link(link: &Link, tally: &mut Tally) {
    let counts = link.counts();
    tally.requests += counts.requests;
    tally.faults += counts.all_faults();
}

/// No key stands for two records.
fn once(log: &[Received]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    match log.iter().find(|received| !seen.insert((&received.device, received.key))) {
        Some(twice) => Err(format!("{} {:?} was stored twice", twice.device, twice.key)),
        None => Ok(()),
    }
}

/// The records by what they hold.
fn by_number(received: &[Received]) -> Result<BTreeMap<u32, Vec<&Received>>, String> {
    let mut by_number: BTreeMap<u32, Vec<&Received>> = BTreeMap::new();
    for record in received {
        let note: Note = postcard::from_bytes(&record.body)
            .map_err(|error| format!("{} {:?} is not what was posted: {error}", record.device, record.key))?;
        if note != Note::new(note.number) {
            return Err(format!("{} {:?} holds something that nobody posted", record.device, record.key));
        }
        by_number.entry(note.number).or_default().push(record);
    }
    Ok(by_number)
}

/// Every acknowledged record is in the server once, or accounted for by a reason that its lane allows.
fn records<S: Witness>(
    ground: &Ground<S>,
    server: &S,
    body: &Body,
    log: &BTreeMap<u32, Vec<&Received>>,
    aside: &BTreeMap<u32, Vec<&Received>>,
    tally: &mut Tally,
) -> Result<(), String> {
    for (number, posted) in body.posted.borrow().iter() {
        let name = body.note(*number).number;
        let stored = log.get(&name).map_or(&[][..], Vec::as_slice);
        let who = format!("{} record {number} (body {}), {posted:?}", body.device, body.number);
        let right = |received: &&Received| {
            received.device == body.device
                && received.key.lane == posted.lane
                && posted.key.is_none_or(|key| key == received.key)
        };
        if stored.len() > 1 || !stored.iter().all(&right) {
            return Err(format!(
                "{who}: stored as {:?}",
                stored.iter().map(|received| received.key).collect::<Vec<_>>()
            ));
        }
        let Some(key) = posted.key else { continue };
        tally.acknowledged += 1;
        let reason = server.reason(&body.device, key);
        let is_aside = aside.get(&name).is_some_and(|aside| aside.iter().any(right));
        let was_forgotten = ground.forgotten.borrow().contains(&(body.device.clone(), key));
        let allowed: &[Reason] = match posted.lane {
            // A neighbour's reason may stand for it, where an account of too many entries was joined.
            LOOSE => {
                &[Reason::Evicted, Reason::Expired, Reason::Parked, Reason::Rejected, Reason::Superseded]
            }
            _ => &[Reason::Parked, Reason::Rejected],
        };
        let is_explained = reason.is_some_and(|reason| allowed.contains(&reason));
        match () {
            () if !stored.is_empty() => tally.stored += 1,
            () if is_explained => tally.explained += 1,
            () if is_aside && body.is_disputed.get() => tally.aside += 1,
            () if posted.is_undone || was_forgotten => tally.undone += 1,
            // What a restored server lost may have been joined with it, in an account of too many entries.
            () if posted.lane == LOOSE && ground.plan.has_restores && reason == Some(Reason::Lost) => {
                tally.undone += 1;
            }
            // To a stale device's account nobody listens, and so to its word about what it gave up.
            () if body.is_disputed.get() && (posted.lane == LOOSE || ground.plan.has_moods) => {
                tally.undone += 1
            }
            () => return Err(format!("{who}: lost; the server says {reason:?}, aside: {is_aside}")),
        }
    }
    Ok(())
}

/// The server's books of a device are the device's own truth.
fn books<S: Witness>(server: &S, body: &Body, last: &Final, tally: &mut Tally) -> Result<(), String> {
    let device = &body.device;
    let mut uncertain = 0;
    for (incarnation, lane) in server.lanes(device) {
        let Some(ledger) = server.ledger(device, incarnation, lane) else { continue };
        let who = format!("{device} {incarnation:08x} lane {lane}: {ledger:?}");
        if ledger.pending + ledger.unexplained > 0 {
            return Err(format!("{who}: open, and the device has nothing more to say"));
        }
        if ledger.lost() > 0 {
            return Err(format!("{who}: lost"));
        }
        uncertain += ledger.uncertain();
        if incarnation == last.incarnation {
            let (floor, issued) = last.lanes[usize::from(lane)];
            // What was issued since the last batch is said in the next.
            if ledger.issued != issued || floor != issued {
                return Err(format!("{who}: the device has issued {issued}, its floor is {floor}"));
            }
        } else if !ledger.is_closed {
            return Err(format!("{who}: the books of a former incarnation are open"));
        }
        let parked = body.posted.borrow();
        let parked = parked.values().filter_map(|posted| posted.key);
        let parked = parked.filter(|key| server.reason(device, *key) == Some(Reason::Parked));
        for key in parked {
            if !last.dead.contains(&key) {
                return Err(format!("{who}: {key:?} is parked at the server, and no dead letter"));
            }
        }
    }
    // A lease is lost with the power only, and only one a lane.
    let leases = body.unclean.get() * LANES as u64 * 64;
    if uncertain > leases {
        return Err(format!("{device}: {uncertain} uncertain after {} unclean stops", body.unclean.get()));
    }
    tally.uncertain += uncertain;
    Ok(())
}

/// Records of a lane were stored in the order of their counters, but for those that had been given up.
fn order(log: &[Received], was_given_up: impl Fn(&DeviceId, Key) -> bool) -> Result<(), String> {
    let mut last: BTreeMap<(&DeviceId, u32, u8), Key> = BTreeMap::new();
    for received in log.iter().filter(|received| received.key.lane != LOOSE) {
        let key = received.key;
        let before = last.insert((&received.device, key.incarnation, key.lane), key);
        if before.is_some_and(|before| before.counter > key.counter) && !was_given_up(&received.device, key) {
            return Err(format!("{} {key:?} came after {before:?}", received.device));
        }
    }
    Ok(())
}
