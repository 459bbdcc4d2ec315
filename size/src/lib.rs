//! What the measured programs share: a flash whose cost is the same in all of them, so that it cancels out when
//! they are compared, and one choice of outbox.

#![no_std]

pub mod device;
pub mod net;

use core::convert::Infallible;
use core::ptr;

// For its critical section.
use cortex_m as _;

use embassy_sync::blocking_mutex::raw::CriticalSectionRawMutex;
use embedded_storage_async::nor_flash::{ErrorType, MultiwriteNorFlash, NorFlash, ReadNorFlash};
use pillarbox::{Clock, EncodedSize, Record, Resources, buffer_size};
use serde::Serialize;

/// Pages of the lane, and of the ring that it is compared with.
pub const PAGES: usize = 64;
/// The largest body.
pub const RECORD: usize = 64;
/// The outbox's buffer.
pub const BUFFER: usize = buffer_size(1, RECORD);

/// What keeps the tasks apart.
pub type Lock = CriticalSectionRawMutex;
/// All the memory of the measured outbox.
pub type Memory = Resources<'static, StubFlash, 1, RECORD, BUFFER, Lock, Ticks>;

/// What the programs post.
#[derive(Serialize, EncodedSize, Record)]
#[record(kind = 1)]
pub struct Reading {
    /// As a meter has it.
    pub watt_hours: u64,
    /// In tenths of a degree.
    pub temperature: i16,
}

const FLASH: usize = 0x1010_0000;
const FLASH_LEN: usize = 1024 * 1024;
const TIMER: *const u32 = 0x4005_4028 as *const u32;

/// A flash that the optimiser cannot see through: every byte is a volatile access, and nothing is inlined.
pub struct StubFlash;

impl ErrorType for StubFlash {
    type Error = Infallible;
}

impl ReadNorFlash for StubFlash {
    const READ_SIZE: usize = 1;

    async fn read(&mut self, offset: u32, bytes: &mut [u8]) -> Result<(), Infallible> {
        read(offset, bytes);
        Ok(())
    }

    fn capacity(&self) -> usize {
        FLASH_LEN
    }
}

impl NorFlash for StubFlash {
    const WRITE_SIZE: usize = 1;
    const ERASE_SIZE: usize = 4096;

    async fn erase(&mut self, from: u32, to: u32) -> Result<(), Infallible> {
        erase(from, to);
        Ok(())
    }

    async fn write(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Infallible> {
        write(offset, bytes);
        Ok(())
    }
}

impl MultiwriteNorFlash for StubFlash {}

fn cell(offset: u32) -> *mut u8 {
    (FLASH + offset as usize) as *mut u8
}

#[inline(never)]
fn read(offset: u32, bytes: &mut [u8]) {
    for (at, byte) in (offset..).zip(bytes) {
        // SAFETY: the program is measured and never run.
        *byte = unsafe { ptr::read_volatile(cell(at)) };
    }
}

#[inline(never)]
fn write(offset: u32, bytes: &[u8]) {
    for (at, byte) in (offset..).zip(bytes) {
        // SAFETY: the program is measured and never run.
        unsafe { ptr::write_volatile(cell(at), *byte) };
    }
}

#[inline(never)]
fn erase(from: u32, to: u32) {
    for at in from..to {
        // SAFETY: the program is measured and never run.
        unsafe { ptr::write_volatile(cell(at), 0xff) };
    }
}

/// A clock without embassy-time's driver, which belongs to the chip and not to the outbox.
#[derive(Clone)]
pub struct Ticks;

impl Clock for Ticks {
    fn uptime_ms(&self) -> u64 {
        // A division would be measured too.
        u64::from(word()) >> 10
    }
}

/// A number that the optimiser cannot know.
#[inline(never)]
pub fn word() -> u32 {
    // SAFETY: the program is measured and never run.
    unsafe { ptr::read_volatile(TIMER) }
}

/// Makes the optimiser keep whatever led to this number.
#[inline(never)]
pub fn keep(value: u32) {
    // SAFETY: the program is measured and never run.
    unsafe { ptr::write_volatile(FLASH as *mut u32, value) };
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
