//! Programs that the compiler refuses, since they would use memory that a GPU has, or elements that are no plain data.
//!
//! Here, since what a test of this kind checks is built once more for it, and few packages depend on as little as this one.

#[test]
fn misuse_of_lent_memory_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/refused/*.rs");
}
