//! What is kept aside: of several batches in one transaction, each name once.

use std::collections::{BTreeMap, BTreeSet};

use deadpool_postgres::Object;
use futures_util::future::join;
use pillarbox::Key;
use tokio_postgres::Statement;

use super::Parameters;
use super::save::{Keys, Written, when};
use crate::intake::{Arrival, Aside};
use crate::store::Result;

const RELEASE: &str = "DELETE FROM asides USING unnest($1::bigint[], $2::bigint[], $3::integer[], $4::bigint[], $5::bytea[]) \
                       AS stored (device, incarnation, lane, counter, fingerprint) WHERE asides.device = stored.device \
                       AND asides.incarnation = stored.incarnation AND asides.lane = stored.lane \
                       AND asides.counter = stored.counter AND asides.fingerprint = stored.fingerprint AND aside = 1";
const KEEP: &str = "WITH arrived AS (UPDATE arrivals SET head = head + cardinality($1::bigint[]) \
                        RETURNING head - cardinality($1::bigint[]) AS head) \
                    INSERT INTO asides (id, device, incarnation, lane, counter, fingerprint, aside, kind, boot, uptime_ms, \
                        wall_ms, received_ms, body) \
                    SELECT arrived.head + n, device, incarnation, lane, counter, fingerprint, aside, kind, boot, uptime_ms, \
                        wall_ms, received_ms, body \
                    FROM arrived, unnest($1::bigint[], $2::bigint[], $3::integer[], $4::bigint[], $5::bytea[], $6::integer[], \
                        $7::integer[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bytea[]) WITH ORDINALITY \
                        AS new (device, incarnation, lane, counter, fingerprint, aside, kind, boot, uptime_ms, wall_ms, \
                        received_ms, body, n) \
                    ON CONFLICT (device, incarnation, lane, counter, fingerprint) DO UPDATE SET aside = excluded.aside \
                        WHERE asides.aside = 1";

/// The statements that write it.
pub(super) struct Statements {
    release: Statement,
    keep: Statement,
}

impl Statements {
    pub(super) async fn prepare(client: &Object) -> Result<Self> {
        Ok(Self { release: client.prepare_cached(RELEASE).await?, keep: client.prepare_cached(KEEP).await? })
    }
}

/// Device, key and fingerprint.
type AsideName = (i64, Key, [u8; 16]);

/// What is kept aside from now on, and what no longer is.
#[derive(Default)]
pub(super) struct Asides<'p> {
    kept: BTreeMap<AsideName, KeptAside<'p>>,
    released: BTreeSet<AsideName>,
}

struct KeptAside<'p> {
    /// Its place among them.
    n: usize,
    aside: Aside,
    record: &'p Arrival,
    received_ms: u64,
}

impl<'p> Asides<'p> {
    /// What is in quarantine and then turns out to be more is no longer in quarantine; never the other way round.
    pub(super) fn keep(&mut self, device: i64, aside: Aside, record: &'p Arrival, received_ms: u64) {
        let n = self.kept.len();
        let kept = self.kept.entry((device, record.key, record.fingerprint()));
        let kept = kept.or_insert(KeptAside { n, aside, record, received_ms });
        if kept.aside == Aside::Quarantined {
            kept.aside = aside;
        }
    }

    /// Out of the quarantine comes what is stored after all.
    pub(super) fn release(&mut self, device: i64, record: &Arrival) {
        let name = (device, record.key, record.fingerprint());
        if self.kept.get(&name).is_some_and(|kept| kept.aside == Aside::Quarantined) {
            self.kept.remove(&name);
        }
        self.released.insert(name);
    }
    pub(super) async fn save(&self, client: &Object, statements: &Statements) -> Written {
        let (release, keep) = join(
            release(client, &statements.release, &self.released),
            keep(client, &statements.keep, &self.kept),
        )
        .await;
        release.and(keep)
    }
}

async fn release(client: &Object, statement: &Statement, released: &BTreeSet<AsideName>) -> Written {
    let keys = Keys::of(released.iter().map(|(device, key, _)| (*device, *key)));
    let fingerprints: Vec<&[u8]> = released.iter().map(|(.., fingerprint)| &fingerprint[..]).collect();
    let parameters: Parameters<'_> =
        &[&keys.devices, &keys.incarnations, &keys.lanes, &keys.counters, &fingerprints];
    when(!released.is_empty(), client.execute(statement, parameters)).await
}

async fn keep(client: &Object, statement: &Statement, kept: &BTreeMap<AsideName, KeptAside<'_>>) -> Written {
    let mut kept: Vec<(&AsideName, &KeptAside<'_>)> = kept.iter().collect();
    kept.sort_by_key(|(_, kept)| kept.n);
    let keys = Keys::of(kept.iter().map(|((device, key, _), _)| (*device, *key)));
    let fingerprints: Vec<&[u8]> = kept.iter().map(|((.., fingerprint), _)| &fingerprint[..]).collect();
    let asides: Vec<i32> = kept.iter().map(|(_, it)| it.aside as i32).collect();
    let kinds: Vec<i32> = kept.iter().map(|(_, it)| it.record.kind.into()).collect();
    let boots: Vec<i64> = kept.iter().map(|(_, it)| it.record.time.boot.into()).collect();
    let uptimes: Vec<i64> = kept.iter().map(|(_, it)| it.record.time.uptime_ms as i64).collect();
    let walls: Vec<Option<i64>> =
        kept.iter().map(|(_, it)| it.record.time.wall_ms.map(|ms| ms as i64)).collect();
    let received: Vec<i64> = kept.iter().map(|(_, it)| it.received_ms as i64).collect();
    let bodies: Vec<&[u8]> = kept.iter().map(|(_, it)| &it.record.body[..]).collect();
    let parameters: Parameters<'_> = &[
        &keys.devices,
        &keys.incarnations,
        &keys.lanes,
        &keys.counters,
        &fingerprints,
        &asides,
        &kinds,
        &boots,
        &uptimes,
        &walls,
        &received,
        &bodies,
    ];
    when(!kept.is_empty(), client.execute(statement, parameters)).await
}
