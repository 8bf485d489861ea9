#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gpuvm_fuzz::command_line(data));
