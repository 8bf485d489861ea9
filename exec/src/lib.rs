//! The library that `gpuvm exec` has the loader put before all others of a program. The program is not rebuilt, and knows nothing of it.
//!
//! | what the program does | what becomes of it |
//! |---|---|
//! | loads code that has PTX | the text is rewritten ([`gpuvm_ptx`]), and loaded in its place or when pages are looked up |
//! | allocates managed memory | it gets addresses of a window, where the GPU has memory, too; or where pages are a region's |
//! | launches a kernel | it runs as it was written; or it looks pages up, or finds all at home, in the order of the program's stream |
//! | reads or writes managed memory on the host | the first access faults: what launches wrote is copied, or brought home |
//!
//! `docs/PTX.md` says what holds for such programs.

mod book;
mod code;
mod driver;
mod early;
mod error;
mod faults;
mod host_functions;
mod images;
mod ranges;
mod resident;
mod resolve;
pub mod served;
pub mod settings;
mod slab;
mod state;
mod summary;
pub mod system;
mod timing;
mod window;
mod within;
