//! The ground of the world tests is sound: virtual time passes as time does, in the same order every time, a killed task
//! is gone at once, and what does not end fails instead.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use embassy_futures::select::select;
use host_tests::virtual_time::{DeviceClock, VirtualTime};
use pillarbox::{Clock, Sleep};

const HOUR_MS: u64 = 60 * 60 * 1000;

#[test]
fn timers_fire_in_the_order_of_their_times_and_then_of_their_setting() {
    let time = VirtualTime::new();
    let fired = Rc::new(RefCell::new(Vec::new()));
    for (name, at_ms) in [("c", 30), ("a", 10), ("d", 30), ("b", 20), ("never", u64::MAX)] {
        let (own, fired) = (time.clone(), fired.clone());
        time.spawn(async move {
            own.sleep_until(at_ms).await;
            fired.borrow_mut().push((own.now_ms(), name));
        });
    }
    time.run_until(20);
    assert_eq!(*fired.borrow(), [(10, "a"), (20, "b")]);
    time.run_until_idle();
    assert_eq!(*fired.borrow(), [(10, "a"), (20, "b"), (30, "c"), (30, "d")]);
    assert_eq!(time.now_ms(), 30);
    time.run_until(1000);
    assert_eq!(time.now_ms(), 1000);
    time.kill_all();
}

#[test]
fn a_dropped_sleep_neither_wakes_nor_moves_time() {
    let time = VirtualTime::new();
    for _ in 0..1000 {
        time.block_on(select(time.sleep(HOUR_MS), time.sleep(1)));
    }
    let polls = time.polls();
    time.run_until_idle();
    assert_eq!((time.now_ms(), time.polls()), (1000, polls));
}

#[test]
fn a_killed_task_is_dropped_at_once() {
    struct OnDrop(Rc<Cell<bool>>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let time = VirtualTime::new();
    let dropped = Rc::new(Cell::new(false));
    let (own, guard) = (time.clone(), OnDrop(dropped.clone()));
    let task = time.spawn(async move {
        let _guard = guard;
        own.sleep(10).await;
        panic!("it was killed");
    });
    time.run_until(5);
    assert!(time.is_alive(task) && !dropped.get());
    time.kill(task);
    assert!(!time.is_alive(task) && dropped.get());

    // Its slot is used again; its name is not.
    let own = time.clone();
    let next = time.spawn(async move { own.sleep(10).await });
    time.kill(task);
    assert!(time.is_alive(next));
    time.run_until_idle();
    assert_eq!(time.now_ms(), 15);
    assert!(!time.is_alive(next));
}

#[test]
fn a_task_can_kill_itself() {
    let time = VirtualTime::new();
    let name = Rc::new(Cell::new(None));
    let (own, own_name) = (time.clone(), name.clone());
    name.set(Some(time.spawn(async move {
        own.kill(own_name.get().unwrap());
        own.sleep(10).await;
        panic!("it was killed");
    })));
    time.run_until_idle();
    assert_eq!(time.now_ms(), 0);
    assert!(!time.is_alive(name.get().unwrap()));
}

#[test]
#[should_panic(expected = "time does not move")]
fn a_livelock_fails() {
    let time = VirtualTime::new();
    time.set_limits(10_000, 100);
    time.spawn(async {
        loop {
            embassy_futures::yield_now().await;
        }
    });
    time.run_until(1);
}

#[test]
#[should_panic(expected = "does not come to an end")]
fn an_endless_run_fails() {
    let time = VirtualTime::new();
    time.set_limits(1000, 100);
    let own = time.clone();
    time.spawn(async move {
        loop {
            own.sleep(1).await;
        }
    });
    time.run_until_idle();
}

#[test]
#[should_panic(expected = "sleeps for ever")]
fn waiting_for_nothing_fails() {
    VirtualTime::new().block_on(core::future::pending::<()>());
}

#[test]
fn a_devices_clock_begins_with_its_boot() {
    let time = VirtualTime::new();
    time.run_until(500);
    let clock = DeviceClock::boot(&time);
    assert_eq!(clock.uptime_ms(), 0);
    time.block_on(clock.sleep_until(70));
    assert_eq!((clock.uptime_ms(), time.now_ms()), (70, 570));
}
