//! When embassy-net's link and configuration are both up again, a wait after failures is over; while they stay up, or only one of them
//! comes up, nothing happens. A real stack over a driver whose link the test switches.

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;

use embassy_futures::select::{Either4, select4};
use embassy_net::{Config, ConfigV4, Ipv4Address, Ipv4Cidr, StackResources, StaticConfigV4};
use embassy_net_driver_channel::driver::{HardwareAddress, LinkState};
use embassy_net_driver_channel::{State, new};
use embassy_sync::blocking_mutex::raw::RawMutex;
use embedded_storage_async::nor_flash::MultiwriteNorFlash;
use host_tests::real_net::RealStation;
use pillarbox::{Clock, Dispatcher, Failure, LaneSet, Pace, Uplink, watch_link};

/// The back-off: longer than any test.
const LONG: Duration = Duration::from_secs(600);
/// For what must not happen.
const WHILE: Duration = Duration::from_millis(150);

/// Reaches nobody, and counts how often it tried.
struct Unreachable(Rc<Cell<u32>>);

impl Uplink for Unreachable {
    fn books(&self) -> LaneSet {
        LaneSet::NONE
    }

    async fn flush<F, M, C, const LANES: usize, const RECORD: usize>(
        &mut self,
        _: &mut Dispatcher<'_, F, LANES, RECORD, M, C>,
    ) -> Result<(), Failure>
    where
        F: MultiwriteNorFlash,
        M: RawMutex,
        C: Clock,
    {
        self.0.set(self.0.get() + 1);
        Err(Failure::Network)
    }
}

fn address() -> StaticConfigV4 {
    StaticConfigV4 {
        address: Ipv4Cidr::new(Ipv4Address::new(192, 0, 2, 1), 24),
        gateway: None,
        dns_servers: Default::default(),
    }
}

/// There have been so many attempts, soon, and there are no more.
async fn attempts(tried: &Cell<u32>, expected: u32, when: &str) {
    for _ in 0..500 {
        if tried.get() >= expected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(WHILE).await;
    assert_eq!(tried.get(), expected, "{when}");
}

#[tokio::test]
async fn a_link_that_returns_cuts_the_wait_short() {
    let station = RealStation::boot().await;
    station.post_all(0..3).await;
    let trigger = station.trigger().await;
    let mut dispatcher = station.dispatcher.pace(Pace::new().spread(Duration::ZERO).backoff(LONG, LONG));
    let tried = Rc::new(Cell::new(0));
    let mut uplink = Unreachable(tried.clone());

    let mut state = State::<1514, 4, 4>::new();
    let (channel, device) = new(&mut state, HardwareAddress::Ethernet([2, 0, 0, 0, 0, 1]));
    let link = channel.state_runner();
    let mut resources = StackResources::<2>::new();
    let (stack, mut runner) = embassy_net::new(device, Config::ipv4_static(address()), &mut resources, 1);

    let script = async {
        attempts(&tried, 1, "at boot, with the link down").await;
        assert!(!stack.is_link_up());
        link.set_link_state(LinkState::Up);
        attempts(&tried, 2, "when the link comes up").await;
        link.set_link_state(LinkState::Up);
        attempts(&tried, 2, "while it stays up").await;
        for round in 0..3 {
            link.set_link_state(LinkState::Down);
            attempts(&tried, 2 + round, "when it goes down").await;
            link.set_link_state(LinkState::Up);
            attempts(&tried, 3 + round, "when it returns").await;
        }
        stack.set_config_v4(ConfigV4::None);
        attempts(&tried, 5, "when the address is gone").await;
        link.set_link_state(LinkState::Down);
        attempts(&tried, 5, "when the link is gone too").await;
        link.set_link_state(LinkState::Up);
        attempts(&tried, 5, "when the link returns, without an address").await;
        stack.set_config_v4(ConfigV4::Static(address()));
        attempts(&tried, 6, "when the address returns too").await;
    };
    let all = select4(runner.run(), watch_link(stack, trigger), dispatcher.run(&mut uplink), script);
    assert!(matches!(all.await, Either4::Fourth(())));
}
