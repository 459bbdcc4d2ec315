//! A device that says over HTTP whatever a test wants, in envelopes that the library writes.

use pillarbox::wire::{
    ANSWER_CONTENT_TYPE, Answer, BATCH_CONTENT_TYPE, BatchWriter, ENVELOPE_MAX, Head, Secret, TAG_LEN,
    TagKeys,
};
use pillarbox::{DeviceId, Entry, Key, Kind, Stored, Timestamp};
use pillarbox_receiver::store::{Change, Store};

use super::Answer as Response;

pub(crate) const INCARNATION: u32 = 0x9f3c_1a77;

/// What a device says about itself.
#[derive(Clone, Debug)]
pub(crate) struct Speaker {
    pub(crate) device: DeviceId,
    pub(crate) secret: [u8; 32],
    pub(crate) incarnation: u32,
    pub(crate) boot: u32,
    pub(crate) kind: u16,
}

impl Speaker {
    pub(crate) fn new(name: &str, secret: u8) -> Self {
        let device = DeviceId::new(name).expect("it is a name");
        Self { device, secret: [secret; 32], incarnation: INCARNATION, boot: 1, kind: 8 }
    }

    pub(crate) async fn register(&self, store: &dyn Store, now_ms: u64) {
        let (device, secret) = (self.device.clone(), self.secret);
        let change = Change::Add { device, tenant: "default".into(), secret };
        store.change(change, now_ms).await.expect("it is new");
    }

    pub(crate) fn keys(&self) -> TagKeys {
        TagKeys::new(&Secret::new(self.secret))
    }

    /// Records with these counters and bodies, and what else there is to say.
    pub(crate) fn batch(
        &self,
        floor: u64,
        issued: u64,
        account: &[Entry],
        records: &[(u64, &[u8])],
    ) -> Vec<u8> {
        let mut buffer = vec![0; ENVELOPE_MAX];
        let mut writer = BatchWriter::new(&mut buffer, self.boot, 1000, None, account.len());
        writer.set_floor(floor);
        for (counter, body) in records {
            let key = Key { incarnation: self.incarnation, lane: 0, counter: *counter };
            let time = Timestamp { boot: self.boot, uptime_ms: 500, wall_ms: None };
            let record = Stored { key, kind: Kind(self.kind), time, tag: None, cause: None, body };
            assert!(writer.record(&record, usize::MAX), "it fits");
        }
        let mut head = Head {
            device: self.device.clone(),
            incarnation: self.incarnation,
            lane: 0,
            is_closing: false,
            is_in_order: false,
            floor,
            issued,
            boot: self.boot,
            boot_nonce: 77,
            attempt_nonce: fastrand::u64(..),
            uptime_ms: 1000,
            wall_ms: None,
        };
        let (envelope, _) = writer.finish(&mut head, account, &[], &self.keys()).expect("it is in order");
        buffer[envelope].to_vec()
    }

    /// Sends a batch, and says what came back.
    pub(crate) async fn send(&self, http: &reqwest::Client, url: &str, batch: &[u8]) -> Response {
        let request = http.post(format!("{url}/v1/batch")).header("content-type", BATCH_CONTENT_TYPE);
        Response::of(request.body(batch.to_vec())).await
    }

    /// What an answer says, if it was made by somebody who knows the secret, to this very batch.
    pub(crate) fn open<'a>(&self, batch: &[u8], answer: &'a Response) -> Option<Answer<'a>> {
        let tag: &[u8; TAG_LEN] = batch.last_chunk().expect("it ends with a tag");
        let said = self.keys().open_answer(tag, &answer.body)?;
        assert_eq!(answer.header("content-type"), Some(ANSWER_CONTENT_TYPE));
        Some(Answer::decode(said).expect("it is an answer"))
    }

    /// Sends records, which must be heard; says which of them are settled.
    pub(crate) async fn deliver(
        &self,
        http: &reqwest::Client,
        url: &str,
        records: &[(u64, &[u8])],
    ) -> Vec<bool> {
        let issued = records.iter().map(|(counter, _)| counter + 1).max().unwrap_or(0);
        let batch = self.batch(0, issued, &[], records);
        let answer = self.send(http, url, &batch).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let said = self.open(&batch, &answer).expect("it is tagged");
        (0..records.len()).map(|n| said.is_settled(n)).collect()
    }
}
