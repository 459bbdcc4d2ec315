//! Batches in a transaction: what is loaded for them, what is decided, and in which order everything is sent, so that all of it is three
//! ways to the server and back.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use deadpool_postgres::Object;
use futures_util::future::{join, join3};
use pillarbox::{Key, Timestamp};
use tokio_postgres::{Row as SqlRow, Statement};

use super::connect::Server;
use super::save::{self, Changed, Stored};
use super::writer::Job;
use super::{bits, column, narrow, option_bits, option_wide, wide};
use crate::books::Books;
use crate::intake::{
    Arrival, Aside, BootNote, Concluded, Content, Incarnation, Judged, LaneState, Outcome, Post, Scene, judge,
};
use crate::store::kept::{Secrets, unpack_report};
use crate::store::{Result, StoreError, shard_of};

/// Why a transaction came to nothing.
#[derive(Debug)]
pub(super) enum Failure {
    /// No other transaction would have come further.
    OfAll(StoreError),
    /// One of its batches may be at fault, or another transaction.
    OfOne(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Self::OfAll(error),
            _ => Self::OfOne(error),
        }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        // Data that are not taken; a transaction that stood in another's way.
        let is_of_one = error
            .code()
            .and_then(|code| code.code().get(..2))
            .is_some_and(|class| matches!(class, "21" | "22" | "23" | "40"));
        if is_of_one { Self::OfOne(error.into()) } else { Self::OfAll(error.into()) }
    }
}

/// What has gone wrong, or not.
pub(super) type Attempt<T> = std::result::Result<T, Failure>;

/// The statements of a batch's way.
pub(super) struct Statements {
    lock: Statement,
    load: Statement,
    logged: Statement,
    unreadable: Statement,
    pub(super) save: save::Statements,
}

/// Locks the devices in the order of their numbers, which is everybody's order.
const LOCK: &str = "SELECT id, current_incarnation, stale, conflicts, interleavings, has_asides, revoked_ms IS NOT NULL, \
                    secret, next_secret, meta.epoch, meta.renewals FROM devices, meta WHERE id = ANY($1::bigint[]) \
                    ORDER BY id FOR NO KEY UPDATE OF devices";

/// The columns that [`read_lane`] reads, and how many they are.
pub(super) const LANE_COLUMNS: &str =
    "lane, books, heard_ms, mark, mark_ms, clock_offset_ms, report_ms, report";
pub(super) const LANE_WIDTH: usize = 8;

/// What the log holds under some keys.
const LOGGED: &str = "SELECT wanted.n, kind, boot, uptime_ms, wall_ms, body \
                      FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::bigint[]) \
                          WITH ORDINALITY AS wanted (device, incarnation, lane, counter, n) \
                      CROSS JOIN LATERAL (SELECT first, len, position FROM runs WHERE runs.device = wanted.device \
                          AND runs.incarnation = wanted.incarnation AND runs.lane = wanted.lane AND first <= wanted.counter \
                          ORDER BY first DESC LIMIT 1) AS run \
                      JOIN records ON records.position = run.position + (wanted.counter - run.first) \
                      WHERE wanted.counter - run.first < run.len";
/// What is kept of them because nobody can read it.
const UNREADABLE: &str = "SELECT DISTINCT ON (wanted.n) wanted.n, kind, boot, uptime_ms, wall_ms, body \
                          FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::bigint[]) \
                              WITH ORDINALITY AS wanted (device, incarnation, lane, counter, n) \
                          JOIN asides USING (device, incarnation, lane, counter) WHERE aside = 0 ORDER BY wanted.n, id";

impl Statements {
    pub(super) async fn prepare(client: &Object) -> Result<Self> {
        let load = format!(
            "SELECT {LANE_COLUMNS}, device, incarnation, boot, nonce, started_ms, is_fenced, is_given_up \
             FROM unnest($1::bigint[], $2::bigint[]) AS wanted (device, incarnation) \
             JOIN incarnations USING (device, incarnation) LEFT JOIN lanes USING (device, incarnation)"
        );
        Ok(Self {
            lock: client.prepare_cached(LOCK).await?,
            load: client.prepare_cached(&load).await?,
            logged: client.prepare_cached(LOGGED).await?,
            unreadable: client.prepare_cached(UNREADABLE).await?,
            save: save::Statements::prepare(client).await?,
        })
    }
}

/// A lane from its columns.
pub(super) fn read_lane(row: &SqlRow, at: usize) -> Result<(u8, LaneState)> {
    let damaged = |error: crate::books::BooksError| StoreError::Damaged(error.to_string());
    let report: Option<&[u8]> = column(row, at + 7)?;
    let state = LaneState {
        books: Books::decode(column(row, at + 1)?).map_err(damaged)?,
        heard_ms: bits(row, at + 2)?,
        mark: bits(row, at + 3)?,
        mark_ms: bits(row, at + 4)?,
        clock_offset_ms: column(row, at + 5)?,
        report: option_bits(row, at + 6)?.zip(report.map(unpack_report)),
    };
    Ok((narrow(row, at)?, state))
}

/// What is known of a device, before and behind the batches.
pub(super) struct Known {
    pub(super) before: Scene,
    pub(super) scene: Scene,
    secrets: Secrets,
    /// Its new secret was used.
    pub(super) is_promoted: bool,
    /// When incarnations were first heard of in this transaction.
    pub(super) heard_of_ms: BTreeMap<u32, u64>,
    pub(super) boots: BTreeMap<(u32, u32), BootNote>,
}

/// Takes batches: a transaction from its beginning to its commit. Gives what became of each.
pub(super) async fn take(
    client: &Object,
    statements: &Statements,
    server: &Server,
    jobs: &[Job],
) -> Attempt<Vec<Result<Concluded>>> {
    let mut devices = load(client, statements, server, jobs).await?;
    let judged: Vec<Result<Judged<'_>>> = jobs
        .iter()
        .map(|job| Known::of(&mut devices, job).and_then(|known| known.judge(&job.post)))
        .collect();
    let mut conclusion = Conclusion {
        found: look_up(client, statements, jobs, &judged).await?,
        logged: HashMap::new(),
        unreadable: HashMap::new(),
        changed: Changed::default(),
    };
    let mut concluded = Vec::with_capacity(jobs.len());
    for (job, judged) in jobs.iter().zip(judged) {
        let shard = shard_of(job.post.head.device.as_str(), server.shards);
        let known = judged.and_then(|judged| Ok((Known::of(&mut devices, job)?, judged)));
        concluded.push(known.map(|(known, judged)| conclusion.conclude(known, shard, job, judged)));
    }
    save::save(client, &statements.save, &devices, conclusion.changed).await?;
    Ok(concluded)
}

/// Begins, and has what the batches may change under lock and before the eyes.
async fn load(
    client: &Object,
    statements: &Statements,
    server: &Server,
    jobs: &[Job],
) -> Attempt<BTreeMap<i64, Result<Known>>> {
    let names: BTreeSet<i64> = jobs.iter().map(|job| job.device).collect();
    let names: Vec<i64> = names.into_iter().collect();
    let incarnations: BTreeSet<(i64, i64)> = jobs
        .iter()
        .flat_map(|job| job.post.lanes().into_iter().map(|(incarnation, _)| (job.device, incarnation.into())))
        .collect();
    let (of, incarnations): (Vec<i64>, Vec<i64>) = incarnations.into_iter().unzip();
    // Each statement sees what was committed before it began; the second begins when the locks are held.
    let (begun, locked, loaded) = join3(
        client.batch_execute("BEGIN"),
        client.query(&statements.lock, &[&names]),
        client.query(&statements.load, &[&of, &incarnations]),
    )
    .await;
    begun?;
    let mut devices = BTreeMap::new();
    for row in &locked? {
        server.named.note(bits(row, 10)?, bits(row, 9)?);
        devices.insert(column(row, 0)?, read_device(row));
    }
    for row in &loaded? {
        if let Some(device) = devices.get_mut(&column(row, LANE_WIDTH)?)
            && let Ok(known) = device
            && let Err(error) = known.read_incarnation(row)
        {
            *device = Err(error);
        }
    }
    for known in devices.values_mut().flatten() {
        known.scene.refresh();
        known.before = known.scene.clone();
    }
    Ok(devices)
}

fn read_device(row: &SqlRow) -> Result<Known> {
    if column(row, 6)? {
        return Err(not_in());
    }
    let scene = Scene {
        current: option_wide(row, 1)?,
        stale: bits(row, 2)?,
        conflicts: bits(row, 3)?,
        interleavings: bits(row, 4)?,
        has_asides: column(row, 5)?,
        ..Scene::default()
    };
    Ok(Known {
        before: Scene::default(),
        scene,
        secrets: Secrets::new(column(row, 7)?, column(row, 8)?),
        is_promoted: false,
        heard_of_ms: BTreeMap::new(),
        boots: BTreeMap::new(),
    })
}

fn not_in() -> StoreError {
    StoreError::NotFound("the device may not come in any more".into())
}

impl Known {
    fn of<'k>(devices: &'k mut BTreeMap<i64, Result<Self>>, job: &Job) -> Result<&'k mut Self> {
        match devices.get_mut(&job.device) {
            Some(Ok(known)) => Ok(known),
            Some(Err(error)) => Err(error.clone()),
            None => Err(not_in()),
        }
    }

    fn read_incarnation(&mut self, row: &SqlRow) -> Result<()> {
        let at = LANE_WIDTH + 1;
        let name: u32 = wide(row, at)?;
        let boot = option_wide(row, at + 1)?.zip(option_wide(row, at + 2)?);
        let incarnation = Incarnation {
            boot,
            started_ms: bits(row, at + 3)?,
            heard_ms: None,
            is_fenced: column(row, at + 4)?,
            is_given_up: column(row, at + 5)?,
        };
        self.scene.incarnations.insert(name, incarnation);
        if column::<Option<i32>>(row, 0)?.is_some() {
            let (lane, state) = read_lane(row, 0)?;
            self.scene.lanes.insert((name, lane), state);
        }
        Ok(())
    }

    /// Judges a batch; the next one of its device finds everything as if this one had been committed.
    fn judge<'p>(&mut self, post: &'p Post) -> Result<Judged<'p>> {
        self.is_promoted |= self.secrets.are_used(post.with)?;
        let judged = judge(&mut self.scene, post);
        self.scene.refresh();
        for name in self.scene.incarnations.keys() {
            self.heard_of_ms.entry(*name).or_insert(post.now_ms);
        }
        if let Some(boot) = judged.boot {
            let after_ms =
                self.boots.get(&(boot.incarnation, boot.boot)).map_or(boot.after_ms, |first| first.after_ms);
            self.boots.insert((boot.incarnation, boot.boot), BootNote { after_ms, ..boot });
        }
        Ok(judged)
    }
}

/// What the database has under the compared keys, in their order.
type Found = std::vec::IntoIter<Option<Content>>;

async fn look_up(
    client: &Object,
    statements: &Statements,
    jobs: &[Job],
    judged: &[Result<Judged<'_>>],
) -> Attempt<Found> {
    let mut wanted: (Vec<i64>, Vec<i64>, Vec<i32>, Vec<i64>) = Default::default();
    for (job, judged) in jobs.iter().zip(judged) {
        for record in judged.iter().flat_map(|judged| compared(judged, &job.post)) {
            let Key { incarnation, lane, counter } = record.key;
            wanted.0.push(job.device);
            wanted.1.push(incarnation.into());
            wanted.2.push(lane.into());
            wanted.3.push(counter as i64);
        }
    }
    let mut found = vec![None; wanted.0.len()];
    if found.is_empty() {
        return Ok(found.into_iter());
    }
    let parameters: super::Parameters<'_> = &[&wanted.0, &wanted.1, &wanted.2, &wanted.3];
    let (logged, unreadable) =
        join(client.query(&statements.logged, parameters), client.query(&statements.unreadable, parameters))
            .await;
    // The log's word is the first.
    for row in unreadable?.iter().chain(&logged?) {
        let n = bits(row, 0)?.saturating_sub(1) as usize;
        if let Some(place) = found.get_mut(n) {
            *place = Some(read_content(row)?);
        }
    }
    Ok(found.into_iter())
}

fn compared<'p>(judged: &Judged<'_>, post: &'p Post) -> impl Iterator<Item = &'p Arrival> {
    judged.compared().filter_map(|n| post.arrival(n))
}

fn read_content(row: &SqlRow) -> Result<Content> {
    let time = Timestamp { boot: wide(row, 2)?, uptime_ms: bits(row, 3)?, wall_ms: option_bits(row, 4)? };
    Ok(Content { kind: narrow(row, 1)?, time, body: column(row, 5)? })
}

/// Batch by batch: what became of it, and what is to be written.
struct Conclusion<'p> {
    found: Found,
    /// Records of this transaction, for those that are compared with them: in the log by now, and kept because nobody can read them.
    logged: HashMap<(i64, Key), &'p Arrival>,
    unreadable: HashMap<(i64, Key), &'p Arrival>,
    changed: Changed<'p>,
}

impl<'p> Conclusion<'p> {
    fn conclude(&mut self, known: &mut Known, shard: u16, job: &'p Job, judged: Judged<'p>) -> Concluded {
        let (device, post) = (job.device, &*job.post);
        let records: Vec<&Arrival> = judged.stored().filter_map(|n| post.arrival(n)).collect();
        if self.found.len() > 0 {
            self.logged.extend(records.iter().map(|record| ((device, record.key), *record)));
        }
        let found: Vec<Option<Content>> =
            compared(&judged, post).map(|record| self.find(device, record.key)).collect();
        let had_asides = known.scene.has_asides;
        let concluded = judged.conclude(&mut known.scene, &found);
        for (outcome, record) in concluded.outcomes.iter().zip(post.arrivals()) {
            match outcome {
                Outcome::Aside(aside) => {
                    self.changed.asides.keep(device, *aside, record, post.now_ms);
                    if *aside == Aside::Unreadable {
                        self.unreadable.insert((device, record.key), record);
                    }
                }
                Outcome::Stored if had_asides => self.changed.asides.release(device, record),
                _ => {}
            }
        }
        if !records.is_empty() {
            self.changed.stored.push(Stored { device, shard, received_ms: post.now_ms, records });
        }
        concluded
    }

    fn find(&mut self, device: i64, key: Key) -> Option<Content> {
        let before = self.found.next().flatten();
        let logged = self.logged.get(&(device, key)).map(|record| content(record));
        logged.or(before).or_else(|| self.unreadable.get(&(device, key)).map(|record| content(record)))
    }
}

fn content(record: &Arrival) -> Content {
    Content { kind: record.kind, time: record.time, body: record.body.to_vec() }
}
