//! The application's handle: post a record, see how it is doing, stop cleanly.

use embassy_sync::{
    blocking_mutex::raw::{CriticalSectionRawMutex, RawMutex},
    mutex::Mutex,
};
use embedded_storage_async::nor_flash::MultiwriteNorFlash;

use crate::{
    Clock, Config, DeadLetters, DeviceKey, Drain, EmbassyClock, EnqueueError, Error, Geometry, Key,
    OpenError, Record, Stats, Stored, Subscriber, Tag, Trigger, assert_fits, buffer_size,
    config::stored_max,
    event::Signals,
    store::{Clear, Enqueue, Inspect, Open, Store, Suspend, Task},
};

pub(crate) type Shared<'r, F, M, C, const LANES: usize> = Mutex<M, Store<'r, F, M, C, LANES>>;

/// All the memory of an outbox. Put it in a `StaticCell`.
///
/// - `F`: the flash driver.
/// - `LANES`: how many lanes there are, 1 to 6.
/// - `RECORD`: the largest encoded record.
/// - `BUFFER`: [`buffer_size`]`(LANES, RECORD)`.
/// - `M`: what keeps tasks apart. The default is right for every executor.
/// - `C`: counts the milliseconds since boot.
pub struct Resources<
    'r,
    F,
    const LANES: usize,
    const RECORD: usize,
    const BUFFER: usize,
    M: RawMutex = CriticalSectionRawMutex,
    C = EmbassyClock,
> {
    signals: Signals<M>,
    buffer: AlignedBuffer<BUFFER>,
    shared: Option<Shared<'r, F, M, C, LANES>>,
}

/// Drivers with a DMA want their buffers aligned.
#[repr(align(4))]
struct AlignedBuffer<const N: usize>([u8; N]);

impl<F, const LANES: usize, const RECORD: usize, const BUFFER: usize, M: RawMutex, C>
    Resources<'_, F, LANES, RECORD, BUFFER, M, C>
{
    /// Memory for an outbox that is not open yet.
    pub const fn new() -> Self {
        const {
            assert!(
                BUFFER >= buffer_size(LANES, RECORD),
                "BUFFER is too small: write buffer_size(LANES, RECORD)"
            );
        }
        Self { signals: Signals::new(), buffer: AlignedBuffer([0; BUFFER]), shared: None }
    }
}

impl<F, const LANES: usize, const RECORD: usize, const BUFFER: usize, M: RawMutex, C> Default
    for Resources<'_, F, LANES, RECORD, BUFFER, M, C>
{
    fn default() -> Self {
        Self::new()
    }
}

/// Opens the outbox that lies on the flash, or formats the region if there is none.
///
/// `entropy` is a random number from the chip: incarnation and boot nonce come from it.
///
/// The application posts through the [`Outbox`], from as many tasks as it likes. The [`Drain`] belongs to the one task that sends:
/// to a [`Dispatcher`](crate::Dispatcher).
///
/// Cancelling it is safe: open it again.
#[allow(clippy::type_complexity)]
pub async fn new<'r, F, M, C, const LANES: usize, const RECORD: usize, const BUFFER: usize>(
    resources: &'r mut Resources<'r, F, LANES, RECORD, BUFFER, M, C>,
    flash: F,
    clock: C,
    entropy: u64,
    config: Config<LANES>,
) -> Result<(Outbox<'r, F, LANES, RECORD, M, C>, Drain<'r, F, LANES, RECORD, M, C>), OpenError<F::Error>>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    let record_max = const {
        let record_max = stored_max(RECORD, Geometry::of::<F>().word() as usize);
        assert!(
            record_max <= Geometry::of::<F>().largest_item() as usize,
            "a page of this flash cannot hold a record of RECORD bytes: lower RECORD"
        );
        record_max as u16
    };
    let layout = config.layout(const { Geometry::of::<F>() }, record_max, flash.capacity() as u32)?;
    let (record, signals) = (&mut resources.buffer.0, &resources.signals);
    // It is borrowed for as long as it lives, so there is nothing in it yet.
    let shared = resources.shared.get_or_insert_with(|| {
        Mutex::new(Store::closed(flash, record, signals, clock, &config, layout, entropy))
    });
    let mut open = Open::new();
    run(shared, &mut open).await?;
    open.end()?;
    let shared: &'r _ = shared;
    Ok((Outbox { shared }, Drain::new(shared)))
}

/// Where an application posts its records.
///
/// Copy it to every task that has something to post. Operations wait for each other, never for the network.
///
/// A future that is dropped before it is ready breaks no promise: what it was doing has happened or not, and the
/// next operation finds out which. A record whose `enqueue` was dropped may still be sent.
pub struct Outbox<
    'r,
    F,
    const LANES: usize,
    const RECORD: usize,
    M: RawMutex = CriticalSectionRawMutex,
    C = EmbassyClock,
> {
    shared: &'r Shared<'r, F, M, C, LANES>,
}

impl<F, const LANES: usize, const RECORD: usize, M: RawMutex, C> Clone
    for Outbox<'_, F, LANES, RECORD, M, C>
{
    fn clone(&self) -> Self {
        *self
    }
}

impl<F, const LANES: usize, const RECORD: usize, M: RawMutex, C> Copy for Outbox<'_, F, LANES, RECORD, M, C> {}

impl<'r, F, M, C, const LANES: usize, const RECORD: usize> Outbox<'r, F, LANES, RECORD, M, C>
where
    F: MultiwriteNorFlash,
    M: RawMutex,
    C: Clock,
{
    /// Posts a record in lane 0. When this returns `Ok`, the record is in flash and will be delivered or accounted
    /// for, whatever happens to the power, the link or the server.
    pub fn enqueue<R: Record>(
        &self,
        record: &R,
    ) -> impl Future<Output = Result<Key, EnqueueError<F::Error>>> {
        self.post(0, None, record)
    }

    /// Posts a record in a lane.
    pub fn enqueue_in<R: Record>(
        &self,
        lane: u8,
        record: &R,
    ) -> impl Future<Output = Result<Key, EnqueueError<F::Error>>> {
        self.post(lane, None, record)
    }

    /// Posts a record in lane 0 that takes the place of a pending one with the same tag: of a setting, only the
    /// last counts. If it has to choose, it keeps both rather than none.
    pub fn enqueue_once<R: Record>(
        &self,
        tag: Tag,
        record: &R,
    ) -> impl Future<Output = Result<Key, EnqueueError<F::Error>>> {
        self.post(0, Some(tag), record)
    }

    /// Posts a record in a lane that takes the place of a pending one with the same tag there.
    pub fn enqueue_once_in<R: Record>(
        &self,
        lane: u8,
        tag: Tag,
        record: &R,
    ) -> impl Future<Output = Result<Key, EnqueueError<F::Error>>> {
        self.post(lane, Some(tag), record)
    }

    // Those above only hand its future on: a function that waits for another is a state machine of its own.
    async fn post<R: Record>(
        &self,
        lane: u8,
        tag: Option<Tag>,
        record: &R,
    ) -> Result<Key, EnqueueError<F::Error>> {
        const { assert_fits::<R, RECORD>() };
        let mut encode = |body: &mut [u8]| {
            let body = body.get_mut(..R::MAX)?;
            postcard::to_slice(record, body).ok().map(|used| used.len())
        };
        let mut enqueue = Enqueue::new(lane, R::KIND, tag, &mut encode);
        run(self.shared, &mut enqueue).await?;
        enqueue.end()
    }

    /// Shows every pending record of a lane, oldest first.
    pub async fn inspect(&self, lane: u8, mut show: impl FnMut(&Stored<'_>)) -> Result<(), Error<F::Error>> {
        check_lane::<F::Error, LANES>(lane)?;
        run(self.shared, &mut Inspect::new(lane, &mut show)).await
    }

    /// The records that could not be sent.
    pub fn dead_letters(&self) -> DeadLetters<'r, F, LANES, M, C> {
        DeadLetters::new(self.shared)
    }

    /// Gives up everything that is pending, accounts for it, and begins a new incarnation, which it returns.
    pub async fn clear(&self) -> Result<u32, Error<F::Error>> {
        run(self.shared, &mut Clear::default()).await?;
        Ok(self.shared.lock().await.core.identity().0)
    }

    /// Makes a stop clean, before sleep or a planned reset: no counter is uncertain afterwards, and the next boot
    /// knows how much is pending. The outbox stays usable.
    pub async fn suspend(&self) -> Result<(), Error<F::Error>> {
        run(self.shared, &mut Suspend::default()).await
    }

    /// How the outbox is doing.
    pub async fn stats(&self) -> Stats<LANES> {
        self.shared.lock().await.core.stats()
    }

    /// The key as the rest of the world knows it.
    pub async fn name_of(&self, key: Key) -> DeviceKey {
        key.of(self.shared.lock().await.core.device())
    }

    /// Tells the dispatcher that now is a good moment.
    pub async fn trigger(&self) -> Trigger<'r, M> {
        Trigger::new(&self.shared.lock().await.core.books.signals.bell)
    }

    /// Listens to what happens. `None` if two are listening already.
    pub async fn subscribe(&self) -> Option<Subscriber<'r, M>> {
        let mut store = self.shared.lock().await;
        let subscriber = store.core.books.signals.events.subscriber().ok()?;
        store.core.books.catch_up();
        Some(subscriber)
    }
}

/// Does a task when it is its turn.
pub(crate) async fn run<F: MultiwriteNorFlash, M: RawMutex, C: Clock, const LANES: usize>(
    shared: &Shared<'_, F, M, C, LANES>,
    task: &mut dyn Task<M, C, LANES>,
) -> Result<(), Error<F::Error>> {
    shared.lock().await.run(task).await
}

pub(crate) fn check_lane<E, const LANES: usize>(lane: u8) -> Result<(), Error<E>> {
    if usize::from(lane) < LANES { Ok(()) } else { Err(Error::NoSuchLane) }
}
