//! What the operations cost: exact counts, and time and energy modelled from typical NOR data sheets.

/// A chip programs at most this much at once; a longer program is a sequence of such aligned chunks.
pub const PROGRAM_CHUNK: usize = 256;

/// Time to program one started chunk of [`PROGRAM_CHUNK`] bytes.
pub const CHUNK_PROGRAM_US: f64 = 500.0;

/// Time to erase one page, whatever its size: a NOR sector's time does not depend on how small we simulate
/// it.
pub const PAGE_ERASE_US: f64 = 40_000.0;

/// Time to begin one read.
pub const READ_US: f64 = 1.0;

/// Time for each byte of a read.
pub const READ_BYTE_US: f64 = 0.05;

/// Power of the busy chip: 20 mA at 3.3 V.
pub const BUSY_WATTS: f64 = 0.020 * 3.3;

/// Operations that the chip has begun. A torn operation counts in full, one that was refused not at all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Bytes of all reads.
    pub bytes_read: u64,
    /// Programs, as the driver was called.
    pub programs: u64,
    /// Aligned 256-byte chunks that those programs began.
    pub chunks_programmed: u64,
    /// Bytes of all programs.
    pub bytes_programmed: u64,
    /// Pages erased: an erase over three pages counts three.
    pub erases: u64,
}

impl Counts {
    /// Modelled time for which the chip was busy, in microseconds.
    pub fn busy_us(&self) -> f64 {
        self.reads as f64 * READ_US
            + self.bytes_read as f64 * READ_BYTE_US
            + self.chunks_programmed as f64 * CHUNK_PROGRAM_US
            + self.erases as f64 * PAGE_ERASE_US
    }

    /// Modelled energy that the chip took, in microjoules.
    pub fn microjoules(&self) -> f64 {
        self.busy_us() * BUSY_WATTS
    }
}

impl core::ops::Sub for Counts {
    type Output = Self;

    /// What happened between two readings of the counts.
    fn sub(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            bytes_read: self.bytes_read - earlier.bytes_read,
            programs: self.programs - earlier.programs,
            chunks_programmed: self.chunks_programmed - earlier.chunks_programmed,
            bytes_programmed: self.bytes_programmed - earlier.bytes_programmed,
            erases: self.erases - earlier.erases,
        }
    }
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.reads += more.reads;
        self.bytes_read += more.bytes_read;
        self.programs += more.programs;
        self.chunks_programmed += more.chunks_programmed;
        self.bytes_programmed += more.bytes_programmed;
        self.erases += more.erases;
    }
}
