//! Memory nodes and their clients over a real RDMA device, which `GPUVM_TEST_RDMA` names.

mod common;
mod ends;
mod rdma;
mod two_machines;
