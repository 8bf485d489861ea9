//! The Rust programs of documents, as tests.

/// The program of the guide to ports is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../PORTING.md")]
pub struct Porting;
