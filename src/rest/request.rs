//! The request for one record, written straight into the uplink's buffer.

use core::{
    fmt::{self, Display, Write},
    ops::Range,
};

use heapless::Vec;
use serde::Serialize;

/// Headers of a request: its content type, its key, and two of the handler's.
pub(super) const HEADERS: usize = 4;

/// A record cannot be made a request: its body does not decode, there is no room for it, or a path or header has a
/// character that does not belong there. It is passed over, and kept until it would block others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Unwritable;

impl Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the record cannot be written as a request")
    }
}

impl core::error::Error for Unwritable {}

/// A request that a handler writes. All of it lies in the uplink's `tx` buffer.
pub struct Request<'t> {
    buffer: &'t mut [u8],
    len: usize,
    parts: Parts,
}

/// Where the parts of a request lie.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) path: Range<usize>,
    pub(super) body: Range<usize>,
    headers: Vec<(&'static str, Range<usize>), HEADERS>,
}

impl<'t> Request<'t> {
    pub(super) fn new(buffer: &'t mut [u8]) -> Self {
        Self { buffer, len: 0, parts: Parts::default() }
    }

    pub(super) fn finish(self) -> Parts {
        self.parts
    }

    /// The path below the uplink's address: a text, or `format_args!("/meters/{meter}/readings")`.
    pub fn path(&mut self, path: impl Display) -> Result<(), Unwritable> {
        self.parts.path = self.text(path, |byte| byte.is_ascii_graphic())?;
        Ok(())
    }

    /// A header, at most two: `Authorization`, for example. Those of the body, and the key, are there already.
    pub fn header(&mut self, name: &'static str, value: impl Display) -> Result<(), Unwritable> {
        let value = self.text(value, |byte| byte.is_ascii_graphic() || byte == b' ')?;
        self.parts.headers.push((name, value)).map_err(|_| Unwritable)
    }

    /// A body of JSON.
    pub fn json<T: Serialize + ?Sized>(&mut self, body: &T) -> Result<(), Unwritable> {
        self.header("Content-Type", "application/json")?;
        let len = serde_json_core::to_slice(body, self.room()).map_err(|_| Unwritable)?;
        self.parts.body = self.advance(len);
        Ok(())
    }

    /// A body of bytes.
    pub fn bytes(&mut self, content_type: &str, body: &[u8]) -> Result<(), Unwritable> {
        self.header("Content-Type", content_type)?;
        self.room().get_mut(..body.len()).ok_or(Unwritable)?.copy_from_slice(body);
        self.parts.body = self.advance(body.len());
        Ok(())
    }

    fn room(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.len..).unwrap_or_default()
    }

    fn advance(&mut self, len: usize) -> Range<usize> {
        let start = self.len;
        self.len += len;
        start..self.len
    }

    /// A line break in a path or a header would begin another one.
    fn text(&mut self, text: impl Display, is_allowed: fn(u8) -> bool) -> Result<Range<usize>, Unwritable> {
        let mut line = Line { room: self.room(), len: 0, is_allowed };
        write!(line, "{text}").map_err(|_| Unwritable)?;
        let len = line.len;
        Ok(self.advance(len))
    }
}

impl Parts {
    /// The headers as they lie in the buffer.
    pub(super) fn headers<'b>(&self, buffer: &'b [u8]) -> Vec<(&'static str, &'b str), HEADERS> {
        self.headers.iter().map(|(name, value)| (*name, text(buffer, value))).collect()
    }
}

/// A text of a request.
pub(super) fn text<'b>(buffer: &'b [u8], range: &Range<usize>) -> &'b str {
    core::str::from_utf8(buffer.get(range.clone()).unwrap_or_default()).unwrap_or_default()
}

/// Text that is written into a buffer.
struct Line<'b> {
    room: &'b mut [u8],
    len: usize,
    is_allowed: fn(u8) -> bool,
}

impl Write for Line<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        let place = self.room.get_mut(self.len..end).ok_or(fmt::Error)?;
        if !text.bytes().all(self.is_allowed) {
            return Err(fmt::Error);
        }
        place.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}
