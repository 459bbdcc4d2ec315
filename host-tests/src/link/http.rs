//! As much HTTP/1.1 as a server of one POST needs: a request with a Content-Length, an answer that looks real.

use super::Reply;

/// Headers beyond this are nobody's.
const HEAD_MAX: usize = 8 * 1024;
/// Bodies beyond this are refused with 413.
const BODY_MAX: usize = 256 * 1024;
const HEADERS_MAX: usize = 32;

/// The time of day when a world begins: 2026-01-01T00:00:00Z.
pub const WORLD_BEGAN_S: u64 = 1_767_225_600;

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More has to come.
    Incomplete,
    /// It is all there.
    Complete {
        /// Where the body begins.
        head: usize,
        /// Where the request ends.
        end: usize,
    },
    /// No such request is served; this is the status to say so with.
    Bad(u16),
}

/// Looks at the bytes that have come.
pub fn progress(bytes: &[u8]) -> Progress {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(bytes) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) if bytes.len() > HEAD_MAX => return Progress::Bad(431),
        Ok(httparse::Status::Partial) => return Progress::Incomplete,
        Err(_) => return Progress::Bad(400),
    };
    if request.method != Some("POST") {
        return Progress::Bad(405);
    }
    let named = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("content-length");
    let Some(length) = request.headers.iter().find(named) else {
        return Progress::Bad(411);
    };
    match core::str::from_utf8(length.value).ok().and_then(|text| text.trim().parse::<usize>().ok()) {
        None => Progress::Bad(400),
        Some(length) if length > BODY_MAX => Progress::Bad(413),
        Some(length) if bytes.len() < head + length => Progress::Incomplete,
        Some(length) => Progress::Complete { head, end: head + length },
    }
}

/// What happens to the connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// It stays open.
    KeepAlive,
    /// The answer says that it is closed.
    Close,
}

/// The bytes of an answer.
pub fn answer(now_ms: u64, reply: &Reply, content_type: &str, after: After) -> Vec<u8> {
    use std::io::Write;
    let mut bytes = Vec::with_capacity(200 + reply.body.len());
    let _ = write!(
        bytes,
        "HTTP/1.1 {} {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nDate: {}\r\n",
        reply.status,
        phrase(reply.status),
        reply.body.len(),
        date(WORLD_BEGAN_S + now_ms / 1000)
    );
    if let Some(seconds) = reply.retry_after_s {
        let _ = write!(bytes, "Retry-After: {seconds}\r\n");
    }
    if after == After::Close {
        bytes.extend_from_slice(b"Connection: close\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&reply.body);
    bytes
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        425 => "Too Early",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Unnamed",
    }
}

/// Seconds since 1970 as the 29 characters of a Date header.
pub fn date(unix_s: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = unix_s / 86_400;
    // Years that begin in March have their leap day last, so that it needs no special case; 719468 days before 1970.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    format!(
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        unix_s / 3600 % 24,
        unix_s / 60 % 60,
        unix_s % 60
    )
}
