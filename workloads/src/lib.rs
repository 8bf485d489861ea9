//! gpuvm-workloads
