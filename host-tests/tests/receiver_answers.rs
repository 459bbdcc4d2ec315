//! The model of the receiver answers batches as SPEC.md says, byte for byte on the wire: who may speak, what is
//! stored, and that a request which comes twice changes nothing.

use host_tests::server::{ModelServer, Refusal, Reply, Server};
use pillarbox::wire::{Answer, BatchWriter, Head, Secret, TagKeys, Verdict};
use pillarbox::{DeviceId, Entry, Key, Kind, Reason, Stored, Timestamp};

const NOW: u64 = 1_800_000_000_000;
const INCARNATION: u32 = 0x9f3c_1a77;

fn device() -> DeviceId {
    DeviceId::new("meter-1").expect("it is a device id")
}

fn secret() -> Secret {
    Secret::new([7; 32])
}

fn server() -> ModelServer {
    let mut server = ModelServer::new(11);
    server.register(device(), &secret());
    server
}

fn key(counter: u64) -> Key {
    Key { incarnation: INCARNATION, lane: 0, counter }
}

fn record(counter: u64, body: &[u8]) -> Stored<'_> {
    let time = Timestamp { boot: 1, uptime_ms: 5, wall_ms: None };
    Stored { key: key(counter), kind: Kind(3), time, tag: None, cause: None, body }
}

/// A batch that a test puts together.
struct Post<'a> {
    device: DeviceId,
    boot: (u32, u32),
    floor: u64,
    issued: u64,
    is_closing: bool,
    account: Vec<Entry>,
    records: Vec<Stored<'a>>,
    late: Vec<Stored<'a>>,
}

impl<'a> Post<'a> {
    fn new(floor: u64, issued: u64, records: &[Stored<'a>]) -> Self {
        let (account, late) = (Vec::new(), Vec::new());
        let records = records.to_vec();
        Self { device: device(), boot: (1, 1), floor, issued, is_closing: false, account, records, late }
    }

    fn bytes(&self, secret: &Secret) -> Vec<u8> {
        let mut buffer = vec![0; 8192];
        let mut writer = BatchWriter::new(&mut buffer, self.boot.0, 1000, None, self.account.len());
        writer.set_floor(self.floor);
        assert!(self.records.iter().all(|record| writer.record(record, 8192)));
        assert!(self.late.iter().all(|record| writer.late(record, 8192)));
        let mut head = Head {
            device: self.device.clone(),
            incarnation: INCARNATION,
            lane: 0,
            is_closing: self.is_closing,
            is_in_order: false,
            floor: self.floor,
            issued: self.issued,
            boot: self.boot.0,
            boot_nonce: self.boot.1,
            attempt_nonce: 99,
            uptime_ms: 1000,
            wall_ms: None,
        };
        let keys = TagKeys::new(secret);
        let (envelope, entries) = writer.finish(&mut head, &self.account, &[], &keys).expect("it is a batch");
        let envelope = &buffer[envelope];
        assert_eq!(entries, self.account.len());
        envelope.to_vec()
    }

    fn send(&self, server: &mut ModelServer) -> Heard {
        let bytes = self.bytes(&secret());
        let reply = server.handle(NOW, &bytes);
        server.check();
        let heard = Heard { reply, tag: *bytes.last_chunk().expect("it ends in a tag") };
        assert_eq!(heard.reply.status, 200);
        heard
    }
}

/// What came back.
struct Heard {
    reply: Reply,
    tag: [u8; 16],
}

impl Heard {
    fn answer(&self) -> Answer<'_> {
        let opened = TagKeys::new(&secret()).open_answer(&self.tag, &self.reply.body);
        Answer::decode(opened.expect("its tag is right")).expect("it is an answer")
    }

    fn settled(&self, records: usize) -> Vec<bool> {
        (0..records).map(|n| self.answer().is_settled(n)).collect()
    }

    fn verdicts(&self) -> Vec<(u16, Verdict)> {
        self.answer().verdicts().collect()
    }
}

#[test]
fn an_unknown_device_and_a_wrong_tag_look_the_same() {
    let mut server = server();
    let post = Post::new(0, 1, &[record(0, b"a")]);
    let wrong = server.handle(NOW, &post.bytes(&Secret::new([8; 32])));
    let stranger = DeviceId::new("meter-2").expect("it is a device id");
    let unknown = server.handle(NOW, &Post { device: stranger, ..post }.bytes(&secret()));
    assert_eq!(wrong, Reply { status: 401, body: Vec::new(), retry_after_s: None });
    assert_eq!(wrong, unknown);
    assert!(server.log().is_empty() && server.lanes(&device()).is_empty());
}

#[test]
fn what_is_no_batch_is_refused_in_words() {
    let mut server = server();
    for garbage in [&b""[..], b"hello, who is there?", &[1, 0, 0xff]] {
        let reply = server.handle(NOW, garbage);
        assert_eq!(reply.status, 400);
        assert!(!reply.body.is_empty() && std::str::from_utf8(&reply.body).is_ok());
    }
    // Authentic, and with a section that has to be understood.
    let mut bytes = Post::new(0, 0, &[]).bytes(&secret());
    bytes.truncate(bytes.len() - 16);
    bytes.extend([0x70, 0]);
    let tag = TagKeys::new(&secret()).batch_tag(&bytes);
    bytes.extend(tag);
    assert_eq!(server.handle(NOW, &bytes).status, 400);
    assert!(server.lanes(&device()).is_empty());
}

#[test]
fn records_are_stored_once_and_the_books_close() {
    let mut server = server();
    server.knobs.clock_offset_ms = -5000;
    server.knobs.retry_after_s = Some(30);
    server.knobs.preferred_size = Some(512);
    let post = Post::new(0, 3, &[record(0, b"a"), record(2, b"c")]);
    let heard = post.send(&mut server);
    let answer = heard.answer();
    assert_eq!(heard.settled(3), [true, true, false]);
    assert_eq!((answer.epoch, answer.server_time_ms), (11, NOW - 5000));
    assert_eq!((answer.retry_after_s, answer.preferred_size), (Some(30), Some(512)));
    assert_eq!(heard.reply.retry_after_s, Some(30));
    assert_eq!((answer.is_renew, answer.is_stale, answer.is_closed), (false, false, false));
    // The same bytes again.
    assert_eq!(post.send(&mut server).reply, heard.reply);
    assert_eq!(server.log().len(), 2);
    assert_eq!(server.stored(&device(), key(2)).map(|record| &record.body[..]), Some(&b"c"[..]));
    assert_eq!(server.ledger(&device(), INCARNATION, 0).map(|ledger| ledger.pending), Some(1));

    let mut last = Post { is_closing: true, ..Post::new(3, 3, &[]) };
    let heard = last.send(&mut server);
    assert_eq!(heard.answer().explain().collect::<Vec<_>>(), [(1, 1)]);
    assert!(!heard.answer().is_closed);
    assert_eq!(server.ledger(&device(), INCARNATION, 0).map(|ledger| ledger.unexplained), Some(1));
    let lost = Entry { incarnation: INCARNATION, lane: 0, reason: Reason::Lost, first: 1, len: 1 };
    last.account.push(lost);
    let heard = last.send(&mut server);
    assert_eq!((heard.answer().confirmed, heard.answer().is_closed), (1, true));
    let ledger = server.ledger(&device(), INCARNATION, 0).expect("it has books");
    assert_eq!((ledger.received, ledger.lost(), ledger.pending), (2, 1, 0));
}

#[test]
fn a_refused_record_is_not_stored_until_it_is_taken() {
    let mut server = server();
    server.knobs.refused.insert((device(), key(0)), Refusal::Retry);
    server.knobs.refused.insert((device(), key(1)), Refusal::Rejected);
    let post = Post::new(0, 3, &[record(0, b"a"), record(1, b"b"), record(2, b"c")]);
    let heard = post.send(&mut server);
    assert_eq!(heard.settled(3), [false, false, true]);
    assert_eq!(heard.verdicts(), [(0, Verdict::Retry), (1, Verdict::Rejected)]);
    server.knobs.refused.clear();
    assert_eq!(post.send(&mut server).settled(3), [true; 3]);
    assert_eq!(server.log().len(), 3);
}

#[test]
fn a_stale_boot_changes_no_books_and_loses_no_record() {
    let mut server = server();
    Post { boot: (5, 1), ..Post::new(0, 1, &[record(0, b"a")]) }.send(&mut server);
    let before = server.lane(&device(), INCARNATION, 0).cloned();
    for boot in [(4, 1), (5, 2)] {
        let stale = Post { boot, ..Post::new(0, 9, &[record(0, b"a"), record(1, b"b")]) };
        let heard = stale.send(&mut server);
        assert!(heard.answer().is_stale && heard.answer().is_renew);
        assert_eq!(heard.settled(2), [true, true]);
        assert_eq!(heard.verdicts(), [(1, Verdict::Quarantined)]);
    }
    assert_eq!(server.lane(&device(), INCARNATION, 0).cloned(), before);
    assert_eq!(server.quarantine().count(), 1);
    // The right one sends it after all: it is stored, and aside no more.
    Post { boot: (5, 1), ..Post::new(1, 2, &[record(1, b"b")]) }.send(&mut server);
    assert_eq!((server.log().len(), server.quarantine().count()), (2, 0));
    server.fence(&device(), INCARNATION);
    let heard = Post { boot: (6, 1), ..Post::new(2, 3, &[record(2, b"c")]) }.send(&mut server);
    assert!(heard.answer().is_stale && heard.answer().is_renew);
}

#[test]
fn other_content_under_a_known_key_is_a_conflict() {
    let mut server = server();
    Post::new(0, 1, &[record(0, b"a")]).send(&mut server);
    for _ in 0..2 {
        let heard = Post::new(0, 1, &[record(0, b"z")]).send(&mut server);
        assert!(heard.answer().is_renew && !heard.answer().is_stale);
        assert_eq!((heard.settled(1), heard.verdicts()), (vec![true], vec![(0, Verdict::Conflict)]));
    }
    assert_eq!((server.log().len(), server.conflicts().count()), (1, 1));
    assert_eq!(server.log()[0].body, b"a");
}

#[test]
fn a_late_record_is_stored_once_wherever_its_range_is() {
    let mut server = server();
    let parked = Entry { incarnation: INCARNATION, lane: 0, reason: Reason::Parked, first: 0, len: 3 };
    Post { account: vec![parked], ..Post::new(3, 3, &[]) }.send(&mut server);
    let late = Post { late: vec![record(1, b"b")], ..Post::new(3, 4, &[record(3, b"d")]) };
    for _ in 0..2 {
        let heard = late.send(&mut server);
        assert!(heard.answer().is_settled(0) && heard.answer().is_late_settled(0));
        assert_eq!(server.log().len(), 2);
    }
    let ledger = server.ledger(&device(), INCARNATION, 0).expect("it has books");
    assert_eq!((ledger.received, ledger.explained_as(Reason::Parked)), (2, 2));
}

#[test]
fn a_late_record_of_another_incarnation_beyond_its_window_is_set_aside() {
    let mut server = server();
    let far = Stored { key: Key { incarnation: 1, lane: 2, counter: 5000 }, ..record(0, b"x") };
    let near = Stored { key: Key { incarnation: 1, lane: 2, counter: 7 }, ..record(0, b"y") };
    let own = record(5000, b"z");
    let heard = Post { late: vec![far, near, own], ..Post::new(0, 0, &[]) }.send(&mut server);
    let settled: Vec<bool> = (0..3).map(|n| heard.answer().is_late_settled(n)).collect();
    assert_eq!(settled, [true, true, false]);
    assert_eq!(heard.verdicts(), [(0, Verdict::Quarantined)]);
    assert_eq!((server.log().len(), server.quarantine().count()), (1, 1));
}

#[test]
fn a_restored_receiver_has_another_name_and_asks_for_what_it_lost() {
    let mut server = server();
    let backup = server.snapshot();
    Post::new(0, 2, &[record(0, b"a"), record(1, b"b")]).send(&mut server);
    server.restore(&backup, 12);
    let heard = Post::new(2, 3, &[record(2, b"c")]).send(&mut server);
    assert_eq!(heard.answer().epoch, 12);
    assert_eq!(heard.answer().explain().collect::<Vec<_>>(), [(0, 2)]);
    assert_eq!(heard.settled(1), [true]);
}
