//! Opening whatever lies in the flash never panics, never loops, and ends in a working outbox or a clear error.

use core::cell::Cell;

use embassy_futures::block_on;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use host_tests::flash::{Chip, FlashError};
use host_tests::life::{Reading, VirtualClock, record_max};
use pillarbox::{Config, DeviceId, LaneConfig, OpenError, Resources, buffer_size};

const RECORD: usize = record_max(20);
const BUFFER: usize = buffer_size(1, RECORD);
const PAGES: usize = 32 + 2 + 4;
/// No opening and no use that follows needs as many reads; one that does is going round in circles.
const READS_MAX: u64 = 100_000;

type Flash = Chip<4, 4, 256>;

/// Opens the region and, if that works, uses it: it must take records, show them in order, and let them go.
fn open_and_use(chip: &Flash, what: &dyn Fn() -> String) -> Result<(), OpenError<FlashError>> {
    let before = chip.image();
    let clock = Cell::new(1);
    let mut resources = Resources::<_, 1, RECORD, BUFFER, NoopRawMutex, VirtualClock<'_>>::new();
    let device = DeviceId::new("meter-1").expect("it is a device id");
    let config = Config::new(device, [LaneConfig::new(4).evict_oldest()]);
    chip.reset_counts();
    let opened = block_on(pillarbox::new(&mut resources, chip, VirtualClock(&clock), 7, config));
    let (outbox, mut drain) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let is_clear = !matches!(error, OpenError::Storage(_) | OpenError::Config(_));
            assert!(is_clear, "{}: {error}", what());
            assert_eq!(chip.image(), before, "{}: a refusal changes nothing", what());
            return Err(error);
        }
    };
    for serial in 0..30 {
        let key = block_on(outbox.enqueue(&Reading::<20>::new(serial)));
        let key = key.unwrap_or_else(|error| panic!("{}: {error}", what()));
        let mut youngest = None;
        let shown = block_on(outbox.inspect(0, |stored| youngest = Some(stored.key)));
        assert_eq!((shown, youngest), (Ok(()), Some(key)), "{}", what());
    }
    for _ in 0..100 {
        let mut keys = Vec::new();
        let window = block_on(drain.window(0, |stored| {
            keys.push(stored.key);
            true
        }));
        assert!(window.is_ok(), "{}: {window:?}", what());
        if keys.is_empty() {
            assert!(chip.counts().reads < READS_MAX, "{}: {:?}", what(), chip.counts());
            return Ok(());
        }
        assert_eq!(block_on(drain.settle(0, &keys)), Ok(keys.len() as u32), "{}", what());
    }
    panic!("{}: the lane is never empty", what());
}

/// An image with a life behind it: wrapped rings, dead letters, several snapshots.
fn lived_in() -> Vec<u8> {
    let chip = Flash::new(PAGES, 3);
    for _ in 0..3 {
        open_and_use(&chip, &|| "a sound flash".into()).expect("a sound flash");
    }
    chip.image()
}

#[test]
fn random_bits_are_formatted() {
    for seed in 0..300 {
        let chip = Flash::new(PAGES, seed);
        chip.fill_random();
        let opened = open_and_use(&chip, &|| format!("seed {seed}"));
        assert_eq!(opened, Ok(()), "seed {seed}");
    }
}

#[test]
fn plain_patterns_are_formatted() {
    for byte in 0..=u8::MAX {
        let chip = Flash::from_image(&[byte; PAGES * 256], 1);
        assert_eq!(open_and_use(&chip, &|| format!("all {byte:#x}")), Ok(()));
    }
}

#[test]
fn flipped_bits_in_a_real_image_end_in_a_working_outbox_or_a_clear_error() {
    let image = lived_in();
    let mut refused = 0;
    for seed in 0..1_500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let chip = Flash::from_image(&image, seed);
        for _ in 0..1 << rng.u32(..10) {
            chip.flip_bit(rng.u32(..chip.size() as u32), rng.u8(..8));
        }
        refused += u32::from(open_and_use(&chip, &|| format!("seed {seed}")).is_err());
    }
    assert!(refused < 10, "a flipped bit hardly ever makes a snapshot of another kind: {refused}");
}

#[test]
fn pages_in_any_order_end_in_a_working_outbox_or_a_clear_error() {
    let image = lived_in();
    for seed in 0..1_500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut pages: Vec<&[u8]> = image.chunks(256).collect();
        match rng.u8(..3) {
            // The rings' pages only, then all, then with copies.
            0 => rng.shuffle(&mut pages[32..]),
            1 => rng.shuffle(&mut pages),
            _ => (0..8).for_each(|_| pages[rng.usize(32..PAGES)] = pages[rng.usize(32..PAGES)]),
        }
        let chip = Flash::from_image(&pages.concat(), seed);
        let _ = open_and_use(&chip, &|| format!("seed {seed}"));
    }
}

#[test]
fn marks_and_headers_overwritten_at_random_end_in_a_working_outbox() {
    let image = lived_in();
    for seed in 0..1_500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut image = image.clone();
        for _ in 0..rng.usize(1..40) {
            let page = rng.usize(32..PAGES) * 256;
            let word = match rng.u8(..3) {
                0 => 8,
                1 => 248,
                _ => rng.usize(..32) * 8,
            };
            let value = [0x00, 0xff, rng.u8(..)][rng.usize(..3)];
            image[page + word..page + word + 8].fill(value);
        }
        let chip = Flash::from_image(&image, seed);
        assert_eq!(open_and_use(&chip, &|| format!("seed {seed}")), Ok(()), "seed {seed}");
    }
}
