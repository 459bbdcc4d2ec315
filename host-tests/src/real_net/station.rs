//! One device with all that it needs to deliver over the host's network, in real time.

use core::time::Duration;

use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use pillarbox::{
    BatchUplink, Dispatcher, Failure, Http, Key, LaneConfig, Outbox, Policy, Resources, Timeouts, Tls,
    Trigger, Uplink, buffer_size,
};

use super::{RealNet, TokioClock};
use crate::device::{Flash, Note, RECORD, config};
use crate::station::{chip, quick, secret_of};

const BUFFER: usize = buffer_size(6, 64);

type Post = Outbox<'static, &'static Flash, 1, RECORD, NoopRawMutex, TokioClock>;
type Sender = Dispatcher<'static, &'static Flash, 1, RECORD, NoopRawMutex, TokioClock>;
/// What a station sends over.
pub type RealUplink = BatchUplink<'static, RealNet, RealNet, TokioClock>;

/// `meter-1` with one lane, booted now. Its memory lives for ever; a test may leak it.
pub struct RealStation {
    /// Its network, which counts.
    pub net: &'static RealNet,
    /// Its clock.
    pub clock: TokioClock,
    /// What the application has.
    pub outbox: Post,
    /// What sends.
    pub dispatcher: Sender,
    /// How long the network may take.
    pub timeouts: Timeouts,
}

impl RealStation {
    /// Boots on a blank chip. `receiver.test` is this host.
    pub async fn boot() -> Self {
        let clock = TokioClock::boot();
        let resources: &'static mut _ =
            Box::leak(Box::new(Resources::<&Flash, 1, RECORD, BUFFER, NoopRawMutex, TokioClock>::new()));
        let opened = pillarbox::new(resources, chip(), clock, 7, config([LaneConfig::new(64)])).await;
        let (outbox, drain) = opened.expect("the flash is sound");
        let dispatcher = Dispatcher::new(drain).await.policies([Policy::urgent()]).pace(quick());
        let net = RealNet::new().with_name("receiver.test", [127, 0, 0, 1].into());
        Self {
            net: Box::leak(Box::new(net)),
            clock,
            outbox,
            dispatcher,
            timeouts: Timeouts { connect_ms: 2_000, exchange_ms: 2_000 },
        }
    }

    /// An uplink to this address, with buffers for so large a batch and answer.
    pub fn uplink(&self, url: &str, tls: Option<Tls<'static>>, tx: usize) -> RealUplink {
        let url: &'static str = url.to_owned().leak();
        let mut http = Http::new(self.net, self.net, self.clock, url).timeouts(self.timeouts);
        if let Some(tls) = tls {
            http = http.tls(tls);
        }
        BatchUplink::new(http, &secret_of("meter-1"), vec![0; tx].leak(), vec![0; 2048].leak())
            .expect("it is an address")
    }

    /// An uplink to this port over plain HTTP.
    pub fn plain(&self, port: u16) -> RealUplink {
        self.uplink(&format!("http://receiver.test:{port}"), None, 2048)
    }

    /// Posts notes.
    pub async fn post_all(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<Key> {
        let mut keys = Vec::new();
        for number in numbers {
            keys.push(self.outbox.enqueue(&Note::new(number)).await.expect("there is room"));
        }
        keys
    }

    /// Flushes now, whatever the dispatcher was waiting for.
    ///
    /// # Panics
    /// If that takes longer than a test can wait, or there is nothing to send.
    pub async fn flush<U: Uplink>(&mut self, uplink: &mut U) -> Result<(), Failure> {
        self.trigger().await.flush();
        let step = tokio::time::timeout(Duration::from_secs(60), self.dispatcher.step(uplink));
        step.await.expect("it ends by itself").expect("there is something to send")
    }

    /// Tells the dispatcher that now is a good moment.
    pub async fn trigger(&self) -> Trigger<'static, NoopRawMutex> {
        self.outbox.trigger().await
    }

    /// Keys that are pending.
    pub async fn pending(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        self.outbox.inspect(0, |stored| keys.push(stored.key)).await.expect("the flash is sound");
        keys
    }
}
