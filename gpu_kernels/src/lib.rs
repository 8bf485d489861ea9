//! gpuvm-gpu
