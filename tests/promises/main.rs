//! What the library promises, a module for each promise. One program, since each costs a link of the whole library.
//! `GPUVM_TEST_GPU=cuda:0 cargo test --release --test promises no_lost_write::` runs one module on a GPU.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/mock_gpu.rs"]
mod mock_gpu;
#[path = "../common/program.rs"]
mod program;

mod advice;
mod bookkeeping;
mod both_transports;
mod broadcast;
mod calls;
mod collapsed;
mod completions_are_checked;
mod cursors;
mod direct;
mod drop_in_any_order;
mod elastic;
mod every_wait_ends;
mod faults_heal;
mod file_cache;
mod flush_and_host_access;
mod flush_reads;
mod fuzz_targets;
mod gpu_lost;
mod in_place;
mod inside_the_region;
mod integrity;
mod kernel_errors;
mod lenders;
mod look_up;
mod many_regions;
mod many_requests_in_flight;
mod mapped_files;
mod memory_node;
mod metrics;
mod misuse_does_not_compile;
mod never_evicted;
mod nic_engine;
mod nic_limits;
mod no_lost_write;
mod overwrite;
mod planted_bugs;
mod posted_copies;
mod precompiled;
mod prefetch;
mod profiles;
mod random_programs;
mod read_ahead;
mod replicas;
mod resize;
mod scoped_borrows;
mod seeds;
mod several_nics;
mod shared_regions;
mod short_memory;
mod slots;
mod stores_in_place;
mod tenants;
mod tiered;
mod timeline;
mod two_gpus;
mod untyped;
mod victims;
mod wrapping;
