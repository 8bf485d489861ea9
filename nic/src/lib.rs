//! gpuvm-nic
