//! Time that passes only when nothing else can happen: an executor of one thread, in which a week of a device's life
//! takes milliseconds and the same program takes the same steps every time.
//!
//! Tasks are polled in the order in which they were woken. When none is woken, time jumps to the earliest timer, and
//! timers of the same millisecond fire in the order in which they were set.

mod timers;

use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;

use pillarbox::{Clock, Sleep};

use timers::{TimerId, Timers};

/// Polls in one run before it counts as endless.
const RUN_LIMIT: u64 = 10_000_000;
/// Polls in the same millisecond before they count as a livelock.
const INSTANT_LIMIT: u64 = 100_000;

/// The time of one world, and the tasks that live in it. A clone is the same time.
///
/// Tasks usually hold their time, so it cannot be freed while one of them lives: a world that is over calls
/// [`kill_all`](Self::kill_all), or it leaks.
#[derive(Clone, Default)]
pub struct VirtualTime(Rc<World>);

#[derive(Default)]
struct World {
    now_ms: Cell<u64>,
    woken: Woken,
    tasks: RefCell<Tasks>,
    timers: RefCell<Timers>,
    polls: Cell<u64>,
    polls_this_instant: Cell<u64>,
    instant_limit: Cell<Option<u64>>,
    run_limit: Cell<Option<u64>>,
}

/// Tasks that want to be polled, in their order. A [`Waker`] may go to other threads, so this cannot be a `RefCell`.
type Woken = Arc<Mutex<VecDeque<TaskId>>>;

/// Names a task; never names another one, even after the task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId {
    slot: u32,
    generation: u32,
}

/// The future that [`VirtualTime::block_on`] polls: it has no slot.
const MAIN: TaskId = TaskId { slot: u32::MAX, generation: 0 };

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    work: Work,
    alarm: Option<(Arc<Alarm>, Waker)>,
}

enum Work {
    Free,
    Waiting(TaskFuture),
    /// Being polled, so the future is not here.
    Polled,
    /// Killed while it was being polled: by itself, or by what it called.
    Killed,
}

/// Puts a task in the queue, once until it is polled.
struct Alarm {
    task: TaskId,
    queued: AtomicBool,
    woken: Woken,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.woken.lock().unwrap().push_back(self.task);
        }
    }
}

impl VirtualTime {
    /// A time that begins at 0, without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many polls one run, and one millisecond, may take before the run fails.
    pub fn set_limits(&self, polls_of_a_run: u64, polls_of_an_instant: u64) {
        self.0.run_limit.set(Some(polls_of_a_run));
        self.0.instant_limit.set(Some(polls_of_an_instant));
    }

    /// Milliseconds since the world began.
    pub fn now_ms(&self) -> u64 {
        self.0.now_ms.get()
    }

    /// How often anything was polled so far.
    pub fn polls(&self) -> u64 {
        self.0.polls.get()
    }

    /// Waits until this time; `u64::MAX` is never. Dropping it cancels it.
    pub fn sleep_until(&self, at_ms: u64) -> SleepUntil {
        SleepUntil { time: self.clone(), at_ms, timer: None }
    }

    /// Waits for so long.
    pub fn sleep(&self, ms: u64) -> SleepUntil {
        self.sleep_until(self.now_ms().saturating_add(ms))
    }

    /// Starts a task. It is polled for the first time when the world runs.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) -> TaskId {
        let mut tasks = self.0.tasks.borrow_mut();
        let slot = tasks.free.pop().unwrap_or_else(|| {
            tasks.slots.push(Slot { generation: 0, work: Work::Free, alarm: None });
            tasks.slots.len() as u32 - 1
        });
        let task = &mut tasks.slots[slot as usize];
        let id = TaskId { slot, generation: task.generation };
        task.work = Work::Waiting(Box::pin(future));
        let alarm = self.alarm(id);
        alarm.wake_by_ref();
        task.alarm = Some((alarm.clone(), Waker::from(alarm)));
        id
    }

    fn alarm(&self, task: TaskId) -> Arc<Alarm> {
        Arc::new(Alarm { task, queued: AtomicBool::new(false), woken: self.0.woken.clone() })
    }

    /// Drops a task's future where it stands, as a power cut does. A task that kills itself is dropped when its poll
    /// returns. Killing a task that has ended does nothing.
    pub fn kill(&self, id: TaskId) {
        let mut tasks = self.0.tasks.borrow_mut();
        let Some(task) = tasks.find(id) else { return };
        if matches!(task.work, Work::Polled | Work::Killed) {
            task.work = Work::Killed;
            return;
        }
        let work = tasks.release(id);
        // What is dropped may come back here, to cancel its timers.
        drop(tasks);
        drop(work);
    }

    /// Kills every task, also those that the others start while they are dropped.
    pub fn kill_all(&self) {
        loop {
            let tasks = self.0.tasks.borrow();
            let alive = |slot: &Slot| matches!(slot.work, Work::Waiting(_));
            let Some(slot) = tasks.slots.iter().position(alive) else { return };
            let id = TaskId { slot: slot as u32, generation: tasks.slots[slot].generation };
            drop(tasks);
            self.kill(id);
        }
    }

    /// Whether a task has neither ended nor been killed.
    pub fn is_alive(&self, id: TaskId) -> bool {
        self.0.tasks.borrow_mut().find(id).is_some_and(|task| !matches!(task.work, Work::Killed))
    }

    /// Polls one woken task, or if there is none jumps to the earliest timer and polls the task it wakes. False if
    /// nothing will ever happen again.
    pub fn step(&self) -> bool {
        match self.next(u64::MAX) {
            Some(id) => {
                self.poll(id);
                true
            }
            None => false,
        }
    }

    /// Lets everything happen up to and including this time, which is then the time.
    pub fn run_until(&self, at_ms: u64) {
        let begun = self.polls();
        while let Some(id) = self.next(at_ms) {
            self.poll(id);
            self.check_run(begun);
        }
        if self.now_ms() < at_ms {
            self.jump(at_ms);
        }
    }

    /// Lets everything happen until nothing can happen any more.
    pub fn run_until_idle(&self) {
        let begun = self.polls();
        while self.step() {
            self.check_run(begun);
        }
    }

    /// Lets everything happen until this future is done, which unlike a task may borrow.
    ///
    /// # Panics
    /// If nothing can ever finish it.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let begun = self.polls();
        let mut future = pin!(future);
        let alarm = self.alarm(MAIN);
        let waker = Waker::from(alarm.clone());
        alarm.wake_by_ref();
        while let Some(id) = self.next(u64::MAX) {
            if id == MAIN {
                self.count_poll(MAIN);
                alarm.queued.store(false, Ordering::Relaxed);
                if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return value;
                }
            } else {
                self.poll(id);
            }
            self.check_run(begun);
        }
        panic!("at {} ms everything sleeps for ever, and the future is not done", self.now_ms());
    }

    /// Who is to be polled next, at the earliest time before `until_ms` at which anybody is.
    fn next(&self, until_ms: u64) -> Option<TaskId> {
        loop {
            let first = self.0.woken.lock().unwrap().pop_front();
            if first.is_some() {
                return first;
            }
            let at_ms = self.0.timers.borrow_mut().earliest().filter(|at| *at <= until_ms)?;
            self.jump(at_ms);
            self.0.timers.borrow_mut().fire(at_ms);
        }
    }

    fn jump(&self, to_ms: u64) {
        self.0.now_ms.set(to_ms);
        self.0.polls_this_instant.set(0);
    }

    fn poll(&self, id: TaskId) {
        let mut tasks = self.0.tasks.borrow_mut();
        let Some(task) = tasks.find(id) else { return };
        let Work::Waiting(mut future) = core::mem::replace(&mut task.work, Work::Polled) else {
            panic!("the world runs inside one of its tasks");
        };
        let Some((alarm, waker)) = &task.alarm else { return };
        alarm.queued.store(false, Ordering::Relaxed);
        let waker = waker.clone();
        drop(tasks);
        self.count_poll(id);
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut tasks = self.0.tasks.borrow_mut();
        match tasks.find(id) {
            Some(task) if !done && matches!(task.work, Work::Polled) => task.work = Work::Waiting(future),
            _ => {
                tasks.release(id);
                drop(tasks);
                drop(future);
            }
        }
    }

    fn count_poll(&self, id: TaskId) {
        self.0.polls.set(self.polls() + 1);
        let here = self.0.polls_this_instant.get() + 1;
        self.0.polls_this_instant.set(here);
        let limit = self.0.instant_limit.get().unwrap_or(INSTANT_LIMIT);
        let now = self.now_ms();
        assert!(here <= limit, "{here} polls at {now} ms and time does not move: the last one is {id:?}");
    }

    fn check_run(&self, begun: u64) {
        let limit = self.0.run_limit.get().unwrap_or(RUN_LIMIT);
        let taken = self.polls() - begun;
        let now = self.now_ms();
        assert!(
            taken <= limit,
            "{taken} polls in one run, which is now at {now} ms: it does not come to an end"
        );
    }
}

impl fmt::Debug for VirtualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtualTime({} ms)", self.now_ms())
    }
}

impl Tasks {
    fn find(&mut self, id: TaskId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        (slot.generation == id.generation && !matches!(slot.work, Work::Free)).then_some(slot)
    }

    fn release(&mut self, id: TaskId) -> Option<Work> {
        let slot = self.find(id)?;
        slot.generation += 1;
        slot.alarm = None;
        let work = core::mem::replace(&mut slot.work, Work::Free);
        self.free.push(id.slot);
        Some(work)
    }
}

/// Waits for a time; see [`VirtualTime::sleep_until`].
pub struct SleepUntil {
    time: VirtualTime,
    at_ms: u64,
    timer: Option<TimerId>,
}

impl Future for SleepUntil {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.time.now_ms() >= self.at_ms {
            return Poll::Ready(());
        }
        if self.at_ms != u64::MAX {
            let timer = self.time.0.timers.borrow_mut().set(self.timer, self.at_ms, context.waker());
            self.timer = Some(timer);
        }
        Poll::Pending
    }
}

impl Drop for SleepUntil {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.time.0.timers.borrow_mut().cancel(timer);
        }
    }
}

/// The clock of one boot of a device: it begins at 0 when the device does.
#[derive(Clone, Debug)]
pub struct DeviceClock {
    time: VirtualTime,
    booted_at_ms: u64,
}

impl DeviceClock {
    /// The clock of a device that boots now.
    pub fn boot(time: &VirtualTime) -> Self {
        Self { time: time.clone(), booted_at_ms: time.now_ms() }
    }
}

impl Sleep for DeviceClock {
    async fn sleep_until(&self, uptime_ms: u64) {
        self.time.sleep_until(self.booted_at_ms.saturating_add(uptime_ms)).await;
    }
}

impl Clock for DeviceClock {
    fn uptime_ms(&self) -> u64 {
        self.time.now_ms() - self.booted_at_ms
    }
}
