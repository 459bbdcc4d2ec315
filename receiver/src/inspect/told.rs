//! The scan's words in those of the views: the same, with names where the scan has numbers.

use pillarbox::scan::{Former, Half, Magic, Metadata, Ring};
use pillarbox::{Cause, Entry};

use super::findings::{self, address};
use super::view::{EntryView, Finding, FormerView, HalfView, RegionView, Where};
use crate::admin::IncarnationName;
use crate::intake::reason_name;

pub(super) fn where_of(ring: Ring) -> Where {
    match ring {
        Ring::Lane(lane) => Where::Lane(lane),
        Ring::DeadLetters => Where::DeadLetters,
        Ring::Unknown => Where::Unknown,
    }
}

pub(super) fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Rejected => "rejected",
        Cause::Expired => "expired",
        Cause::Blocking => "blocking",
    }
}

pub(super) fn entry_view(entry: &Entry) -> EntryView {
    EntryView {
        incarnation: IncarnationName(entry.incarnation),
        lane: entry.lane,
        reason: reason_name(entry.reason),
        first: entry.first,
        count: entry.len,
    }
}

pub(super) fn half_view(half: &Half) -> HalfView {
    HalfView {
        address: half.address,
        has_magic: half.magic == Magic::Exact,
        snapshots: half.snapshots,
        newest: half.newest,
        broken: half.broken,
        free: half.free,
    }
}

pub(super) fn region_view(origin: u32, metadata: &Metadata) -> RegionView {
    let Metadata { geometry, layout, .. } = metadata;
    RegionView {
        device: layout.device.to_string(),
        origin,
        bytes: u64::from(layout.pages()) * u64::from(geometry.page()),
        page: geometry.page(),
        word: geometry.word(),
        record_max: layout.record_max,
        sequence: metadata.sequence,
        incarnation: IncarnationName(metadata.incarnation),
        boot: metadata.boot,
        unfinished: metadata
            .unfinished
            .as_ref()
            .map(|unfinished| findings::unfinished(unfinished, &layout.device)),
        dead_letters: (layout.dead_letters.first, layout.dead_letters.pages),
    }
}

pub(super) fn former_view(former: &Former) -> FormerView {
    FormerView { incarnation: IncarnationName(former.incarnation), issued: former.issued.to_vec() }
}

impl std::fmt::Display for Where {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lane(lane) => write!(f, "lane {lane}"),
            Self::DeadLetters => f.write_str("the dead letters"),
            Self::Unknown => f.write_str("an unknown ring"),
        }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.address {
            Some(at) => write!(f, "{}: {}", address(at), self.says),
            None => f.write_str(&self.says),
        }
    }
}
