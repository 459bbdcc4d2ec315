//! Records on their way into the log, in the binary form of COPY: one stream for a whole transaction, which the server writes page by page
//! and not row by row.

use bytes::{BufMut, Bytes, BytesMut};
use pillarbox::Key;

use crate::intake::Arrival;
use crate::store::Position;

/// The columns, in the order in which [`Rows::push`] writes them.
pub(super) const COPY: &str = "COPY records (position, device, incarnation, counter, boot, uptime_ms, wall_ms, received_ms, \
                               lane, kind, body) FROM STDIN (FORMAT binary)";
const COLUMNS: i16 = 11;
/// What every such stream begins with: its name, no flags, no more header.
const BEGIN: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const END: i16 = -1;
/// Bytes of a row without its body.
const ROW: usize = 2 + 8 * (4 + 8) + 2 * (4 + 4) + 4;

/// The stream.
pub(super) struct Rows(BytesMut);

impl Rows {
    /// With room for so many rows and bytes of bodies.
    pub(super) fn with_room(rows: usize, bodies: usize) -> Self {
        let mut bytes = BytesMut::with_capacity(BEGIN.len() + rows * ROW + bodies + 2);
        bytes.put_slice(BEGIN);
        Self(bytes)
    }

    pub(super) fn push(&mut self, position: Position, device: i64, received_ms: u64, record: &Arrival) {
        let Key { incarnation, lane, counter } = record.key;
        let time = record.time;
        self.0.put_i16(COLUMNS);
        self.wide(position.0);
        self.wide(device as u64);
        self.wide(incarnation.into());
        self.wide(counter);
        self.wide(time.boot.into());
        self.wide(time.uptime_ms);
        match time.wall_ms {
            Some(wall_ms) => self.wide(wall_ms),
            None => self.0.put_i32(-1),
        }
        self.wide(received_ms);
        self.narrow(lane.into());
        self.narrow(record.kind.into());
        self.0.put_i32(record.body.len() as i32);
        self.0.put_slice(&record.body);
    }

    fn wide(&mut self, number: u64) {
        self.0.put_i32(8);
        self.0.put_u64(number);
    }

    fn narrow(&mut self, number: i32) {
        self.0.put_i32(4);
        self.0.put_i32(number);
    }

    pub(super) fn end(mut self) -> Bytes {
        self.0.put_i16(END);
        self.0.freeze()
    }
}
