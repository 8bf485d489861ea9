//! Bindings of libibverbs and librdmacm: what is used of them here, by hand, under the names of their headers.
//!
//! Structures and constants are those of <infiniband/verbs.h> and <rdma/rdma_cma.h> of rdma-core; a test compares each with the
//! headers. Parts that nothing here reads have names that begin with `unused`. What a field means is said in the man page of the call
//! that takes or fills its structure, and what a call needs in its own.
//!
//! The libraries are loaded when one of their functions is called first. Where a library or the function is missing, the call fails
//! as others of its kind do, by a null pointer, -1, or the errno, with errno `EOPNOTSUPP`. [`load_verbs`] and
//! [`load_connection_manager`] tell why.
#![allow(non_camel_case_types, reason = "the headers' names")]

mod calls;
mod cm;
mod constants;
mod list;
mod load;
mod verbs;

pub use calls::*;
pub use cm::*;
pub use constants::*;
pub use list::{DeviceList, device_name};
pub use load::{MissingLibrary, load_connection_manager, load_verbs};
pub use verbs::*;
