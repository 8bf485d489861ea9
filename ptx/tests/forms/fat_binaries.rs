//! PTX in what nvcc builds.

/// By nvcc 13.0, which compresses it.
#[test]
fn what_nvcc_compresses_is_its_ptx() {
    let found = gpuvm_ptx::embedded(include_bytes!("../inputs/plain.fatbin")).unwrap();
    let text = String::from_utf8(found[0][0].text.clone()).unwrap();
    assert_eq!((found.len(), found[0].len(), found[0][0].architecture), (1, 1, 80));
    let module = gpuvm_ptx::Module::parse(&text).unwrap();
    assert_eq!(module.functions().filter(|function| function.is_entry).count(), 7);
}
