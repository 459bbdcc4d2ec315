//! What wakes the dispatcher: work that came up, and reasons to try now although it was waiting.

use core::cell::Cell;
use core::future::poll_fn;
use core::task::{Poll, Waker};

use embassy_sync::blocking_mutex::{Mutex, raw::RawMutex};

/// Something came up. It is looked at, and cuts no wait short.
const WORK: u8 = 1;
/// The link came up, or the device woke: a wait after failures is over, but for some jitter.
const CONNECTED: u8 = 2;
/// The application wants it now.
const DEMANDED: u8 = 4;

/// Rings that nobody has answered yet: any number of the same kind is one.
pub(crate) struct Bell<M: RawMutex> {
    // Both under one lock, for it is rung with every event.
    state: Mutex<M, (Cell<u8>, Cell<Option<Waker>>)>,
}

/// The kinds of rings since the last look.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rings(u8);

impl Rings {
    pub(crate) fn is_connected(self) -> bool {
        self.0 & CONNECTED != 0
    }

    pub(crate) fn is_demanded(self) -> bool {
        self.0 & DEMANDED != 0
    }
}

impl<M: RawMutex> Bell<M> {
    pub(crate) const fn new() -> Self {
        Self { state: Mutex::new((Cell::new(0), Cell::new(None))) }
    }

    /// There is work.
    pub(crate) fn ring_work(&self) {
        self.ring(WORK);
    }

    fn ring(&self, kind: u8) {
        let waiting = self.state.lock(|(rings, waker)| {
            rings.set(rings.get() | kind);
            waker.take()
        });
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// What rang since the last look.
    pub(crate) fn answer(&self) -> Rings {
        self.state.lock(|(rings, _)| Rings(rings.replace(0)))
    }

    /// Waits until it rings. May be cancelled: a ring stays until it is answered.
    pub(crate) async fn wait(&self) {
        poll_fn(|context| {
            self.state.lock(|(rings, waker)| {
                waker.set(Some(context.waker().clone()));
                if rings.get() == 0 { Poll::Pending } else { Poll::Ready(()) }
            })
        })
        .await;
    }
}

/// Tells the dispatcher that now is a good moment. Triggers that come together make one flush.
pub struct Trigger<'r, M: RawMutex> {
    bell: &'r Bell<M>,
}

impl<M: RawMutex> Clone for Trigger<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: RawMutex> Copy for Trigger<'_, M> {}

impl<'r, M: RawMutex> Trigger<'r, M> {
    pub(crate) fn new(bell: &'r Bell<M>) -> Self {
        Self { bell }
    }

    /// The link is up and configured. What waited after failures is tried soon, at a random moment of the pace's spread.
    pub fn link_up(&self) {
        self.bell.ring(CONNECTED);
    }

    /// The device woke from sleep: as after [`link_up`](Self::link_up).
    pub fn wake(&self) {
        self.bell.ring(CONNECTED);
    }

    /// The application wants everything sent now, whatever the dispatcher was waiting for.
    pub fn flush(&self) {
        self.bell.ring(DEMANDED);
    }
}
