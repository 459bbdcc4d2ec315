//! An outbox.
#![no_std]
