//! What was enqueued arrives: over HTTP, once, in order, through reboots and a link that is down.

use host_tests::device::config;
use host_tests::link::Outage;
use host_tests::station::{Station, chip, model, network, quick, station};
use host_tests::virtual_time::VirtualTime;
use pillarbox::{DeviceId, LaneConfig, Policy};

#[test]
fn records_arrive_once_and_in_order() {
    let (mut station, server, network) = station();
    let keys = station.post_all(0..100);
    assert_eq!(station.step(), Some(Ok(())));
    assert_eq!(station.pending(0), []);
    let server = server.borrow();
    let stored: Vec<_> = server.log().iter().map(|received| received.key).collect();
    assert_eq!(stored, keys);
    server.check();
    assert!(network.trace().count() > 0);
}

#[test]
fn what_is_enqueued_while_the_link_is_down_arrives_when_it_is_up() {
    let (mut station, server, _) = station();
    station.link.take_down(Outage::Reset);
    let keys = station.post_all(0..30);
    station.run_for(3_600_000);
    assert_eq!(station.pending(0), keys);
    station.link.bring_up();
    station.trigger().link_up();
    station.run_for(10_000);
    assert_eq!(station.pending(0), []);
    assert_eq!(server.borrow().log().len(), 30);
}

#[test]
fn the_books_are_closed_after_an_unclean_stop() {
    let time = VirtualTime::new();
    let server = model();
    let network = network(&time, 1, &server);
    let (chip, config, link) = (chip(), config([LaneConfig::new(16)]), network.link());
    for boot in 0..3 {
        let mut station = Station::boot(&time, &link, chip, &config, boot).with([Policy::urgent()], quick());
        station.post_all(0..10);
        station.run_for(60_000);
    }
    let server = server.borrow();
    assert_eq!(server.log().len(), 30);
    let device = DeviceId::new("meter-1").unwrap();
    let (incarnation, lane) = *server.lanes(&device).first().unwrap();
    let ledger = server.ledger(&device, incarnation, lane).unwrap();
    assert_eq!(
        (ledger.received, ledger.pending, ledger.unexplained, ledger.lost()),
        (30, 0, 0, 0),
        "{ledger:?}"
    );
    assert_eq!(ledger.uncertain(), 2 * (64 - 10), "{ledger:?}");
}
