//! gpuvm
