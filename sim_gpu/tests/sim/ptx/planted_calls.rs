//! The same mistakes in kernels that call for their pages. A library of a few lines stands for the device library's: it says where a page is at
//! every other call, counts pins, and marks the pages that are written.

use super::planted::{ALL, KERNELS, PAGE, Paged, wrong_by};
use gpuvm_gpu::Source;
use gpuvm_ptx::{TableLayout, rewrite_to_calls};

const LIBRARY: &str = r#"
#define GPUVM_HAS_CALLS 1
using number = unsigned long long;
struct told {
    number base;
    const number* entries;
    unsigned char* marks;
    unsigned* pins;
};
struct call {
    const told* of;
    number address;
    bool pinned, waits;
};
__device__ number pinned_place(call* c) {
    number page = (c->address - c->of->base) / 4096;
    atomicAdd(c->of->pins + page, 1u);
    c->pinned = true;
    return c->address + c->of->entries[page];
}
extern "C" __device__ number gpuvm_call_first(number at, number launch, number address, unsigned how) {
    call* c = reinterpret_cast<call*>(at);
    *c = call{reinterpret_cast<const told*>(launch), address, false, (threadIdx.x & 1) != 0};
    number page = (address - c->of->base) / 4096;
    if (page >> 21 || (how & 255) == 0 || address % (how & 255)) __trap();
    if (how & 256) *static_cast<volatile unsigned char*>(c->of->marks + page) = 1;
    return c->waits ? 0 : pinned_place(c);
}
extern "C" __device__ number gpuvm_call_next(number at) {
    call* c = reinterpret_cast<call*>(at);
    if (!c->pinned) return pinned_place(c);
    atomicSub(c->of->pins + (c->address - c->of->base) / 4096, 1u);
    return 1;
}
"#;

fn layout() -> TableLayout {
    TableLayout::new(PAGE).unwrap()
}

/// What is wrong with the kernels, in which `wanted` is replaced.
fn wrong(kernels: &[&str], wanted: &str, instead: &str) -> Option<String> {
    let mut rewritten = rewrite_to_calls(KERNELS.as_bytes(), &layout(), 32).unwrap();
    assert!(rewritten.text.contains(wanted), "{wanted}\n{}", rewritten.text);
    rewritten.text = rewritten.text.replace(wanted, instead);
    let library = Source::new("library.cu", LIBRARY);
    wrong_by(kernels, |mode| Paged::with(&rewritten, layout(), mode, Some(&library)))
}

fn is_seen(kernels: &[&str], wanted: &str, instead: &str) {
    assert!(
        wrong(kernels, wanted, instead).is_some(),
        "`{wanted}` => `{instead}` was not seen"
    );
}

#[test]
fn kernels_that_call_do_what_they_did() {
    assert_eq!(wrong(&ALL, ".version 8.0", ".version 8.0"), None);
}

#[test]
fn a_guard_that_is_dropped_is_seen() {
    // That of the access, without which it goes to no place.
    is_seen(&["guarded"], "@%gpuvm_p st.global.u32", "st.global.u32");
    // That of the calls: elements that nobody loads or stores.
    is_seen(
        &["guarded"],
        "setp.lt.and.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w, %p1;",
        "setp.lt.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w;",
    );
}

#[test]
fn an_offset_that_is_added_twice_or_not_at_all_is_seen() {
    is_seen(
        &["alone"],
        "st.global.u32 [%gpuvm_e], %r9",
        "st.global.u32 [%gpuvm_e+16], %r9",
    );
    is_seen(&["alone"], "add.s64 %gpuvm_a, %rd4, 4;", "mov.b64 %gpuvm_a, %rd4;");
}

#[test]
fn a_generic_address_of_shared_memory_that_calls_is_seen() {
    is_seen(
        &["generic"],
        "setp.lt.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w;",
        "setp.lt.u32 %gpuvm_p, 0, %gpuvm_w;",
    );
}

#[test]
fn an_address_of_the_window_that_does_not_call_is_seen() {
    is_seen(
        &["pairs"],
        "setp.lt.u32 %gpuvm_p, %gpuvm_h, %gpuvm_w;",
        "setp.lt.u32 %gpuvm_p, 1, 0;",
    );
}

#[test]
fn a_store_that_does_not_say_so_is_seen() {
    is_seen(&["alone"], "mov.b32 %gpuvm_n, 260;", "mov.b32 %gpuvm_n, 4;");
    is_seen(&["pairs"], "mov.b32 %gpuvm_n, 264;", "mov.b32 %gpuvm_n, 8;");
}

#[test]
fn an_access_that_is_not_made_again_is_seen() {
    is_seen(&["alone"], "@%gpuvm_p bra $gpuvm_again_", "@!%gpuvm_p bra $gpuvm_over_");
}

#[test]
fn an_access_that_is_made_at_its_own_address_too_is_seen() {
    is_seen(&["neighbours"], "\tbra $gpuvm_over_", "\t@%gpuvm_p bra $gpuvm_over_");
}

#[test]
fn a_pin_that_is_not_given_back_is_seen() {
    is_seen(
        &["alone"],
        "call (gpuvm_1), gpuvm_call_next, (gpuvm_0);",
        "st.param.b64 [gpuvm_1], 1;",
    );
}
