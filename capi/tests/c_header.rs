//! The C header names what the library has.

#[test]
fn every_number_has_the_name_that_the_header_gives_it() {
    let header = xtask::header().expect("the header");
    let codes = header.lines().filter_map(|line| {
        let (name, number) = line.trim().strip_suffix(',')?.split_once(" = ")?;
        let number: i32 = number.parse().ok()?;
        name.starts_with("GPUVM_CODE_").then_some((name, number))
    });
    let codes: Vec<_> = codes.collect();
    assert!(codes.len() > 30, "{codes:?}");
    let name_of = |number: i32| {
        // SAFETY: the library's texts end with a zero and stay for good.
        unsafe { std::ffi::CStr::from_ptr(gpuvm_capi::gpuvm_code_name(number)) }
    };
    for (name, number) in &codes {
        assert_eq!(name_of(*number).to_str(), Ok(*name), "{number}");
    }
    for other in [-1, codes.len() as i32] {
        assert_eq!(name_of(other), c"GPUVM_CODE_UNKNOWN");
    }
}
