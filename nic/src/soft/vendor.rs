//! Vendor syndromes of error completions: what this NIC says beside a syndrome.

/// Flushed because of an earlier failure.
pub const FLUSHED: u8 = 0x01;
/// The request cannot be parsed, or is longer than what the doorbell announced.
pub const MALFORMED: u8 = 0x10;
/// Its index is not that of its ring slot.
pub const WRONG_INDEX: u8 = 0x11;
/// It names another queue pair.
pub const WRONG_QUEUE_PAIR: u8 = 0x12;
/// An operation that this NIC does not do.
pub const UNSUPPORTED: u8 = 0x13;
/// More than 2^31 bytes.
pub const TOO_LONG: u8 = 0x15;
/// The local key, its bounds or its rights do not cover a data segment.
pub const LOCAL_KEY: u8 = 0x20;
/// The remote key, its bounds or its rights do not cover the remote side.
pub const REMOTE_KEY: u8 = 0x21;
/// The responder is destroyed or in a state in which it does not answer.
pub const NO_RESPONDER: u8 = 0x22;
/// The mover failed; see [`SoftNic::mover_failure`](super::SoftNic::mover_failure).
pub const MOVER: u8 = 0x30;
/// What is behind the remote addresses cannot be had, or not be written; its [`Backing`](crate::Backing) knows why.
pub const BACKING: u8 = 0x31;
/// Planted by [`SoftNic::inject`](super::SoftNic::inject).
pub const INJECTED: u8 = 0xf0;
