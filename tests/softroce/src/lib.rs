//! Runs programs that need SoftRoCE, the RDMA device that the Linux kernel emulates over any network device.
//!
//! [`Machine::get`] gives a machine with such a device: this one if it has one, else a virtual machine under QEMU that
//! boots a distribution's kernel and sees this machine's file system, so that the same programs run there unchanged.
//! [`Machine::boot_two`] gives two virtual machines with a cable between them.
//!
//! ```no_run
//! use std::time::Duration;
//! use softroce::{Machine, Options};
//!
//! let machine = Machine::get(&Options::default())?;
//! let mut server = machine.spawn("rping -s -v")?;
//! let client = machine.run(&format!("rping -c -C 3 -a {}", machine.address()), Duration::from_secs(20))?;
//! client.success()?;
//! server.wait_for("ping", Duration::from_secs(5))?;
//! machine.check_kernel()?;
//! # Ok::<(), softroce::Error>(())
//! ```

mod agent;
mod clean;
mod error;
mod executor;
mod initramfs;
mod job;
mod kernel;
mod machine;
pub mod native;
mod options;
mod protocol;
mod qemu;
pub mod scenarios;
pub mod suite;
mod tools;

pub use agent::serve;
pub use error::{Error, chain};
pub use job::{Input, Job, Line, Output};
pub use machine::Machine;
pub use options::Options;
pub use protocol::Stream;
pub use qemu::kill_all_machines;
pub use tools::built;
