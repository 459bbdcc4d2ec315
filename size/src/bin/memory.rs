//! Numbers that only the target's compiler knows: the memory of an outbox and its sender, and the futures of their operations. They
//! are read from this program's image; a program of their own keeps them out of the others' sizes.

#![no_std]
#![no_main]

use pillarbox::{BatchUplink, Config, Dispatcher, Drain, Key, Outbox, Stored};
use size::net::StubNet;
use size::{BUFFER, Lock, Memory, RECORD, Reading, StubFlash, Ticks, keep};

type Sender = Drain<'static, StubFlash, 1, RECORD, Lock, Ticks>;
type Poster = Outbox<'static, StubFlash, 1, RECORD, Lock, Ticks>;
type Mailer = Dispatcher<'static, StubFlash, 1, RECORD, Lock, Ticks>;
type Link = BatchUplink<'static, StubNet, StubNet, Ticks>;

/// The size of what a function returns; futures have no names.
const fn returned<A, Fut>(_: &impl FnOnce(A) -> Fut) -> u32 {
    size_of::<Fut>() as u32
}

type OpenArguments = (&'static mut Memory, Config<1>);

/// In the order in which xtask names them.
#[unsafe(no_mangle)]
static MEASURES: [u32; 10] = [
    size_of::<Memory>() as u32,
    BUFFER as u32,
    returned(&|(memory, config): OpenArguments| pillarbox::new(memory, StubFlash, Ticks, 0, config)),
    returned(&|(outbox, reading): (&'static Poster, &'static Reading)| outbox.enqueue(reading)),
    returned(&|sender: &'static mut Sender| sender.window(0, |_: &Stored<'_>| true)),
    returned(&|(sender, keys): (&'static mut Sender, &'static [Key])| sender.settle(0, keys)),
    returned(&|outbox: &'static Poster| outbox.suspend()),
    returned(&|(mailer, link): (&'static mut Mailer, &'static mut Link)| mailer.run(link)),
    size_of::<Mailer>() as u32,
    size_of::<Link>() as u32,
];

#[cortex_m_rt::entry]
fn main() -> ! {
    loop {
        keep(MEASURES.as_ptr() as u32);
    }
}
