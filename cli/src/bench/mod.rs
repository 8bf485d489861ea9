//! `gpuvm bench`: what paging costs, measured, verified, and beside what the machine allows.

mod apps;
pub mod args;
mod bfs;
mod changing;
mod core_set;
mod door;
pub mod driver;
mod elastic;
mod faults;
mod files;
mod gps;
mod hits;
mod latency;
mod limits;
pub mod machine;
mod natural;
mod odds;
mod placement;
mod raw;
pub mod report;
mod resize;
mod take;
mod tenants;
mod tier;
mod tiered;
mod uvm;

use clap::Subcommand;

pub use crate::bench::machine::size;

use crate::bench::driver::Of;
use crate::bench::report::Report;
use crate::error::CliError;

/// Makes the subcommands of `gpuvm bench` from a benchmark each: its help, its name, its options.
macro_rules! benchmarks {
    ($($(#[$help:meta])* $name:ident: $options:ty,)*) => {
        /// What is measured.
        #[derive(Debug, Subcommand)]
        pub enum Bench {
            $($(#[$help])* $name(Of<$options>),)*
            /// The core set: limits, latency, faults, uvm, hits, bfs and placement, and tier where --peer names a neighbour GPU; a report file each.
            Core(core_set::CoreArgs),
            /// The other process of `tenants`.
            #[command(hide = true)]
            TenantsOther(tenants::OtherArgs),
        }

        /// Measures and prints.
        ///
        /// # Errors
        /// A machine that cannot be used, a kernel that did not run, wrong data, an output that cannot be written.
        pub fn run(bench: &Bench) -> Result<(), CliError> {
            let json = match bench {
                $(Bench::$name(args) => args.json,)*
                Bench::Core(args) => return core_set::run(args),
                Bench::TenantsOther(args) => return tenants::be_other(args),
            };
            Ok(measure(bench)?.print(json)?)
        }

        /// Measures, and prints nothing.
        ///
        /// # Errors
        /// As for [`run`]; [`Bench::Core`] is many reports, and refused.
        pub fn measure(bench: &Bench) -> Result<Report, CliError> {
            match bench {
                $(Bench::$name(args) => driver::measure(args),)*
                _ => Err(CliError::Options("this benchmark has more than one report".to_owned())),
            }
        }
    };
}

benchmarks! {
    /// Latency of one fault on an idle machine, by the number of threads that wait for it.
    Latency: latency::LatencyArgs,
    /// Throughput in pages a second: reads and writes of absent pages.
    Faults: faults::FaultsArgs,
    /// Accesses to resident pages, against a raw pointer.
    Hits: hits::HitsArgs,
    /// Limits of this machine: copies, bare page kernels, single loads.
    Limits: limits::LimitsArgs,
    /// Cold and sparse reads and writes through CUDA's managed memory. Needs an NVIDIA GPU.
    Uvm: uvm::UvmArgs,
    /// Breadth-first search, cold, beside managed memory and the host's memory in place.
    Bfs: bfs::BfsArgs,
    /// What reads of a page without a frame do (--placement): fetch it, read in place, or let the GPU decide, by traces of reads.
    Placement: placement::PlacementArgs,
    /// Memory of a neighbour GPU for pages that leave their frames (--borrow): how soon the lender can reclaim it, what lending
    /// costs the lender's own kernels, and what it is worth. Needs two GPUs, or the simulated one.
    Tier: tier::TierArgs,
    /// Applications, paged and against the usual alternatives: device memory, zero-copy host memory, managed
    /// memory, copies in chunks. Each result is compared with the processor's.
    Apps: apps::AppsArgs,
    /// Applications on several GPUs, each with a part of the work: over broadcast arrays, by loads of each other's memory, with copies
    /// between iterations, and over managed memory. All results are compared. Needs two GPUs, or simulated ones.
    Gps: gps::GpsArgs,
    /// Elastic buffers: growths in pre-mapped memory and others, beside what the driver takes for a bare handle; memory that buffers of many
    /// sizes waste.
    Elastic: elastic::ElasticArgs,
    /// Tiered buffers: sums over one whose chunks lie on the GPU in whole, in part and not at all, beside memory of the GPU and the wire; moves.
    Tiered: tiered::TieredArgs,
    /// Resizing the frame pool while a kernel faults: how soon memory is free, and what the kernel loses meanwhile.
    Resize: resize::ResizeArgs,
    /// Random rows of a large table, by the kernel of Python's `gpuvm.ops.take`.
    Take: take::TakeArgs,
    /// Two processes on one GPU: how soon one gets memory that the other uses for paging, and what that costs the other.
    Tenants: tenants::TenantsArgs,
    /// Ordinary loops over `a[i]`, beside the raw pointer, the host's memory in place and managed memory.
    Natural: natural::NaturalArgs,
    /// Pages of a file larger than its page cache, random and in order, beside bare reads of the file by io_uring at the same depth.
    Files: files::FilesArgs,
}
