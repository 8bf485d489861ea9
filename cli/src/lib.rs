//! gpuvm-cli
