//! What the receiver asks of a database, and nothing more. SQLite and PostgreSQL are the two that it knows; one set of tests runs
//! on both.

mod kept;
pub mod postgres;
pub mod sqlite;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use pillarbox::wire::{Secret, TagKeys};
use pillarbox::{DeviceId, DeviceKey, Timestamp};
use sha2::{Digest, Sha256};

use crate::intake::{Aside, Concluded, LaneState, Post, SecretPrint};

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// It could not be reached, is full, or broke off. Nothing is settled; the same again may go well.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// What is asked for is not there.
    #[error("{0}")]
    NotFound(String),
    /// What is to be made is there already, or is not as it would have to be.
    #[error("{0}")]
    Refused(String),
    /// What lies in the store cannot be: it was written by another program or is damaged.
    #[error("the store holds something that cannot be: {0}")]
    Damaged(String),
}

/// What a store gives.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A place in the log. Its high 16 bits are the shard; inside of a shard positions rise in the order of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Position(pub u64);

impl Position {
    const SHARD_SHIFT: u32 = 48;

    /// The nth place of a shard.
    pub fn new(shard: u16, n: u64) -> Self {
        Self(u64::from(shard) << Self::SHARD_SHIFT | n)
    }

    /// Which shard it is in.
    pub fn shard(self) -> u16 {
        (self.0 >> Self::SHARD_SHIFT) as u16
    }

    /// Its place in the shard.
    pub fn n(self) -> u64 {
        self.0 & ((1 << Self::SHARD_SHIFT) - 1)
    }
}

/// Which of so many shards a name belongs to: always the same one.
pub fn shard_of(name: &str, shards: u16) -> u16 {
    let digest = Sha256::digest(name.as_bytes());
    let number = digest.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte));
    (number % u32::from(shards.max(1))) as u16
}

/// What the door knows of a device.
#[derive(Clone, Debug)]
pub struct Door {
    /// The store's number for it.
    pub id: i64,
    /// Its keys.
    pub keys: TagKeys,
    /// The keys that will take their place when they are first used, and what tells their secret from others.
    pub next: Option<(TagKeys, SecretPrint)>,
    /// It may not come in any more.
    pub is_revoked: bool,
}

/// A device for people.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Device {
    /// The store's number for it.
    #[serde(skip)]
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// When it was added.
    pub created_ms: u64,
    /// When it was revoked.
    pub revoked_ms: Option<u64>,
    /// A new secret waits for its first use.
    pub is_rotating: bool,
    /// The incarnation that new records were last heard under.
    pub current_incarnation: Option<u32>,
    /// When it was last heard.
    pub heard_ms: Option<u64>,
    /// Batches of boots that were over, or that were another's.
    pub stale: u64,
    /// Keys that came with two contents.
    pub conflicts: u64,
    /// How often an incarnation took records again after another had begun.
    pub interleavings: u64,
}

/// An incarnation for people.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct IncarnationRow {
    /// Its number.
    pub incarnation: u32,
    /// The highest boot.
    pub boot: u32,
    /// When it was first heard.
    pub first_heard_ms: u64,
    /// Nothing of it counts.
    pub is_fenced: bool,
    /// An operator expects nothing more of it.
    pub is_given_up: bool,
}

/// A lane with its books.
#[derive(Clone, Debug)]
pub struct LaneRow {
    /// Whose.
    pub incarnation: u32,
    /// Its number.
    pub lane: u8,
    /// What is known of it.
    pub state: LaneState,
}

/// A record of the log, or one that is kept aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its place in the log; none if it is kept aside.
    pub position: Option<Position>,
    /// Its place in the order in which such rows are listed: behind it goes [`RecordQuery::after`].
    pub arrival: u64,
    /// Why it is kept aside.
    pub aside: Option<Aside>,
    /// Whose it is.
    pub tenant: String,
    /// Who sent it.
    pub source: Source,
    /// What its body is.
    pub kind: u16,
    /// When it came.
    pub received_ms: u64,
    /// When it was made.
    pub time: RowTime,
    /// The bytes.
    pub body: Vec<u8>,
}

/// Where a record comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// From a device.
    Device {
        /// Its name and the record's.
        key: DeviceKey,
        /// The time as the device told it.
        time: Timestamp,
    },
    /// From an ordinary client.
    Client {
        /// The idempotency key.
        key: String,
        /// What the client says that the body is.
        content_type: String,
    },
}

/// When a record was made, as well as the receiver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "known", rename_all = "snake_case")]
pub enum RowTime {
    /// The device knew the time, or the time at which its boot began is known.
    Exactly {
        /// In milliseconds since 1970.
        ms: u64,
    },
    /// Its boot was never heard: it lies between what was heard before and the next boot that was.
    Between {
        /// Not before.
        after_ms: Option<u64>,
        /// Not after.
        before_ms: u64,
    },
}

impl RowTime {
    /// The time of a record: `next` is the first boot from its own on that was heard of, with what was heard last before it
    /// and when it began.
    pub fn of(time: &Timestamp, received_ms: u64, next: Option<(u32, Option<u64>, u64)>) -> Self {
        match (time.wall_ms, next) {
            (Some(ms), _) => Self::Exactly { ms },
            (None, Some((boot, _, started_ms))) if boot == time.boot => {
                Self::Exactly { ms: started_ms.saturating_add(time.uptime_ms) }
            }
            (None, Some((_, after_ms, started_ms))) => {
                let after_ms = after_ms.map(|ms| ms.saturating_add(time.uptime_ms).min(started_ms));
                Self::Between { after_ms, before_ms: started_ms }
            }
            (None, None) => Self::Between { after_ms: None, before_ms: received_ms },
        }
    }

    /// One number to sort and plot by.
    pub fn latest_ms(self) -> u64 {
        match self {
            Self::Exactly { ms } => ms,
            Self::Between { before_ms, .. } => before_ms,
        }
    }
}

/// Which devices, in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct DeviceQuery {
    /// Whose name contains this.
    pub containing: Option<String>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// After this name.
    pub after: Option<String>,
    /// So many at most.
    pub limit: u32,
}

/// Which records, in the order of their positions (of what is kept aside: of arrival).
#[derive(Clone, Debug, Default)]
pub struct RecordQuery {
    /// Of this device.
    pub device: Option<String>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// Of this kind.
    pub kind: Option<u16>,
    /// In this shard.
    pub shard: Option<u16>,
    /// Behind this place.
    pub after: Option<Position>,
    /// So many at most.
    pub limit: u32,
}

/// What a program may do with a token.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Post records for its tenant.
    Client,
    /// Read everything but secrets.
    Viewer,
    /// Everything.
    Admin,
}

impl Role {
    /// Its name, as it is stored and shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Viewer => "viewer",
            Self::Admin => "admin",
        }
    }

    /// The role of this name.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let is_it = |role: &Self| role.name() == name;
        let found = [Self::Client, Self::Viewer, Self::Admin].into_iter().find(is_it);
        found.ok_or_else(|| StoreError::Damaged(format!("a token has the role {name:?}")))
    }
}

/// A token, without what proves it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct TokenRow {
    /// Its number.
    pub id: i64,
    /// What it may do.
    pub role: Role,
    /// For whom; admins and viewers without one are for all.
    pub tenant: Option<String>,
    /// What it is for.
    pub label: String,
    /// When it was made.
    pub created_ms: u64,
    /// When it was revoked.
    pub revoked_ms: Option<u64>,
}

/// A change to devices that an operator makes.
#[derive(Clone, Debug)]
pub enum Change {
    /// Lets a device in.
    Add {
        /// Its name.
        device: DeviceId,
        /// Whose it is.
        tenant: String,
        /// What it shares with the receiver.
        secret: [u8; 32],
    },
    /// Lets it in no more.
    Revoke(DeviceId),
    /// Gives it a new secret; the old one is good until the new one is used.
    Rotate(DeviceId, [u8; 32]),
    /// Takes nothing of an incarnation into the books any more.
    Fence(DeviceId, u32),
    /// Expects nothing more of an incarnation.
    GiveUp(DeviceId, u32),
}

/// A request of an ordinary client that wants its key for itself.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Whose key it is.
    pub tenant: String,
    /// What it is for.
    pub operation: String,
    /// The key.
    pub key: String,
    /// What the request holds, as a hash.
    pub hash: [u8; 32],
    /// Names this claim, so that one that came too late can be told.
    pub holder: u64,
    /// Now.
    pub now_ms: u64,
    /// When it may be taken over.
    pub lease_until_ms: u64,
    /// Keys that were made before are as if they had never been.
    pub expired_before_ms: u64,
}

/// How far the request with a client's key has come, by the number that stores keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    InProgress = 0,
    Completed = 1,
    Failed = 2,
}

impl KeyState {
    pub(crate) fn numbered(number: u8) -> Result<Self> {
        match number {
            0 => Ok(Self::InProgress),
            1 => Ok(Self::Completed),
            2 => Ok(Self::Failed),
            _ => Err(StoreError::Damaged(format!("a key has the state {number}"))),
        }
    }
}

/// What became of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The key is ours until the lease ends.
    Ours,
    /// It was completed before, with this answer.
    Completed {
        /// Its status.
        status: u16,
        /// Its body.
        body: Vec<u8>,
    },
    /// Somebody else is at it, until then.
    InProgress {
        /// When it may be taken over.
        lease_until_ms: u64,
    },
    /// It came with another payload.
    Reused,
}

/// What a client's request stores, with the answer that is given now and ever after.
#[derive(Clone, Debug)]
pub struct Posting {
    /// The claim that it completes.
    pub claim: Claim,
    /// What the body is.
    pub kind: u16,
    /// What the client says that it is.
    pub content_type: String,
    /// The bytes.
    pub body: Vec<u8>,
    /// The answer's status.
    pub status: u16,
    /// The answer's body.
    pub answer: Vec<u8>,
}

/// The fleet in a few numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fleet {
    /// Devices that may come in.
    pub devices: u64,
    /// Records that are known and still to come.
    pub pending: u64,
    /// Counters that nobody has explained.
    pub unexplained: u64,
    /// Counters that their devices could not explain.
    pub lost: u64,
    /// Since when the oldest of them is awaited, in incarnations that nobody gave up.
    pub oldest_pending_ms: Option<u64>,
    /// Records that are kept aside.
    pub asides: u64,
    /// Records in the log.
    pub records: u64,
}

/// A database.
///
/// The store promises: what a method gave `Ok` for is durable; a method that failed changed nothing, or (where the connection
/// broke during the commit) all of it, which the same call then finds. Its caller may drop any future; what it asked for may
/// happen all the same.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The random name of the database; another one after it was restored.
    fn epoch(&self) -> u64;
    /// In how many shards the log is.
    fn shards(&self) -> u16;
    /// Requests that wait for it.
    fn queued(&self) -> usize;
    /// Gives the database another name, and says which.
    async fn renew_epoch(&self) -> Result<u64>;
    /// Devices are about to be answered: a database that is a backup takes another name first.
    async fn begin(&self) -> Result<()> {
        Ok(())
    }
    /// Nobody is answered any more: what is durable is brought to where a copy of the database finds it.
    async fn end(&self) -> Result<()> {
        Ok(())
    }
    /// Answers if it can be written to.
    async fn is_ready(&self) -> Result<()>;

    /// What is known of a device before it is let in.
    async fn door(&self, device: &DeviceId) -> Result<Option<Door>>;
    /// Takes an authentic batch in one transaction: lane state, records, log positions. Copies of it wait for each other, in
    /// whichever process. `NotFound` if the device is revoked by now or has another secret.
    async fn take(&self, device: i64, post: Arc<Post>) -> Result<Concluded>;

    /// Takes a client's key, if it is free.
    async fn claim(&self, claim: Claim) -> Result<Claimed>;
    /// Stores a client's record and the answer, if the claim still holds: key, record and log position in one transaction.
    /// Gives its place in the log; `None` if somebody else has taken the key over.
    async fn complete(&self, posting: Posting) -> Result<Option<Position>>;
    /// Gives a key back whose request failed: the next one with it starts anew.
    async fn give_back(&self, claim: Claim) -> Result<()>;
    /// Forgets keys that were made before then, so many at most. Gives how many.
    async fn forget_keys(&self, before_ms: u64, limit: u32) -> Result<u64>;

    /// Does what an operator says.
    async fn change(&self, change: Change, now_ms: u64) -> Result<()>;
    /// One device.
    async fn device(&self, name: &DeviceId) -> Result<Option<Device>>;
    /// Some devices.
    async fn devices(&self, query: DeviceQuery) -> Result<Vec<Device>>;
    /// The incarnations of a device, in the order in which they were heard of.
    async fn incarnations(&self, device: i64) -> Result<Vec<IncarnationRow>>;
    /// The lanes of a device.
    async fn lanes(&self, device: i64) -> Result<Vec<LaneRow>>;
    /// The fleet in a few numbers.
    async fn fleet(&self) -> Result<Fleet>;

    /// What is stored under a key: in the log, then what is kept aside.
    async fn get(&self, key: &DeviceKey) -> Result<Vec<Row>>;
    /// Some records of the log.
    async fn log(&self, query: RecordQuery) -> Result<Vec<Row>>;
    /// Some records that are kept aside; `after` counts places of arrival.
    async fn asides(&self, query: RecordQuery) -> Result<Vec<Row>>;
    /// The youngest place of each shard.
    async fn heads(&self) -> Result<Vec<Position>>;
    /// How many records of a lane the store has: in the log, and kept aside as unreadable. For `check`.
    async fn count(&self, device: i64, incarnation: u32, lane: u8) -> Result<u64>;

    /// Makes a token of which only the hash is kept. Gives its number.
    async fn add_token(&self, hash: [u8; 32], token: TokenRow) -> Result<i64>;
    /// The token with this hash, if it is good.
    async fn token(&self, hash: [u8; 32]) -> Result<Option<TokenRow>>;
    /// All tokens.
    async fn tokens(&self) -> Result<Vec<TokenRow>>;
    /// Makes a token worthless.
    async fn revoke_token(&self, id: i64, now_ms: u64) -> Result<()>;
}

/// Opens the store of this name: a PostgreSQL database by its URL, or else a file for SQLite. Either is made ready if it is new.
///
/// Boxed, so that what connects to databases is compiled here, and not again in everything that opens one.
pub fn open(name: &str) -> Opening<'_> {
    Box::pin(open_named(name))
}

/// A store that is being opened.
pub type Opening<'n> = Pin<Box<dyn Future<Output = Result<Arc<dyn Store>>> + Send + 'n>>;

async fn open_named(name: &str) -> Result<Arc<dyn Store>> {
    if name.starts_with("postgres://") || name.starts_with("postgresql://") {
        return Ok(Arc::new(postgres::PostgresStore::open(name).await?));
    }
    Ok(Arc::new(sqlite::SqliteStore::open(Path::new(name))?))
}

/// The keys that go with a secret as it is stored.
pub(crate) fn tag_keys(secret: &[u8]) -> Result<TagKeys> {
    let secret =
        <[u8; 32]>::try_from(secret).map_err(|_| StoreError::Damaged("a secret has not 32 bytes".into()))?;
    Ok(TagKeys::new(&Secret::new(secret)))
}
