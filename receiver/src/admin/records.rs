//! Records: what is in the log, what is kept aside, and the story of one key.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pillarbox::{DeviceId, DeviceKey};
use serde::{Deserialize, Serialize};

use super::{AdminError, Asker, Desk, Method, Place, Request, Result, Tenant};
use crate::exact_json::is_exact;
use crate::kinds::Kinds;
use crate::moment::Moment;
use crate::store::{Position, RecordQuery, Role, Row, RowTime, Source};

/// Records of one page, at most.
const PAGE_MAX: u32 = 1000;

/// Which records.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRecords {
    /// Of this device.
    pub device: Option<DeviceId>,
    /// Of this tenant.
    pub tenant: Option<Tenant>,
    /// Of this kind, by name or number.
    pub kind: Option<String>,
    /// In this shard.
    pub shard: Option<u16>,
    /// Behind this place.
    pub after: Option<Place>,
    /// So many at most.
    pub limit: Option<u32>,
}

impl ListRecords {
    fn query(self, desk: &Desk, asker: &Asker) -> Result<RecordQuery> {
        let kind = self.kind.map(|name| {
            desk.kinds.number(&name).ok_or_else(|| {
                AdminError::Invalid(format!(
                    "there is no kind {name:?}; kinds without a name are called by their number"
                ))
            })
        });
        Ok(RecordQuery {
            device: self.device.map(|device| device.to_string()),
            tenant: asker.tenant_of(self.tenant.map(|tenant| tenant.to_string()))?,
            kind: kind.transpose()?,
            shard: self.shard,
            after: self.after.map(|place| place.0),
            limit: self.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX),
        })
    }
}

/// Some records.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordPage {
    /// The records.
    pub records: Vec<RecordView>,
    /// There may be more, behind this place.
    pub next: Option<Place>,
}

impl RecordPage {
    fn new(rows: Vec<Row>, limit: u32, kinds: &Kinds) -> Self {
        let is_full = rows.len() >= limit as usize;
        let next = rows.last().filter(|_| is_full).map(|row| Place(Position(row.arrival)));
        Self { records: rows.into_iter().map(|row| RecordView::new(row, kinds)).collect(), next }
    }
}

/// A record as people and programs read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordView {
    /// Its name: of a device, or the key that a client chose.
    pub key: String,
    /// Who sent it, if a device did.
    pub device: Option<String>,
    /// Whose it is.
    pub tenant: String,
    /// What it is.
    pub kind: u16,
    /// What that is called.
    pub name: Option<String>,
    /// When it was made, as well as is known.
    pub time: TimeView,
    /// When it came.
    pub received_at: Moment,
    /// Its place in the log.
    pub place: Option<Place>,
    /// Why it is kept aside: `unreadable`, `quarantined` or `conflict`.
    pub aside: Option<String>,
    /// What the client said that the body is.
    pub content_type: Option<String>,
    /// The body, decoded, if its kind is known.
    pub data: Option<serde_json::Value>,
    /// Why a body of a known kind could not be decoded.
    pub unreadable: Option<String>,
    /// The body as it is, if it was not decoded, or says more than JSON's numbers hold.
    pub hex: Option<String>,
    /// The same.
    pub base64: Option<String>,
}

impl RecordView {
    fn new(row: Row, kinds: &Kinds) -> Self {
        let (key, device, content_type) = match &row.source {
            Source::Device { key, .. } => (key.to_string(), Some(key.device.to_string()), None),
            Source::Client { key, content_type } => (key.clone(), None, Some(content_type.clone())),
        };
        let is_json = content_type.as_deref() == Some("application/json");
        let (data, unreadable) = match is_json {
            true => (serde_json::from_slice::<serde_json::Value>(&row.body).ok(), None),
            false => match kinds.decode(row.kind, &row.body) {
                crate::kinds::Decoded::Json(value) => (Some(value), None),
                crate::kinds::Decoded::Unknown => (None, None),
                crate::kinds::Decoded::Unreadable(why) => (None, Some(why)),
            },
        };
        let is_all = |data| !is_json || is_exact(data, &row.body);
        let is_raw = !data.as_ref().is_some_and(is_all);
        Self {
            key,
            device,
            tenant: row.tenant,
            kind: row.kind,
            name: kinds.name(row.kind).map(str::to_owned),
            time: row.time.into(),
            received_at: Moment(row.received_ms),
            place: row.position.map(Place),
            aside: row.aside.map(|aside| aside.name().to_owned()),
            content_type,
            data,
            unreadable,
            hex: is_raw.then(|| hex::encode(&row.body)),
            base64: is_raw.then(|| STANDARD.encode(&row.body)),
        }
    }

    /// The body in a line.
    pub fn body(&self) -> String {
        match (&self.data, &self.hex) {
            (Some(data), _) => data.to_string(),
            (None, Some(hex)) => format!("0x{hex}"),
            (None, None) => String::new(),
        }
    }
}

/// When a record was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeView {
    /// Exactly then.
    pub at: Option<Moment>,
    /// Not before.
    pub after: Option<Moment>,
    /// Not after.
    pub before: Option<Moment>,
}

impl From<RowTime> for TimeView {
    fn from(time: RowTime) -> Self {
        match time {
            RowTime::Exactly { ms } => Self { at: Some(Moment(ms)), after: None, before: None },
            RowTime::Between { after_ms, before_ms } => {
                Self { at: None, after: after_ms.map(Moment), before: Some(Moment(before_ms)) }
            }
        }
    }
}

impl TimeView {
    /// In a few words.
    pub fn words(&self) -> String {
        match (self.at, self.after, self.before) {
            (Some(at), ..) => at.to_string(),
            (None, Some(after), Some(before)) => format!("between {after} and {before}"),
            (None, None, Some(before)) => format!("before {before}"),
            _ => "not known".into(),
        }
    }

    /// One moment to sort and choose by.
    pub fn latest(&self) -> Option<Moment> {
        self.at.or(self.before)
    }
}

impl Request for ListRecords {
    type Answer = RecordPage;
    const METHOD: Method = Method::Get;
    const PATH: &'static str = "/v1/admin/records";
    const NEEDS: Role = Role::Viewer;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<RecordPage> {
        let query = self.query(desk, asker)?;
        let limit = query.limit;
        Ok(RecordPage::new(desk.store.log(query).await?, limit, &desk.kinds))
    }
}

/// Which records of those that are kept aside.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListAsides {
    /// Of this device.
    pub device: Option<DeviceId>,
    /// Of this tenant.
    pub tenant: Option<Tenant>,
    /// Of this kind, by name or number.
    pub kind: Option<String>,
    /// Behind this place, as a page's `next` names it.
    pub after: Option<Place>,
    /// So many at most.
    pub limit: Option<u32>,
}

impl Request for ListAsides {
    type Answer = RecordPage;
    const METHOD: Method = Method::Get;
    const PATH: &'static str = "/v1/admin/asides";
    const NEEDS: Role = Role::Viewer;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<RecordPage> {
        let Self { device, tenant, kind, after, limit } = self;
        let query = ListRecords { device, tenant, kind, shard: None, after, limit }.query(desk, asker)?;
        let limit = query.limit;
        Ok(RecordPage::new(desk.store.asides(query).await?, limit, &desk.kinds))
    }
}

/// Everything that is stored under a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetRecord {
    /// The key.
    pub key: String,
}

/// What is stored under a key, and what its lane says about its counter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordStory {
    /// The key.
    pub key: String,
    /// `received`, `pending`, `unexplained`, `not issued`, `not known`, or the reason why it will not come.
    pub state: String,
    /// The record, and what is kept aside under its key.
    pub records: Vec<RecordView>,
}

impl Request for GetRecord {
    type Answer = RecordStory;
    const METHOD: Method = Method::Get;
    const PATH: &'static str = "/v1/admin/records/{key}";
    const NEEDS: Role = Role::Viewer;

    async fn perform(self, desk: &Desk, asker: &Asker) -> Result<RecordStory> {
        let key: DeviceKey = self
            .key
            .parse()
            .map_err(|error| AdminError::Invalid(format!("{:?} is no key: {error}", self.key)))?;
        let device = super::devices::find(desk, asker, &key.device).await?;
        let rows = desk.store.get(&key).await?;
        let lanes = desk.store.lanes(device.id).await?;
        let lane =
            lanes.iter().find(|row| (row.incarnation, row.lane) == (key.key.incarnation, key.key.lane));
        let counter = key.key.counter;
        let is_stored = rows
            .iter()
            .any(|row| row.position.is_some() || row.aside == Some(crate::intake::Aside::Unreadable));
        let state = match lane.map(|lane| &lane.state.books) {
            _ if is_stored => "received",
            None => "not known",
            Some(books) => match books.reason(counter) {
                Some(reason) => crate::intake::reason_name(reason),
                None if counter >= books.issued() => "not issued",
                None if counter >= books.claimed() => "pending",
                None if counter >= books.floor() => "unexplained",
                // Received and no longer kept, or explained so long ago that the reason is only in the sums.
                None => "settled",
            },
        };
        let records = rows.into_iter().map(|row| RecordView::new(row, &desk.kinds)).collect();
        Ok(RecordStory { key: key.to_string(), state: state.into(), records })
    }
}

/// How far the log goes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShowHeads {}

/// The youngest place of each shard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Heads {
    /// In the order of the shards.
    pub heads: Vec<Place>,
}

impl Request for ShowHeads {
    type Answer = Heads;
    const METHOD: Method = Method::Get;
    const PATH: &'static str = "/v1/admin/heads";
    const NEEDS: Role = Role::Viewer;

    async fn perform(self, desk: &Desk, _: &Asker) -> Result<Heads> {
        Ok(Heads { heads: desk.store.heads().await?.into_iter().map(Place).collect() })
    }
}
