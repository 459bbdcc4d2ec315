//! Claim: a region is opened only by its owner and with a layout that loses nothing; anything else is an error that
//! changes no byte, until somebody wipes the region on purpose. A bug here is a firmware update that eats the backlog
//! of a fleet.

use embassy_futures::block_on;
use embassy_sync::{blocking_mutex::raw::NoopRawMutex, mutex::Mutex};
use embedded_storage_async::nor_flash::{ErrorType, MultiwriteNorFlash, NorFlash, ReadNorFlash};
use host_tests::device::{
    Device, Flash, METADATA, Meter, Note, PAGE, RECORD, Uptime, boot, chip, config, for_every_cut, numbers,
};
use host_tests::flash::{Chip, FlashError};
use pillarbox::{
    Config, DeviceId, EnqueueError, Geometry, LaneConfig, LayoutError, OpenError, Resources, buffer_size,
    wipe,
};

/// Two lanes, the first with room to grow.
fn two_lanes() -> Config<2> {
    config([LaneConfig::new(4).room(4), LaneConfig::new(3)])
}

fn post_in_second_lane(meter: &Meter<'_, 2>, numbers: std::ops::Range<u32>) {
    for number in numbers {
        meter.try_post_in(1, number).unwrap();
    }
}

/// A region of two lanes with something in each.
fn in_use() -> Flash {
    let chip = chip();
    let meter: Meter<2> = boot(&chip, &two_lanes());
    meter.post_all(0..15);
    post_in_second_lane(&meter, 100..105);
    drop(meter);
    chip
}

/// Everything pending, lane by lane.
fn backlog<const LANES: usize>(meter: &Meter<'_, LANES>) -> Vec<Vec<u32>> {
    (0..LANES as u8).map(|lane| numbers(&meter.pending(lane))).collect()
}

fn erase_everything<const LANES: usize>(
    chip: &Flash,
    config: &Config<LANES>,
) -> Result<(), OpenError<FlashError>> {
    block_on(wipe(&mut &*chip, config, &mut [0; 4096]))
}

/// Why a configuration is refused; asserts that not a byte has changed.
fn refusal<const LANES: usize, const RECORD: usize>(
    chip: &Flash,
    config: &Config<LANES>,
) -> OpenError<FlashError> {
    let before = chip.image();
    let Err(error) = Device::<_, LANES, RECORD>::open(chip, config) else {
        panic!("{config:?} was opened");
    };
    assert!(chip.image() == before, "{error:?} changed the flash");
    error
}

fn assert_other_layout(error: OpenError<FlashError>) {
    assert!(matches!(error, OpenError::OtherLayout(_)), "{error:?}");
}

#[test]
fn another_owner_is_refused_and_told_whose_it_is() {
    let chip = in_use();
    let mut stranger = two_lanes();
    stranger.device = DeviceId::new("meter-2").unwrap();
    let error = refusal::<2, RECORD>(&chip, &stranger);
    assert_eq!(error, OpenError::OtherOwner(two_lanes().device));
}

#[test]
fn a_layout_that_would_lose_something_is_refused() {
    let chip = in_use();
    let refused = [
        ("a smaller lane", [LaneConfig::new(3).room(5), LaneConfig::new(3)]),
        ("a smaller last lane", [LaneConfig::new(4).room(4), LaneConfig::new(2)]),
        ("a lane that moved up", [LaneConfig::new(4).room(3), LaneConfig::new(3)]),
        ("a lane that moved down", [LaneConfig::new(4).room(5), LaneConfig::new(3)]),
        ("lanes that changed places", [LaneConfig::new(3), LaneConfig::new(4).room(4)]),
    ];
    for (what, lanes) in refused {
        println!("{what}");
        assert_other_layout(refusal::<2, RECORD>(&chip, &config(lanes)));
    }
    println!("fewer lanes");
    assert_other_layout(refusal::<1, RECORD>(&chip, &config([LaneConfig::new(4).room(4)])));
    println!("more dead letters, which move the lanes");
    assert_other_layout(refusal::<2, RECORD>(&chip, &two_lanes().dead_letter_pages(3)));
    assert_eq!(backlog(&boot(&chip, &two_lanes())), [(0..15).collect::<Vec<_>>(), (100..105).collect()]);
}

#[test]
fn smaller_records_than_may_be_in_it_are_refused_and_larger_ones_welcome() {
    let chip = in_use();
    assert_other_layout(refusal::<2, 28>(&chip, &two_lanes()));
    let larger = Device::<_, 2, 64>::open(&chip, &two_lanes()).unwrap();
    assert_eq!(numbers(&larger.pending(0)), (0..15).collect::<Vec<_>>());
}

#[test]
fn the_layout_that_is_found_is_told() {
    let chip = in_use();
    let OpenError::OtherLayout(found) = refusal::<1, RECORD>(&chip, &config([LaneConfig::new(2)])) else {
        panic!("another error");
    };
    let pages: Vec<u16> = found.lanes.iter().map(|lane| lane.pages).collect();
    assert_eq!((found.device, pages), (two_lanes().device, vec![4, 3]));
}

#[test]
fn a_wiped_region_is_anybody_s() {
    let chip = in_use();
    let mut stranger = config([LaneConfig::new(2)]);
    stranger.device = DeviceId::new("meter-2").unwrap();
    erase_everything(&chip, &stranger).unwrap();
    let meter = boot(&chip, &stranger);
    assert_eq!(backlog(&meter), [[0; 0]]);
    assert_eq!(meter.stats().boot, 1);
    meter.post(1);
    drop(meter);
    // What the stranger has no use for is gone all the same.
    assert!(!chip.image().windows(20).any(|bytes| bytes == Note::new(104).payload.as_slice()));
}

#[test]
fn a_wipe_may_be_cut_anywhere_if_it_is_done_again() {
    let mut stranger = two_lanes();
    stranger.device = DeviceId::new("meter-2").unwrap();
    for_every_cut(
        &in_use(),
        |chip| drop(erase_everything(chip, &stranger)),
        |chip| {
            erase_everything(chip, &stranger).unwrap();
            let meter = boot(chip, &stranger);
            assert_eq!(backlog(&meter), [[0; 0], [0; 0]]);
            meter.post(1);
            drop(meter);
            assert_eq!(backlog(&boot(chip, &stranger)), [vec![1], vec![]]);
        },
    );
}

/// A region whose first ring has gone round and is full, so that its oldest page lies in the middle.
fn wrapped(pages_delivered: usize) -> Flash {
    let chip = chip();
    let mut meter: Meter<2> = boot(&chip, &two_lanes());
    let full = meter.fill(0).len();
    meter.deliver(full / 4 * pages_delivered + 1);
    meter.fill(full as u32);
    post_in_second_lane(&meter, 500..505);
    drop(meter);
    chip
}

/// The grown region holds what the old one did, and takes more than the old one could.
fn assert_grown<const LANES: usize>(chip: &Flash, grown: &Config<LANES>, expected: &[Vec<u32>]) {
    let mut meter = boot(chip, grown);
    assert_eq!(backlog(&meter)[..2], *expected);
    let mut all = expected[0].clone();
    // For several rounds, because what the new pages did to the order may show later.
    for _ in 0..4 {
        all.extend(meter.fill(all.last().unwrap() + 1));
        assert_eq!(numbers(&meter.dead_letters()), [], "parked, although nothing was stuck");
        assert_eq!(numbers(&meter.pending(0)), all);
        let delivered = meter.deliver(all.len() / 2);
        assert_eq!(delivered, all.drain(..delivered.len()).collect::<Vec<_>>());
    }
    let once_full = all.len() + meter.fill(all.last().unwrap() + 1).len();
    assert!(
        once_full >= expected[0].len() * 3 / 2,
        "{once_full} notes fit, before it grew {}",
        expected[0].len()
    );
}

fn grown() -> Config<2> {
    config([LaneConfig::new(8), LaneConfig::new(3)])
}

#[test]
fn a_lane_grows_into_its_room_and_keeps_everything_wherever_its_oldest_page_is() {
    for pages_delivered in 0..4 {
        println!("{pages_delivered} pages delivered");
        let chip = wrapped(pages_delivered);
        let expected = backlog(&boot(&chip, &two_lanes()));
        assert!(expected[0].len() > 20, "the ring is not full");
        assert_grown(&chip, &grown(), &expected);
    }
}

#[test]
fn growing_is_not_taken_for_corruption() {
    for pages_delivered in 0..4 {
        let chip = wrapped(pages_delivered);
        assert_eq!(boot(&chip, &two_lanes()).stats().corrupt, 0);
        assert_eq!(boot(&chip, &grown()).stats().corrupt, 0, "{pages_delivered} pages delivered");
    }
}

#[test]
fn lanes_can_be_added() {
    let chip = wrapped(2);
    let expected = backlog(&boot(&chip, &two_lanes()));
    let more = config([LaneConfig::new(8), LaneConfig::new(4), LaneConfig::new(2), LaneConfig::new(2)]);
    let meter = boot(&chip, &more);
    for lane in [2, 3] {
        assert_eq!(meter.pending(lane), []);
        assert_eq!(meter.try_post_in(lane, 900).unwrap().counter, 0);
    }
    drop(meter);
    assert_grown(&chip, &more, &expected);
    assert_eq!(numbers(&boot(&chip, &more).pending(3)), [900]);
}

#[test]
fn growing_may_be_cut_at_every_operation() {
    for pages_delivered in [0, 2] {
        let before = wrapped(pages_delivered);
        let expected = backlog(&boot(&before, &two_lanes()));
        for_every_cut(
            &before,
            |chip| drop(Meter::open(chip, &grown())),
            |chip| assert_grown(chip, &grown(), &expected),
        );
    }
}

fn layout_error<const LANES: usize>(chip: &Flash, config: &Config<LANES>) -> LayoutError {
    match refusal::<LANES, RECORD>(chip, config) {
        OpenError::Config(error) => error,
        error => panic!("{error:?}"),
    }
}

#[test]
fn every_mistake_in_a_configuration_has_its_error() {
    let chip = chip();
    let lane = LaneConfig::new(2);
    assert_eq!(layout_error(&chip, &config([])), LayoutError::Lanes);
    assert_eq!(layout_error(&chip, &config([lane]).at(100)), LayoutError::Origin);
    assert_eq!(layout_error(&chip, &config([LaneConfig::new(1)])), LayoutError::Pages);
    assert_eq!(layout_error(&chip, &config([LaneConfig::new(4097)])), LayoutError::Pages);
    assert_eq!(layout_error(&chip, &config([lane]).dead_letter_pages(1)), LayoutError::Pages);
    assert_eq!(layout_error(&chip, &config([lane.room(96)])), LayoutError::Capacity);
    let last_page = u32::MAX - PAGE as u32 + 1;
    assert_eq!(layout_error(&chip, &config([lane]).at(last_page)), LayoutError::Capacity);
}

#[test]
fn seven_lanes_are_too_many() {
    let chip = chip();
    let mut resources = Resources::<_, 7, RECORD, { buffer_size(7, RECORD) }, NoopRawMutex, Uptime>::new();
    let opened = block_on(pillarbox::new(
        &mut resources,
        &chip,
        Uptime::default(),
        1,
        config([LaneConfig::new(2); 7]),
    ));
    assert_eq!(opened.err(), Some(OpenError::Config(LayoutError::Lanes)));
}

#[test]
fn a_region_beyond_the_reach_of_an_address_does_not_fit() {
    let chip = Chip::<4, 4, 65536>::new(16, 1);
    let config = config([LaneConfig::new(2).room(u16::MAX), LaneConfig::new(2)]);
    let opened = Device::<_, 2, RECORD>::open(&chip, &config);
    assert_eq!(opened.err(), Some(OpenError::Config(LayoutError::Capacity)));
}

#[test]
fn nothing_outside_the_region_is_touched() {
    let chip = chip();
    chip.fill_random();
    let before = chip.image();
    let origin = 7 * PAGE;
    let config =
        config([LaneConfig::new(4).evict_oldest().max_attempts(1), LaneConfig::new(2)]).at(origin as u32);
    let end = origin + config.region_size(Geometry::of::<&Flash>()) as usize;
    let untouched = || {
        let image = chip.image();
        assert!(image[..origin] == before[..origin], "something before the region changed");
        assert!(image[end..] == before[end..], "something behind the region changed");
    };
    for _ in 0..3 {
        let mut meter: Meter<2> = boot(&chip, &config);
        for number in 0..100 {
            let key = meter.post(number);
            if number % 5 == 0 {
                meter.reject(0, &[key]);
            }
        }
        while meter.try_post_in(1, 1) != Err(EnqueueError::Full) {}
        untouched();
        block_on(meter.outbox.clear()).unwrap();
        meter.suspend();
        untouched();
    }
    erase_everything(&chip, &config).unwrap();
    untouched();
    assert_eq!(end - origin, METADATA + (2 + 4 + 2) * PAGE);
}

/// A part of a flash that others use as well: what an application writes when it has one chip for everything.
struct Partition<'a, 'c> {
    flash: &'a Mutex<NoopRawMutex, &'c Flash>,
    start: u32,
    size: usize,
}

impl ErrorType for Partition<'_, '_> {
    type Error = FlashError;
}

impl ReadNorFlash for Partition<'_, '_> {
    const READ_SIZE: usize = <&Flash as ReadNorFlash>::READ_SIZE;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), FlashError> {
        self.flash.lock().await.read(self.start + offset, bytes).await
    }

    fn capacity(&self) -> usize {
        self.size
    }
}

impl NorFlash for Partition<'_, '_> {
    const WRITE_SIZE: usize = <&Flash as NorFlash>::WRITE_SIZE;
    const ERASE_SIZE: usize = <&Flash as NorFlash>::ERASE_SIZE;

    async fn erase(&mut self, from: u32, to: u32) -> Result<(), FlashError> {
        self.flash.lock().await.erase(self.start + from, self.start + to).await
    }

    async fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), FlashError> {
        self.flash.lock().await.write(self.start + offset, bytes).await
    }
}

impl MultiwriteNorFlash for Partition<'_, '_> {}

#[test]
fn two_outboxes_share_a_flash_through_partitions() {
    let chip = chip();
    let size = METADATA + 6 * PAGE;
    let flash = Mutex::new(&chip);
    let part = |start: usize| Partition { flash: &flash, start: start as u32, size };
    let config = config([LaneConfig::new(4)]);
    let expected = {
        let a = Device::<_, 1, RECORD>::open(part(PAGE), &config).unwrap();
        let b = Device::<_, 1, RECORD>::open(part(PAGE + size), &config).unwrap();
        for number in 0..20 {
            a.post(number);
            b.post(100 + number);
        }
        let full = a.fill(20);
        [(0..20).chain(full).collect::<Vec<_>>(), (100..120).collect()]
    };
    let a = Device::<_, 1, RECORD>::open(part(PAGE), &config).unwrap();
    let b = Device::<_, 1, RECORD>::open(part(PAGE + size), &config).unwrap();
    assert_eq!([numbers(&a.pending(0)), numbers(&b.pending(0))], expected);
    assert_eq!(chip.violations(), 0);
}

#[test]
fn a_buffer_that_is_too_small_to_wipe_with_is_an_error_that_changes_nothing() {
    let chip = chip();
    boot(&chip, &config([LaneConfig::new(4)])).post_all(0..5);
    let before = chip.image();
    for len in [0, 64, buffer_size(1, 0) - 1] {
        let wiped = block_on(wipe(&mut &chip, &config([LaneConfig::new(4)]), &mut vec![0; len]));
        assert_eq!(wiped, Err(OpenError::Config(LayoutError::Buffer)), "{len} bytes");
        assert!(chip.image() == before);
    }
}
