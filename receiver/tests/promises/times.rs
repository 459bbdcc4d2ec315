//! The time of a record whose device did not know it: exact as soon as its boot was heard, else between two moments.

use pillarbox::Timestamp;
use pillarbox_receiver::intake::{Arrival, Post};
use pillarbox_receiver::store::RowTime;

use super::{Device, Fresh, INCARNATION, NOW, on_both, record};

/// A record that was made so long after a boot began.
fn made(counter: u64, boot: u32, uptime_ms: u64) -> Arrival {
    Arrival { time: Timestamp { boot, uptime_ms, wall_ms: None }, ..record(INCARNATION, 0, counter) }
}

/// A batch that this boot sends, so long after it began.
fn sent(device: &Device, boot: u32, uptime_ms: u64, now_ms: u64, records: Vec<Arrival>) -> Post {
    let mut post = device.batch(records.iter().map(|record| record.key.counter));
    post.records = records;
    (post.head.boot, post.head.boot_nonce) = (boot, boot);
    (post.head.uptime_ms, post.now_ms) = (uptime_ms, now_ms);
    post
}

on_both! {
    a_record_has_the_time_of_its_boot,
}

async fn a_record_has_the_time_of_its_boot(fresh: Fresh) {
    let device = fresh.device("meter").await;
    let first = sent(&device, 1, 10_000, NOW, vec![made(0, 1, 4_000), record(INCARNATION, 0, 1)]);
    device.take(&first).await;
    // Boot 2 never spoke; boot 3 brings what it left behind.
    let third = vec![made(2, 2, 500), made(3, 3, 100)];
    device.take(&sent(&device, 3, 1_000, NOW + 60_000, third)).await;
    // A dead letter of a boot that is still to be heard of.
    let mut strange = sent(&device, 3, 2_000, NOW + 61_000, vec![made(4, 9, 7)]);
    strange.late = vec![];
    device.take(&strange).await;
    let times: Vec<RowTime> = fresh.log().await.iter().map(|row| row.time).collect();
    let began = NOW + 59_000;
    assert_eq!(
        times,
        [
            RowTime::Exactly { ms: NOW - 6_000 },
            RowTime::Exactly { ms: NOW + 1 },
            RowTime::Between { after_ms: Some(NOW + 500), before_ms: began },
            RowTime::Exactly { ms: began + 100 },
            RowTime::Between { after_ms: None, before_ms: NOW + 61_000 },
        ]
    );
    // The boot turns out to have begun earlier, and that the device was heard before stays known.
    device.take(&sent(&device, 3, 9_000, NOW + 65_000, vec![made(5, 3, 0)])).await;
    let times: Vec<RowTime> = fresh.log().await.iter().map(|row| row.time).collect();
    assert_eq!(times[3], RowTime::Exactly { ms: NOW + 56_100 });
    assert_eq!(times[2], RowTime::Between { after_ms: Some(NOW + 500), before_ms: NOW + 56_000 });
}
