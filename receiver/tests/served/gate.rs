//! A store with a gate in front of a few of its doors: what stands before it is neither done nor refused, as when a database
//! takes its time, until the test opens it. Everything behind the gate is the real store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pillarbox::{DeviceId, DeviceKey};
use pillarbox_receiver::intake::{Concluded, Post};
use pillarbox_receiver::store::{
    Change, Claim, Claimed, Device, DeviceQuery, Door, Fleet, IncarnationRow, LaneRow, Position, Posting,
    RecordQuery, Result, Row, Store, TokenRow,
};
use tokio::sync::watch;

/// Which doors are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    Nothing,
    Take,
    Complete,
}

pub(crate) struct Gate {
    behind: Arc<dyn Store>,
    closed: watch::Sender<Closed>,
    waiting: AtomicUsize,
}

impl Gate {
    pub(crate) fn new(behind: &Arc<dyn Store>, closed: Closed) -> Arc<Self> {
        let behind = behind.clone();
        Arc::new(Self { behind, closed: watch::Sender::new(closed), waiting: AtomicUsize::new(0) })
    }

    pub(crate) fn open(&self) {
        self.closed.send_replace(Closed::Nothing);
    }

    /// How many stand before it.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    async fn pass(&self, door: Closed) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut closed = self.closed.subscribe();
        closed.wait_for(|closed| *closed != door).await.expect("the gate stands");
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What goes through to the store behind.
macro_rules! through {
    ($(fn $name:ident($($argument:ident: $of:ty),*) -> $gives:ty;)+) => {
        #[async_trait]
        impl Store for Gate {
            fn epoch(&self) -> u64 {
                self.behind.epoch()
            }

            fn shards(&self) -> u16 {
                self.behind.shards()
            }

            fn queued(&self) -> usize {
                self.behind.queued()
            }

            async fn take(&self, device: i64, post: Arc<Post>) -> Result<Concluded> {
                self.pass(Closed::Take).await;
                self.behind.take(device, post).await
            }

            async fn complete(&self, posting: Posting) -> Result<Option<Position>> {
                self.pass(Closed::Complete).await;
                self.behind.complete(posting).await
            }

            $(async fn $name(&self, $($argument: $of),*) -> Result<$gives> {
                self.behind.$name($($argument),*).await
            })+
        }
    };
}

through! {
    fn renew_epoch() -> u64;
    fn is_ready() -> ();
    fn door(device: &DeviceId) -> Option<Door>;
    fn claim(claim: Claim) -> Claimed;
    fn give_back(claim: Claim) -> ();
    fn forget_keys(before_ms: u64, limit: u32) -> u64;
    fn change(change: Change, now_ms: u64) -> ();
    fn device(name: &DeviceId) -> Option<Device>;
    fn devices(query: DeviceQuery) -> Vec<Device>;
    fn incarnations(device: i64) -> Vec<IncarnationRow>;
    fn lanes(device: i64) -> Vec<LaneRow>;
    fn fleet() -> Fleet;
    fn get(key: &DeviceKey) -> Vec<Row>;
    fn log(query: RecordQuery) -> Vec<Row>;
    fn asides(query: RecordQuery) -> Vec<Row>;
    fn heads() -> Vec<Position>;
    fn count(device: i64, incarnation: u32, lane: u8) -> u64;
    fn add_token(hash: [u8; 32], token: TokenRow) -> i64;
    fn token(hash: [u8; 32]) -> Option<TokenRow>;
    fn tokens() -> Vec<TokenRow>;
    fn revoke_token(id: i64, now_ms: u64) -> ();
}
