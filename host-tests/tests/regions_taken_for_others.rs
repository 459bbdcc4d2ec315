//! Regions that hold someone's records and must be refused, not formatted or opened at an older state.

use crc::{Algorithm, Crc};
use embassy_futures::block_on;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use host_tests::flash::Chip;
use pillarbox::{Clock, Config, DeviceId, LaneConfig, OpenError, Resources, buffer_size, scan::Image};

type Flash = Chip<4, 4, 256>;

#[derive(Clone, Copy)]
struct Stopped;

impl Clock for Stopped {
    fn uptime_ms(&self) -> u64 {
        0
    }
}

fn config<const LANES: usize>() -> Config<LANES> {
    Config::new(DeviceId::new("meter-1").unwrap(), [LaneConfig::new(2); LANES])
}

/// Opens the region; gives the error, if there is one.
fn open<const LANES: usize, const BUFFER: usize>(
    chip: &Flash,
) -> Option<OpenError<host_tests::flash::FlashError>> {
    let mut memory = Resources::<_, LANES, 40, BUFFER, NoopRawMutex, Stopped>::new();
    block_on(pillarbox::new(&mut memory, chip, Stopped, 7, config::<LANES>())).err()
}

/// A snapshot of a region with six lanes, all of whose tags are taken by records with large counters. SPEC.md has the
/// fields.
fn large_snapshot() -> Vec<u8> {
    let spans: Vec<(u16, u16)> = (0..6).map(|lane| (34 + 2 * lane, 2)).collect();
    let layout = ("meter-1", 96u16, (32u16, 2u16), spans);
    let next = 1u64 << 40;
    let tags: Vec<(u32, u64, u16)> = (0..16).map(|tag| (u32::MAX - tag, next - 1, 0)).collect();
    let count: Option<(u32, u32)> = None;
    let attempts: Vec<u8> = Vec::new();
    let lanes = vec![(next, next, count, tags, attempts); 6];
    let intent: Option<u8> = None;
    let empty: [Vec<u8>; 3] = Default::default();
    let (head, ledger) = ((0x81u8, 1u32, layout), (0x1234_5678u32, 1u32, intent, lanes));
    let mut bytes = postcard::to_stdvec(&(head, ledger, empty)).unwrap();
    bytes.resize(bytes.len().next_multiple_of(8), 0xff);
    bytes
}

#[test]
fn a_snapshot_larger_than_the_buffer_is_not_taken_for_none() {
    let chip = Flash::new(32 + 2 + 12, 1);
    let mut image = chip.image();
    let snapshot = large_snapshot();
    image[..8].copy_from_slice(&[0x50, 0x62, 0x6f, 0x78, 0x1a, 0x45, 0x66, 0xf7]);
    image[8..16].copy_from_slice(&header(&snapshot));
    image[16..16 + snapshot.len()].copy_from_slice(&snapshot);
    let found = Image::new(&image).metadata(0, &mut [0; 4096]).unwrap();
    assert_eq!(found.lanes.len(), 6);

    chip.set_image(&image);
    assert_eq!(open::<6, { buffer_size(6, 40) }>(&chip), None, "with its own layout it opens");

    chip.set_image(&image);
    let refused = open::<1, { buffer_size(1, 40) }>(&chip);
    assert!(matches!(refused, Some(OpenError::OtherLayout(_))), "opening with fewer lanes gave {refused:?}");
    assert_eq!(chip.image(), image);
}

/// A firmware with format 2 has written to the region, and then the device goes back to this one: the newest snapshot of
/// format 1 is older than the truth, so its ceilings would hand out keys again.
#[test]
fn a_newer_snapshot_of_another_format_is_not_passed_over() {
    let chip = Flash::new(32 + 2 + 2, 1);
    assert_eq!(open::<1, { buffer_size(1, 40) }>(&chip), None);
    let mut image = chip.image();
    let len = usize::from(u16::from_le_bytes([image[12], image[13]]));
    let mut snapshot = image[16..16 + len].to_vec();
    snapshot[0] = 0x82;
    image[4096..4104].copy_from_slice(&[0x50, 0x62, 0x6f, 0x78, 0x2a, 0x45, 0x66, 0xf7]);
    image[4104..4112].copy_from_slice(&header(&snapshot));
    image[4112..4112 + len].copy_from_slice(&snapshot);
    chip.set_image(&image);
    assert_eq!(open::<1, { buffer_size(1, 40) }>(&chip), Some(OpenError::OtherFormat(2)));
    assert_eq!(chip.image(), image);
}

/// The pages of a ring lie where the metadata should be, because the region was moved by a few pages. A stored record begins
/// with its version, 1, as a snapshot begins with its format, 1: it is whole, so it is taken for a snapshot, and nothing opens.
#[test]
fn a_record_is_not_taken_for_a_snapshot() {
    let chip = Flash::new(32 + 2 + 2, 1);
    let mut image = chip.image();
    let mut record = vec![0x01, 0, 1, 2, 3, 4, 0, 7, 1, 0, 1, 0xaa];
    record.resize(16, 0xff);
    image[..8].copy_from_slice(&[0x50, 0x62, 0x6f, 0x78, 0x1a, 0x45, 0x66, 0xf7]);
    image[8..16].fill(0);
    image[16..24].copy_from_slice(&header(&record));
    image[24..40].copy_from_slice(&record);
    chip.set_image(&image);
    assert_eq!(open::<1, { buffer_size(1, 40) }>(&chip), None);
}

/// The item header of SPEC.md.
fn header(data: &[u8]) -> [u8; 8] {
    const DATA: Crc<u32> = Crc::<u32>::new(&Algorithm {
        width: 32,
        poly: 0x1edc_6f41,
        init: 0x7777_7777,
        refin: true,
        refout: true,
        xorout: 0xffff_ffff,
        check: 0,
        residue: 0,
    });
    const LENGTH: Crc<u16> = Crc::<u16>::new(&Algorithm {
        width: 16,
        poly: 0x7458,
        init: 0xffff,
        refin: true,
        refout: true,
        xorout: 0xffff,
        check: 0,
        residue: 0,
    });
    let crc = match DATA.checksum(data) {
        0 => 1,
        crc if matches!(crc & 0xff, 0 | 0xff) => crc ^ 1,
        crc => crc,
    };
    let len = (data.len() as u16).to_le_bytes();
    let len_crc = match LENGTH.checksum(&len) {
        0xffff => 0xfffe,
        crc => crc,
    };
    let mut header = [0; 8];
    header[..4].copy_from_slice(&crc.to_le_bytes());
    header[4..6].copy_from_slice(&len);
    header[6..].copy_from_slice(&len_crc.to_le_bytes());
    header
}
