//! Device code that would be wrong does not compile, with a sentence that says what to write; what plain arrays
//! allow does compile and is right.

use crate::common::{small, with_causes};
use gpuvm::{Error, GpuError, LaunchConfig, Placement, Vm};

/// Compiles `body` as line 4 of a kernel; its error must name that line and say `sentence`.
fn refuses(vm: &Vm, body: &str, sentence: &str) {
    let source = format!(
        "#include <gpuvm/gpuvm.cuh>\nstruct three {{ unsigned a, b, c; }};\n\
         __global__ void misuse(gpuvm::array<unsigned> a, gpuvm::array<const unsigned> c, unsigned* out) {{\n{body}\n}}\n"
    );
    match vm.compile("misuse.cu", &source, &["misuse"]) {
        Ok(_) => panic!("`{body}` compiles"),
        Err(Error::Gpu {
            source: GpuError::Compile { log, .. },
            ..
        }) => {
            assert!(log.contains(sentence), "`{body}`: no `{sentence}` in\n{log}");
            // Each compiler has its own way to name a line.
            let named = ["misuse.cu:4", "misuse.cu(4)", "line 4 of misuse.cu"];
            assert!(
                named.iter().any(|line| log.contains(line)),
                "`{body}`: no line in\n{log}"
            );
        }
        Err(error) => panic!("`{body}`: {}", with_causes(&error)),
    }
}

#[test]
fn an_element_that_is_kept_copied_or_pointed_at() {
    let vm = small(4).placement(Placement::Fetch).build().unwrap();
    let kept = "a paged element cannot be kept: write 'T x = a[i];'";
    refuses(&vm, "auto x = a[1]; *out = 1;", kept);
    refuses(&vm, "auto f = [](auto x) { return 1u; }; *out = f(a[1]);", kept);
    refuses(
        &vm,
        "auto* p = &a[1]; *out = *p;",
        "a paged element has no address: hold its page with 'auto s = a.pin(i);'",
    );
    // A reference to an element that is gone at the semicolon.
    refuses(&vm, "auto&& x = a[1]; *out = x;", "error");
    refuses(&vm, "unsigned& x = a[1]; *out = x;", "error");
}

#[test]
fn a_write_to_what_is_only_read() {
    let vm = small(4).placement(Placement::Fetch).build().unwrap();
    let only_read = "error: ";
    refuses(&vm, "c[1] = 2;", only_read);
    refuses(&vm, "c[1] += 2;", only_read);
    refuses(&vm, "c[1]++;", only_read);
    refuses(&vm, "c.atomic_add(1, 2);", "atomic_add");
    refuses(&vm, "auto s = c.pin(1); s[0] = 2;", only_read);
    let only_reads = "a cursor over array<const T> only reads";
    refuses(&vm, "auto s = c.cursor(); s.write(1, 2);", only_reads);
    refuses(&vm, "const gpuvm::array<unsigned>& r = a; r[1] = 2;", only_read);
    refuses(&vm, "const auto r = a; r[1] += 2;", only_read);
}

#[test]
fn elements_that_cannot_be_paged_and_atomics_that_are_not() {
    let vm = small(4).placement(Placement::Fetch).build().unwrap();
    let divide = "the element's size must divide the page";
    refuses(&vm, "gpuvm::array<three>* t = nullptr; *out = t->size();", divide);
    refuses(&vm, "gpuvm::array<const three>* t = nullptr; *out = t->size();", divide);
    let atomics = "atomics work on elements of 4 and 8 bytes";
    refuses(
        &vm,
        "gpuvm::array<unsigned char>* t = nullptr; t->atomic_add(0, 1);",
        atomics,
    );
    refuses(
        &vm,
        "gpuvm::array<unsigned short>* t = nullptr; t->atomic_exch(0, 1);",
        atomics,
    );
}

#[test]
fn a_span_or_a_cursor_that_is_copied() {
    let vm = small(4).placement(Placement::Fetch).build().unwrap();
    refuses(&vm, "auto s = a.pin(1); auto t = s; *out = t[0];", "deleted");
    refuses(&vm, "auto s = a.cursor(); auto t = s; *out = t[0];", "deleted");
}

const ALLOWED: &str = r#"
#include <gpuvm/gpuvm.cuh>
struct alignas(8) pair { unsigned first; float second; };
enum class colour : unsigned { red, green };
__device__ unsigned twice(unsigned x) { return 2 * x; }
template <class Array> __device__ unsigned through_const(const Array& a, int i) { return a[i]; }

__global__ void allowed(gpuvm::array<unsigned> a, gpuvm::array<unsigned> b, gpuvm::array<const unsigned> c,
                        gpuvm::array<float> f, gpuvm::array<pair> p, gpuvm::array<long long> w,
                        gpuvm::array<int> s, unsigned* out) {
    int i = 3;
    unsigned short j = 4;
    unsigned long long k = 5;
    unsigned n = 0;
    // Reads, by any index type.
    unsigned x = a[i];
    const unsigned y = a[j];
    unsigned z{a[k]};
    auto from_const = c[i];
    out[n++] = x * 10000 + y * 100 + z;
    out[n++] = from_const + through_const(a, 3) + through_const(c, 4);
    out[n++] = a[i] + b[j];
    out[n++] = (a[i] > b[0]) + 2 * (a[i] == 3) + 4 * (a[i] != c[i]) + 8 * !a[0] + 16 * (a[1] && b[1]);
    out[n++] = x ? a[i] : b[j];
    out[n++] = x ? a[i] : c[j];
    out[n++] = twice(a[k]) + a[a[i]] + static_cast<unsigned>(f[i] * 2) - -static_cast<int>(a[1]);
    if (a[i]) out[n++] = 77;
    switch (a[i]) {
        case 3: out[n++] = 78; break;
        default: out[n++] = 0;
    }
    // Writes.
    a[10] = 5;
    a[11] = b[4];
    a[12] = c[4];
    a[13] = b[5] = 50;
    a[14] = a[15] = a[10];
    out[n++] = a[20]++;
    out[n++] = ++a[20];
    out[n++] = a[20]--;
    out[n++] = --a[20];
    out[n++] = (a[21] += 4);
    a[22] -= 2; a[23] *= 3; a[24] /= 5; a[25] %= 7; a[26] &= 24; a[27] |= 4; a[28] ^= 1; a[29] <<= 2; a[30] >>= 1;
    f[7] += 0.5;
    w[3] -= 10;
    pair q = p[2];
    q.second += 1;
    p[3] = q;
    p[4] = pair{9, 2.5f};
    out[n++] = p[3].operator pair().first;
    // The old values of atomics.
    out[n++] = a.atomic_add(40, 2) + a.atomic_max(41, 100) + a.atomic_min(42, 1) + a.atomic_or(43, 64) + a.atomic_exch(44, 9) + a.atomic_cas(45, 45, 1);
    out[n++] = w.atomic_add(40, -50) < 0;
    f.atomic_add(41, 0.25f);
    // Least and greatest by the element's own order: a set top bit is a sign or is not.
    a.atomic_max(46, 1u << 31);
    a.atomic_min(47, 1u << 31);
    s.atomic_max(0, -5);
    s.atomic_min(1, -5);
    s.atomic_max(2, 5);
    s.atomic_min(3, 5);
    w.atomic_max(42, -1ll << 40);
    w.atomic_min(43, -1ll << 40);
    w.atomic_max(44, 1ll << 40);
    f.atomic_min(42, -1.5f);
    f.atomic_max(43, -1.5f);
    printf("element %u of %llu\n", static_cast<unsigned>(a[i]), a.size());
    a[b[50]] = 500;
    a[b[51]] += c[b[52]];
    out[n++] = a[a[b[3]]];
    out[n++] = n;
}
"#;

#[test]
fn what_plain_arrays_allow_compiles_and_is_right() {
    let vm = small(4).placement(Placement::Fetch).build().unwrap();
    let kernel = vm
        .compile("allowed.cu", ALLOWED, &["allowed"])
        .unwrap_or_else(|error| panic!("{}", with_causes(&error)))
        .kernel("allowed")
        .unwrap();
    let words = |n: u32| vm.region::<u32>().from_iter(0..n).unwrap();
    let (a, b, c) = (words(5000), words(3000), words(3000));
    let f = vm.region::<f32>().from_iter((0..100).map(|i| i as f32)).unwrap();
    let pairs = (0..10u32).map(|i| [i, (i as f32).to_bits()]).collect::<Vec<_>>();
    let p = vm.region::<[u32; 2]>().from_slice(&pairs).unwrap();
    let w = vm.region::<i64>().from_iter((0..100).map(|i| -i)).unwrap();
    let s = vm.region::<i32>().zeroed(10).unwrap();
    let out = vm.buffer::<u32>(32).unwrap();
    let launch = kernel
        .launch(LaunchConfig::new(1, 1), (&a, &b, &c, &f, &p, &w, &s, &out))
        .unwrap();
    launch.sync().unwrap_or_else(|error| panic!("{}", with_causes(&error)));
    let expected = [
        30_405,
        10,
        7,
        1 + 2 + 8 + 16,
        3,
        3,
        10 + 3 + 6 + 1,
        77,
        78,
        20,
        22,
        22,
        20,
        25,
        2,
        40 + 41 + 42 + 43 + 44 + 45,
        1,
        3,
        18,
    ];
    assert_eq!(out.to_vec().unwrap()[..expected.len()], expected);
    let a = a.to_vec().unwrap();
    assert_eq!(a[10..16], [5, 4, 4, 50, 5, 5]);
    assert_eq!(a[20..31], [20, 25, 20, 69, 4, 4, 24, 31, 29, 116, 15]);
    assert_eq!(a[50..52], [500, 51 + 52]);
    assert_eq!(a[40..46], [42, 100, 1, 43 | 64, 9, 1]);
    assert_eq!(a[46..48], [1 << 31, 47]);
    assert_eq!(s.to_vec().unwrap()[..4], [0, -5, 5, 0]);
    assert_eq!(b.to_vec().unwrap()[5], 50);
    let f = f.to_vec().unwrap();
    assert_eq!((f[7], f[41]), (7.5, 41.25));
    assert_eq!((f[42], f[43]), (-1.5, 43.0));
    let w = w.to_vec().unwrap();
    assert_eq!((w[3], w[40]), (-13, -90));
    assert_eq!(w[42..45], [-42, -1 << 40, 1 << 40]);
    let p = p.to_vec().unwrap();
    assert_eq!((p[3], p[4]), ([2, 3f32.to_bits()], [9, 2.5f32.to_bits()]));
}
