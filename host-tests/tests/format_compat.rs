//! The bytes in flash outlive the firmware that wrote them: what SPEC.md says, what the golden images hold and what
//! the library writes and reads today are the same.
//!
//! A change of the format is a decision. When it was made: `BLESS=1 cargo test -p host-tests --test format_compat`
//! writes the golden images and what is read from them anew; SPEC.md says which version number has to move with it.

use std::fmt::Write as _;
use std::path::PathBuf;

use crc::{Algorithm, Crc};
use embassy_futures::block_on;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embedded_storage_async::nor_flash::{ErrorType, ReadNorFlash};
use host_tests::flash::Chip;
use pillarbox::scan::{self, Image, ScanError, State};
use pillarbox::{
    Cause, Clock, Config, DeviceId, EncodedSize, Geometry, Key, Kind, LaneConfig, OpenError, Reason, Record,
    Resources, Stored, Timestamp, buffer_size,
};
use sequential_storage::cache::Cache;
use sequential_storage::queue::{QueueConfig, QueueStorage};
use serde::Serialize;

const LANES: usize = 2;
const RECORD: usize = 40;
const BUFFER: usize = buffer_size(LANES, RECORD);

type Memory<'r, F> = Resources<'r, F, LANES, RECORD, BUFFER, NoopRawMutex, Stopped>;

/// A clock that shows the time of the boot in question, so that images are the same every time.
#[derive(Clone, Copy)]
struct Stopped(u64);

impl Clock for Stopped {
    fn uptime_ms(&self) -> u64 {
        self.0
    }
}

#[derive(Serialize, EncodedSize, Record)]
#[record(kind = 7)]
struct Reading {
    meter: heapless::String<12>,
    watt_hours: u64,
}

fn reading(number: u64) -> Reading {
    let meters = ["m", "meter", "meter-000042"];
    Reading {
        meter: heapless::String::try_from(meters[number as usize % 3]).unwrap(),
        watt_hours: number * number * 1000,
    }
}

/// The region begins at the second page: nothing in it may depend on where it lies.
fn config<const R: usize, const W: usize, const E: usize>() -> Config<LANES> {
    let device = DeviceId::new("meter-0042").unwrap();
    let lanes = [LaneConfig::new(4).max_attempts(2), LaneConfig::new(2).evict_oldest()];
    Config::new(device, lanes).at(E as u32)
}

fn blank<const R: usize, const W: usize, const E: usize>() -> Chip<R, W, E> {
    let region = config::<R, W, E>().region_size(Geometry::of::<&Chip<R, W, E>>()) as usize;
    Chip::new(1 + region / E, 1)
}

/// Two boots in which everything happens that leaves a trace in flash; the second ends without a clean stop.
async fn live<const R: usize, const W: usize, const E: usize>(chip: &Chip<R, W, E>, bulk: u64) {
    {
        let mut memory = Memory::new();
        let config = config::<R, W, E>();
        let (outbox, mut drain) = pillarbox::new(&mut memory, chip, Stopped(1_000), 7, config).await.unwrap();
        let mut keys = Vec::new();
        for number in 0..4 {
            keys.push(outbox.enqueue(&reading(number)).await.unwrap());
        }
        drain.learn_time(1_800_000_000_000).await;
        outbox.enqueue_once(5, &reading(4)).await.unwrap();
        outbox.enqueue_once(0xdead_beef, &reading(5)).await.unwrap();
        outbox.enqueue_once(5, &reading(6)).await.unwrap();
        drain.settle(0, &[keys[0], keys[2]]).await.unwrap();
        for _ in 0..2 {
            drain.reject(0, &[keys[1]]).await.unwrap();
        }
        drain.reject(0, &[keys[3]]).await.unwrap();
        outbox.suspend().await.unwrap();
    }
    let mut memory = Memory::new();
    let config = config::<R, W, E>();
    let (outbox, mut drain) = pillarbox::new(&mut memory, chip, Stopped(2_000_000), 8, config).await.unwrap();
    drain.renew_incarnation().await.unwrap();
    for number in 0..bulk {
        outbox.enqueue_in(1, &reading(number)).await.unwrap();
    }
    outbox.enqueue(&reading(99)).await.unwrap();
    let mut dead = Vec::new();
    let list = outbox.dead_letters();
    list.list(|letter| dead.push(letter.key)).await.unwrap();
    assert!(list.retry(dead[0]).await.unwrap());
}

/// What a host sees in an image, line by line.
fn scanned(image: &[u8], origin: u32) -> String {
    let mut text = String::new();
    let mut buffer = vec![0; scan::BUFFER];
    let mut image = Image::new(image);
    let found = image.metadata(origin, &mut buffer).unwrap();
    let (page, word) = (found.geometry.page(), found.geometry.word());
    writeln!(text, "Geometry {{ page: {page}, word: {word} }}").unwrap();
    writeln!(text, "{:?}", found.layout).unwrap();
    writeln!(
        text,
        "snapshot {}: incarnation {:08x}, boot {}, unfinished {}",
        found.sequence,
        found.incarnation,
        found.boot,
        found.unfinished.is_some()
    )
    .unwrap();
    for lane in &found.lanes {
        writeln!(text, "{:?}", lane.counters).unwrap();
    }
    for entry in &found.account {
        writeln!(text, "{entry:?}").unwrap();
    }
    for key in &found.late {
        writeln!(text, "late {}", key.of(&found.layout.device)).unwrap();
    }
    let show = |item: scan::Item<'_>| {
        let scan::Item { ring, page, offset, state, record, .. } = item;
        writeln!(text, "{ring:?}, page {page}, offset {offset}: {state:?} {record:?}").unwrap();
    };
    image.items(origin, found.geometry, &found.layout, &mut buffer, show).unwrap();
    text
}

/// What the next boot of the device sees.
async fn opened<const R: usize, const W: usize, const E: usize>(chip: &Chip<R, W, E>) -> String {
    let mut text = String::new();
    let mut memory = Memory::new();
    let config = config::<R, W, E>();
    let (outbox, mut drain) = pillarbox::new(&mut memory, chip, Stopped(3), 9, config).await.unwrap();
    let (incarnation, boot, _) = drain.identity().await;
    writeln!(text, "opened: incarnation {incarnation:08x}, boot {boot}").unwrap();
    for lane in 0..LANES as u8 {
        let window = drain.window(lane, |_| true).await.unwrap();
        writeln!(text, "{window:?}").unwrap();
        outbox.inspect(lane, |record| writeln!(text, "{record:?}").unwrap()).await.unwrap();
    }
    let letters = outbox.dead_letters();
    letters.list(|letter| writeln!(text, "dead {letter:?}").unwrap()).await.unwrap();
    drain.late(|letter| writeln!(text, "late {:?}", letter.key).is_ok()).await.unwrap();
    for entry in drain.account().await {
        writeln!(text, "{entry:?}").unwrap();
    }
    text
}

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

fn blessing() -> bool {
    std::env::var_os("BLESS").is_some()
}

/// The lines of an image that are not blank: 32 bytes each, behind their address.
fn to_lines(image: &[u8]) -> String {
    let mut text = format!("{}\n", image.len());
    for (number, line) in image.chunks(32).enumerate() {
        if line.iter().any(|&byte| byte != 0xff) {
            let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{:06x} {hex}", number * 32).unwrap();
        }
    }
    text
}

fn from_lines(text: &str) -> Vec<u8> {
    let mut lines = text.lines();
    let mut image = vec![0xff; lines.next().unwrap().parse().unwrap()];
    for line in lines {
        let (address, hex) = line.split_once(' ').unwrap();
        let address = usize::from_str_radix(address, 16).unwrap();
        for at in 0..hex.len() / 2 {
            image[address + at] = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        }
    }
    image
}

fn golden_image(name: &str) -> Vec<u8> {
    from_lines(&std::fs::read_to_string(golden(&format!("{name}.image"))).unwrap())
}

fn check<const R: usize, const W: usize, const E: usize>(name: &str, bulk: u64) {
    let chip = blank::<R, W, E>();
    block_on(live(&chip, bulk));
    let written = chip.image();
    if blessing() {
        std::fs::write(golden(&format!("{name}.image")), to_lines(&written)).unwrap();
    }
    let image = golden_image(name);
    assert!(
        to_lines(&written) == to_lines(&image),
        "{name}: the library writes other bytes than it did. See the top of this file."
    );
    check_reading::<R, W, E>(name);
    // The same life, written by the first version, whose rings were sequential-storage's queue.
    check_reading::<R, W, E>(&format!("queue-{name}"));
}

fn check_reading<const R: usize, const W: usize, const E: usize>(name: &str) {
    let origin = E as u32;
    let image = golden_image(name);
    let mut seen = scanned(&image, origin);
    let chip = Chip::<R, W, E>::from_image(&image, 1);
    let mut driver = ReadOnly(&chip);
    let mut buffer = vec![0; scan::BUFFER];
    let found = block_on(scan::metadata(&mut driver, origin, &mut buffer)).unwrap();
    assert_eq!(
        Ok(found),
        Image::new(&image).metadata(origin, &mut buffer),
        "a driver and a dump of it tell the same"
    );
    assert_eq!(chip.mutating_ops(), 0);

    seen += &block_on(opened(&chip));
    let expected = golden(&format!("{name}.seen"));
    if blessing() && !name.starts_with("queue") {
        std::fs::write(&expected, &seen).unwrap();
    }
    assert_eq!(
        seen,
        std::fs::read_to_string(expected).unwrap(),
        "{name}: other things are read from the same image than before"
    );
}

/// A flash that cannot be written: the scan builds without.
struct ReadOnly<F>(F);

impl<F: ErrorType> ErrorType for ReadOnly<F> {
    type Error = F::Error;
}

impl<F: ReadNorFlash> ReadNorFlash for ReadOnly<F> {
    const READ_SIZE: usize = F::READ_SIZE;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), F::Error> {
        self.0.read(offset, bytes).await
    }

    fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

#[test]
fn small_pages() {
    check::<4, 4, 256>("word-8-page-256", 16);
}

#[test]
fn byte_flash() {
    check::<1, 1, 4096>("word-8-page-4096", 3);
}

#[test]
fn wide_words() {
    check::<32, 32, 2048>("word-32-page-2048", 3);
}

/// The scan says who is pending exactly as the device does.
#[test]
fn the_scan_and_the_device_agree_on_what_is_pending() {
    let image = golden_image("word-8-page-256");
    let mut buffer = vec![0; scan::BUFFER];
    let mut flash = Image::new(&image);
    let found = flash.metadata(256, &mut buffer).unwrap();
    let mut pending = Vec::new();
    flash
        .items(256, found.geometry, &found.layout, &mut buffer, |item| {
            let waits = item.state == State::Pending && item.ring != scan::Ring::DeadLetters;
            pending.extend(item.record.filter(|_| waits).map(|record| record.key));
        })
        .unwrap();
    let chip = Chip::<4, 4, 256>::from_image(&image, 1);
    let mut memory = Memory::new();
    let mut inspected = Vec::new();
    block_on(async {
        let (outbox, _dispatcher) =
            pillarbox::new(&mut memory, &chip, Stopped(3), 9, config::<4, 4, 256>()).await.unwrap();
        for lane in 0..LANES as u8 {
            outbox.inspect(lane, |record| inspected.push(record.key)).await.unwrap();
        }
    });
    assert!(pending.len() > 5, "{pending:?}");
    assert_eq!(pending, inspected);
}

#[test]
fn the_rings_can_be_read_without_the_metadata() {
    let mut image = golden_image("word-32-page-2048");
    let mut buffer = vec![0; scan::BUFFER];
    let found = Image::new(&image).metadata(2048, &mut buffer).unwrap();
    let mut whole = Vec::new();
    let mut show = |item: scan::Item<'_>| whole.push(format!("{item:?}"));
    Image::new(&image).items(2048, found.geometry, &found.layout, &mut buffer, &mut show).unwrap();

    image[2048..2048 + 32].fill(0);
    let other_half = Image::new(&image).metadata(2048, &mut buffer);
    assert_eq!(other_half.as_ref(), Ok(&found), "the other half's magic tells too");

    image[2048 + 32..2048 + 2 * 4096].fill(0x5a);
    let mut flash = Image::new(&image);
    assert_eq!(flash.metadata(2048, &mut buffer), Err(ScanError::NoMetadata));
    let geometry = flash.geometry(2048).unwrap();
    assert_eq!(geometry, found.geometry, "every page of a ring has the magic");
    let mut rest = Vec::new();
    let mut show = |item: scan::Item<'_>| rest.push(format!("{item:?}"));
    flash.items(2048, geometry, &found.layout, &mut buffer, &mut show).unwrap();
    assert_eq!(rest, whole);

    let cut = &image[..image.len() - 1];
    assert_eq!(
        Image::new(cut).items(2048, geometry, &found.layout, &mut buffer, |_| ()),
        Err(ScanError::CutOff)
    );
    assert_eq!(Image::new(&[0xff; 9000]).metadata(0, &mut buffer), Err(ScanError::NoRegion));
    let small = &mut buffer[..4095];
    assert_eq!(flash.items(2048, geometry, &found.layout, small, |_| ()), Err(ScanError::SmallBuffer));
}

/// Every whole snapshot in the metadata of a region with 8-byte words: where its data are, and how many.
fn snapshots(image: &[u8], origin: usize) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for half in [origin, origin + 4096] {
        let mut at = half + 8;
        while at + 8 <= half + 4096 && image[at..at + 8] != [0xff; 8] {
            let len = u16::from_le_bytes([image[at + 4], image[at + 5]]);
            let data = &image[at + 8..at + 8 + usize::from(len)];
            assert_eq!(image[at..at + 8], header(data), "snapshots stand back to back");
            found.push((at + 8, usize::from(len)));
            at += 8 + usize::from(len).next_multiple_of(8);
        }
    }
    found
}

#[test]
fn another_format_is_refused_and_left_alone() {
    let mut image = golden_image("word-8-page-256");
    let found = snapshots(&image, 256);
    assert!(found.len() > 3, "{found:?}");
    for (at, len) in found {
        assert_eq!(image[at], 0x81, "a snapshot begins with the format");
        image[at] = 0x82;
        let header = header(&image[at..at + len]);
        image[at - 8..at].copy_from_slice(&header);
    }
    let chip = Chip::<4, 4, 256>::from_image(&image, 1);
    let mut memory = Memory::new();
    let refused = block_on(pillarbox::new(&mut memory, &chip, Stopped(3), 9, config::<4, 4, 256>()));
    assert_eq!(refused.err(), Some(OpenError::OtherFormat(2)));
    assert_eq!(chip.image(), image);
    assert_eq!(Image::new(&image).metadata(256, &mut [0; 4096]), Err(ScanError::OtherFormat(2)));
}

/// The example of SPEC.md, "The stored record", byte for byte.
#[test]
fn the_stored_record_is_what_the_specification_says() {
    let bytes = [
        0x71, // version 1, with wall clock, tag and cause
        0x02, // lane
        0x77, 0x1a, 0x3c, 0x9f, // incarnation
        0x9c, 0x8e, 0x01, // counter 18204
        0x07, // kind
        0x03, // boot
        0xe8, 0x07, // uptime 1000 ms
        0x80, 0xa0, 0xf1, 0xc2, 0xb1, 0x34, // wall clock 1_800_000_000_000 ms
        0x05, // tag
        0x01, // cause: expired
        0x02, // length of the body
        0xaa, 0xbb, // body
        0xff, 0xff, 0xff, // padding to the word
    ];
    let stored = Stored {
        key: Key { incarnation: 0x9f3c_1a77, lane: 2, counter: 18204 },
        kind: Kind(7),
        time: Timestamp { boot: 3, uptime_ms: 1000, wall_ms: Some(1_800_000_000_000) },
        tag: Some(5),
        cause: Some(Cause::Expired),
        body: &[0xaa, 0xbb],
    };
    assert_eq!(Stored::decode(&bytes), Some(stored));
    let plain = [0x01, 0x02, 0x77, 0x1a, 0x3c, 0x9f, 0x9c, 0x8e, 0x01, 0x07, 0x03, 0xe8, 0x07, 0x00];
    let bare = Stored {
        time: Timestamp { wall_ms: None, ..stored.time },
        tag: None,
        cause: None,
        body: &[],
        ..stored
    };
    assert_eq!(Stored::decode(&plain), Some(bare));

    for len in 0..bytes.len() - 3 {
        assert_eq!(Stored::decode(&bytes[..len]), None, "cut to {len} bytes");
    }
    for first in [0x00, 0x02, 0x81, 0xff] {
        let mut other = bytes;
        other[0] = first;
        assert_eq!(Stored::decode(&other), None, "first byte {first:02x}");
    }
}

#[test]
fn reasons_and_causes_keep_their_numbers() {
    let reasons = [
        Reason::Superseded,
        Reason::Uncertain,
        Reason::Parked,
        Reason::Aborted,
        Reason::Cleared,
        Reason::Rejected,
        Reason::Expired,
        Reason::Evicted,
        Reason::Corrupt,
        Reason::Lost,
    ];
    assert_eq!(reasons.len(), Reason::COUNT);
    for (number, reason) in (0..).zip(reasons) {
        assert_eq!(postcard::to_stdvec(&reason), Ok(vec![number]));
    }
    for (number, cause) in (0..).zip([Cause::Rejected, Cause::Expired, Cause::Blocking]) {
        assert_eq!(postcard::to_stdvec(&cause), Ok(vec![number]));
    }
}

/// The item header as SPEC.md describes it, computed from the description alone.
fn header(data: &[u8]) -> [u8; 8] {
    let reflected = |poly, init| Algorithm::<u32> {
        width: 32,
        poly,
        init,
        refin: true,
        refout: true,
        xorout: 0xffff_ffff,
        check: 0,
        residue: 0,
    };
    let algorithm = Box::leak(Box::new(reflected(0x1edc_6f41, 0x7777_7777)));
    let crc = match Crc::<u32>::new(algorithm).checksum(data) {
        0 => 1,
        crc if matches!(crc & 0xff, 0 | 0xff) => crc ^ 1,
        crc => crc,
    };
    let algorithm = Box::leak(Box::new(Algorithm::<u16> {
        width: 16,
        poly: 0x7458,
        init: 0xffff,
        refin: true,
        refout: true,
        xorout: 0xffff,
        check: 0,
        residue: 0,
    }));
    let len = (data.len() as u16).to_le_bytes();
    let len_crc = match Crc::<u16>::new(algorithm).checksum(&len) {
        0xffff => 0xfffe,
        crc => crc,
    };
    let mut header = [0; 8];
    header[..4].copy_from_slice(&crc.to_le_bytes());
    header[4..6].copy_from_slice(&len);
    header[6..].copy_from_slice(&len_crc.to_le_bytes());
    header
}

/// The boot check and the scan know the items of sequential-storage. When this fails, it has changed them, and
/// `src/item.rs` has to follow.
#[test]
fn sequential_storage_s_items_are_the_ones_we_know() {
    const PAGE: usize = 1024;
    fn check<const WORD: usize>() {
        let chip = Chip::<WORD, WORD, PAGE>::new(2, 1);
        let config = const { QueueConfig::new(0..2 * PAGE as u32) };
        let mut queue = QueueStorage::new(&chip, config, Cache::new_uncached());
        let mut expected = vec![0xff; 2 * PAGE];
        expected[..WORD].fill(0);
        let mut at = WORD;
        for len in [0, 1, 7, 8, 32, 37] {
            let data: Vec<u8> = (1..=len).map(|byte: u8| byte ^ 0x55).collect();
            block_on(queue.push(&data, false)).unwrap();
            expected[at..at + 8].copy_from_slice(&header(&data));
            at += WORD;
            expected[at..at + data.len()].copy_from_slice(&data);
            let padded = data.len().next_multiple_of(WORD);
            expected[at + data.len()..at + padded].fill(0);
            at += padded;
        }
        assert_eq!(to_lines(&chip.image()), to_lines(&expected), "word {WORD}");
        // Popping clears the checksum and nothing else.
        block_on(queue.pop(&mut [0; 64])).unwrap();
        expected[WORD..WORD + 4].fill(0);
        assert_eq!(to_lines(&chip.image()), to_lines(&expected), "word {WORD}, popped");
        // A full page's last word is zeroed, and the next page's first.
        while chip.image()[PAGE] == 0xff {
            block_on(queue.push(&[9; 24], false)).unwrap();
        }
        assert_eq!(chip.image()[PAGE - WORD..PAGE + WORD], [0; 64][..2 * WORD]);
    }
    check::<8>();
    check::<16>();
    check::<32>();
}

#[test]
fn the_magic_tells_format_page_and_word() {
    let cases = [
        ("word-8-page-256", 256, Geometry::of::<&Chip<4, 4, 256>>()),
        ("word-8-page-4096", 4096, Geometry::of::<&Chip<1, 1, 4096>>()),
        ("word-32-page-2048", 2048, Geometry::of::<&Chip<32, 32, 2048>>()),
    ];
    for (name, origin, geometry) in cases {
        let image = golden_image(name);
        let magic = &image[origin..origin + 8];
        assert_eq!(magic[..5], *b"Pbox\x1a", "{name}");
        assert_eq!(1 << (magic[5] >> 3), geometry.page(), "{name}");
        assert_eq!(magic[5] & 7, 5, "{name}");
        for word in image[origin..origin + geometry.word() as usize].chunks(8) {
            assert_eq!(word, magic, "{name}");
        }
        assert_eq!(Image::new(&image).geometry(origin as u32), Ok(geometry));
    }
}
