#![doc = include_str!("../README.md")]
#![no_std]
#![warn(missing_docs)]
// The formats are one piece; a program on the host uses only the reading half of it.
#![cfg_attr(not(feature = "outbox"), allow(dead_code))]

// The macros first, so that the others see them.
#[macro_use]
mod fmt;

// What a record is, and by which name it is known.
mod key;
mod record;
#[cfg(feature = "schema")]
pub mod schema;
mod stored;

// What lies in the flash: readable by device and host alike.
mod account;
mod codec;
mod geometry;
mod io;
mod item;
mod layout;
mod ledger;
mod list;
mod pages;
pub mod scan;
mod snapshots;

// What goes over the wire: written by one end, read by the other.
pub mod wire;

// The way of a record on the device: enqueue, ring, dispatch.
#[cfg(feature = "outbox")]
mod backoff;
#[cfg(feature = "http")]
mod batch;
#[cfg(feature = "outbox")]
mod clock;
#[cfg(feature = "outbox")]
mod config;
#[cfg(feature = "outbox")]
mod dead_letters;
#[cfg(feature = "outbox")]
mod dispatcher;
#[cfg(feature = "outbox")]
mod drain;
#[cfg(feature = "outbox")]
mod error;
#[cfg(feature = "outbox")]
mod event;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "embassy-net")]
mod link;
#[cfg(feature = "outbox")]
mod metadata;
#[cfg(feature = "outbox")]
mod outbox;
#[cfg(feature = "outbox")]
mod policy;
#[cfg(feature = "outbox")]
mod random;
#[cfg(feature = "http")]
mod rest;
#[cfg(feature = "outbox")]
mod ring;
#[cfg(feature = "outbox")]
mod rings;
#[cfg(feature = "outbox")]
mod settle;
#[cfg(feature = "outbox")]
mod stats;
#[cfg(feature = "outbox")]
mod store;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "outbox")]
mod trigger;
#[cfg(feature = "outbox")]
mod uplink;
#[cfg(feature = "outbox")]
mod walk;

pub use account::{Entry, Reason};
pub use geometry::Geometry;
pub use key::{DeviceId, DeviceIdError, DeviceKey, Key, KeyError};
pub use layout::{LaneSpan, Layout};
pub use pillarbox_derive::Schema;
pub use record::{EncodedSize, Kind, Record, assert_fits, varint_max};
#[cfg(feature = "schema")]
pub use schema::Schema;
pub use stored::{Cause, Stored, Tag, Timestamp};

#[cfg(feature = "embassy-net")]
pub use self::link::watch_link;
#[cfg(feature = "tls")]
pub use self::tls::{Tls, Trust};
#[cfg(feature = "outbox")]
pub use self::{
    backoff::Pace,
    clock::{Clock, EmbassyClock, Sleep},
    config::{Config, LaneConfig, WhenFull, buffer_size},
    dead_letters::DeadLetters,
    dispatcher::Dispatcher,
    drain::{Drain, Pick, Rejection, Window},
    error::{EnqueueError, Error, LayoutError, OpenError},
    event::{Event, Subscriber},
    outbox::{Outbox, Resources, new},
    policy::{Order, Policy},
    stats::{Depth, GivenUp, LaneStats, Stats},
    store::{Errand, wipe},
    trigger::Trigger,
    uplink::{Failure, LaneSet, Split, Uplink},
};
#[cfg(feature = "http")]
pub use self::{
    batch::BatchUplink,
    http::{Http, Reply, Timeouts, UrlError},
    rest::{Handler, JsonHandler, Outcome, RawHandler, Request, RestUplink, Unwritable},
};
