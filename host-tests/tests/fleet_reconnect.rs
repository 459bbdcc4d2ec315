//! Ten thousand devices that come back at once do not arrive at once: their first attempts are spread as the pace says, and while the server
//! stays down their requests become ever rarer.

use core::time::Duration;

use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use host_tests::device::{Flash, Note, config};
use host_tests::flash::Chip;
use host_tests::station::{Sender, open, run_for};
use host_tests::virtual_time::{DeviceClock, VirtualTime};
use pillarbox::{Clock, Dispatcher, Failure, LaneConfig, LaneSet, Pace, Policy, Uplink};

const DEVICES: u64 = 10_000;
const BINS: usize = 20;

/// Nobody is ever there; it only notes when it was tried.
#[derive(Default)]
struct Nobody {
    tried_at: Vec<u64>,
}

impl Uplink for Nobody {
    fn books(&self) -> LaneSet {
        LaneSet::NONE
    }

    async fn flush<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        mail: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
    ) -> Result<(), Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock,
    {
        self.tried_at.push(mail.uptime_ms());
        Err(Failure::Network)
    }
}

/// One device with a record, before its first attempt. It lives on a chip that all of them use, one after the other.
fn device(chip: &'static Flash, blank: &[u8], number: u64, pace: Pace) -> (VirtualTime, Sender<'static, 1>) {
    chip.set_image(blank);
    let time = VirtualTime::new();
    // Entropy as chips have it: a serial number is not random, and must do.
    let (outbox, drain) = open(&time, chip, DeviceClock::boot(&time), &config([LaneConfig::new(2)]), number);
    let dispatcher = time.block_on(async {
        outbox.enqueue(&Note::new(1)).await.expect("there is room");
        Dispatcher::new(drain).await
    });
    (time, dispatcher.policies([Policy::urgent()]).pace(pace))
}

fn fleet(
    pace: Pace,
    mut each: impl FnMut(&VirtualTime, &mut Sender<'static, 1>, &mut Nobody),
) -> Vec<Nobody> {
    let chip: &'static Flash = Box::leak(Box::new(Chip::new(32, 1)));
    let blank = chip.image();
    (0..DEVICES)
        .map(|number| {
            let (time, mut dispatcher) = device(chip, &blank, number, pace);
            let mut uplink = Nobody::default();
            each(&time, &mut dispatcher, &mut uplink);
            uplink
        })
        .collect()
}

fn histogram(title: &str, times: impl Iterator<Item = u64>, end: u64) -> [u64; BINS] {
    let mut bins = [0u64; BINS];
    for at in times {
        bins[((at * BINS as u64) / (end + 1)).min(BINS as u64 - 1) as usize] += 1;
    }
    let most = *bins.iter().max().unwrap();
    println!("{title}");
    for (n, count) in bins.iter().enumerate() {
        let bar = "#".repeat((count * 50).div_ceil(most.max(1)) as usize);
        println!("{:>8} ms {count:>6} {bar}", n as u64 * (end + 1) / BINS as u64);
    }
    bins
}

/// How far counts are from equal ones, in units of what chance alone makes of it: about 19 for 20 bins.
fn chi_square(bins: &[u64; BINS]) -> f64 {
    let expected = bins.iter().sum::<u64>() as f64 / BINS as f64;
    bins.iter().map(|count| (*count as f64 - expected).powi(2) / expected).sum()
}

#[test]
fn a_fleet_that_boots_at_once_arrives_over_the_whole_spread() {
    let spread = Duration::from_secs(60);
    let tried = fleet(Pace::new().spread(spread), |time, dispatcher, uplink| {
        run_for(time, dispatcher, uplink, 60_001);
    });
    let first = tried.iter().map(|uplink| *uplink.tried_at.first().expect("it tried within the spread"));
    let bins = histogram("first attempts after a common boot, spread of 60 s", first, 60_000);
    assert_eq!(bins.iter().sum::<u64>(), DEVICES);
    let chi = chi_square(&bins);
    // With 19 degrees of freedom, 43.8 is exceeded once in a thousand times.
    assert!(chi < 43.8, "chi-square {chi}");
}

#[test]
fn a_fleet_whose_link_comes_back_at_once_arrives_over_the_whole_spread() {
    let pace = Pace::new().spread(Duration::from_secs(60));
    let outage = 6 * 3_600_000;
    let tried = fleet(pace, |time, dispatcher, uplink| {
        // As if it had failed for hours: one attempt, and a long pause.
        run_for(time, dispatcher, uplink, outage);
        uplink.tried_at.clear();
        time.block_on(dispatcher.trigger()).link_up();
        run_for(time, dispatcher, uplink, 60_001);
    });
    let first = tried.iter().map(|uplink| uplink.tried_at.first().expect("within the spread") - outage);
    let bins = histogram("first attempts after the link came back, spread of 60 s", first, 60_000);
    assert_eq!(bins.iter().sum::<u64>(), DEVICES);
    // Some were due before: a wait that is nearly over is not begun anew. They are at most a sixth of all, and come early.
    let late: u64 = bins[10..].iter().sum();
    assert!((DEVICES * 4 / 10..=DEVICES / 2).contains(&late), "{late} in the second half");
    assert!(bins.iter().all(|count| (400..=720).contains(count)), "{bins:?}");
}

#[test]
fn during_an_outage_requests_become_ever_rarer() {
    let pace =
        Pace::new().spread(Duration::from_secs(60)).backoff(Duration::from_secs(1), Duration::from_secs(600));
    let tried = fleet(pace, |time, dispatcher, uplink| {
        run_for(time, dispatcher, uplink, 3_600_000);
    });
    let all = || tried.iter().flat_map(|uplink| uplink.tried_at.iter().copied());
    let bins = histogram("attempts during an outage of an hour, back-off up to 10 min", all(), 3_599_999);
    // A pause of 5 minutes on average in the end: of 10,000 devices 33 a second, in 3 minutes 6,000.
    let settled = bins[BINS / 2..].iter().sum::<u64>() / (BINS as u64 / 2);
    assert!((5_000..7_500).contains(&settled), "{settled} in a bin of 3 minutes");
    assert!(bins[0] > 5 * settled, "{} at first, {settled} in the end", bins[0]);
    // It decays until the longest pause is reached, after some nine minutes, and then stays there.
    assert!(bins[..4].is_sorted_by(|one, next| one > next), "{bins:?}");
    let is_level = |count: &u64| count.abs_diff(settled) * 10 < settled;
    assert!(bins[3..].iter().all(is_level), "{bins:?}");
    // No moment draws a crowd: after the first minute, no second has twice its neighbourhood's share.
    let mut seconds = vec![0u64; 3600];
    all().for_each(|at| seconds[(at / 1000).min(3599) as usize] += 1);
    for (n, around) in seconds[120..].windows(61).enumerate() {
        let mean = around.iter().sum::<u64>() as f64 / 61.0;
        let here = around[30] as f64;
        assert!(here < mean + 6.0 * mean.sqrt() + 1.0, "second {}: {here} of {mean}", n + 150);
    }
    let most = tried.iter().map(|uplink| uplink.tried_at.len()).max().unwrap();
    assert!(most < 60, "{most} attempts of one device in an hour");
}
