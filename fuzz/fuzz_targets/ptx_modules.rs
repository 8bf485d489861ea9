#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gpuvm_fuzz::ptx_modules(data));
