//! What is dropped while launches use it.

use super::{Churning, bench_of, handle, hog, refused};

#[test]
fn memory_of_what_was_dropped_is_for_others_once_its_launch_has_ended_though_that_one_is_kept() {
    let bench = bench_of(32);
    let (vm, size) = (&bench.vm, handle(&bench.vm));
    let dropped = vm.elastic::<u32>(100 * size).length(20 * size).build().unwrap();
    let churning = Churning::begin(&bench, &dropped, 64);
    drop(dropped);
    let _hog = hog(vm);
    let other = vm.elastic_buffer::<u32>(100 * size).unwrap();
    assert!(
        refused(other.grow(16 * size)).contains("GPU memory"),
        "the launch uses it still"
    );
    churning.tell();
    churning.launch.sync().unwrap();
    other.grow(16 * size).unwrap();
    drop(churning);
}
