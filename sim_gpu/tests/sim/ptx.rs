//! PTX of compilers on the simulated GPU, after it was rewritten with a window in which nothing is paged.

mod arithmetic;
mod planted;
mod planted_calls;

use std::sync::Arc;

use crate::common::{Bed, bed_on, builder};
use gpuvm_gpu::{CompileOptions, DeviceMemory, Gpu, GpuError, LaunchConfig, Module, ParamInfo, PtxKernel, Source};
use gpuvm_ptx::{LAUNCH, Rewritten, TableLayout, WINDOW, Window, rewrite};
use gpuvm_sim_gpu::{Mode, SimGpu, SimGpuBuilder, SimOptions};

/// A file of ptx/tests/inputs.
fn input(name: &str) -> String {
    let path = format!("{}/../ptx/tests/inputs/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// All kernels of a text, which is rewritten with a window in which nothing is paged, or with that which is given.
fn load(gpu: &SimGpu, text: &str, window: Window) -> Result<Arc<dyn Module>, GpuError> {
    let rewritten = rewrite(text.as_bytes(), &TableLayout::new(4096).unwrap()).unwrap();
    load_rewritten(gpu, &rewritten, window)
}

/// All kernels of a text that was rewritten.
fn load_rewritten(gpu: &SimGpu, rewritten: &Rewritten, window: Window) -> Result<Arc<dyn Module>, GpuError> {
    load_calling(gpu, rewritten, window, None)
}

/// All kernels of a text that was rewritten, which may call: a library, and bytes of a parameter behind their own.
fn load_calling(
    gpu: &SimGpu,
    rewritten: &Rewritten,
    window: Window,
    library: Option<(&Source, u32)>,
) -> Result<Arc<dyn Module>, GpuError> {
    let entries = rewritten.report.functions.iter().filter(|function| function.is_entry);
    let kernels: Vec<PtxKernel> = entries
        .map(|function| {
            let own = function.params.iter();
            let own = own.map(|param| ParamInfo::of_ptx(param.bytes, param.align, &param.type_name));
            let last = library.map(|(_, bytes)| ParamInfo::of_ptx(bytes, 16, LAUNCH));
            PtxKernel {
                name: function.name.clone(),
                symbol: function.name.clone(),
                params: own.chain(last).collect(),
            }
        })
        .collect();
    let options = CompileOptions::default();
    let library = library.map(|(source, _)| (source, &options));
    let variables: [(&str, &[u8]); 1] = [(WINDOW, &window.to_bytes())];
    gpu.load_ptx("test.ptx", &rewritten.text, &kernels, &variables, library)
}

fn bed(builder: SimGpuBuilder, text: &str) -> Bed {
    let gpu = builder.build().unwrap();
    let module = load(&gpu, text, Window::default()).unwrap_or_else(|error| panic!("{error}"));
    let stream = gpu.stream().unwrap();
    Bed { module, stream, gpu }
}

/// Both modes.
fn beds(text: &str) -> [Bed; 2] {
    [bed(builder(), text), bed(builder().mode(Mode::Seeded(3)), text)]
}

fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|word| f32::from_bits(*word)).collect()
}

const N: u64 = 1000;

#[test]
fn loops_of_nvcc_run() {
    for bed in beds(&input("plain.ptx")) {
        let (x, y) = (bed.words(N as usize), bed.words(N as usize));
        let value = |i: u64| (i % 17) as f32;
        for i in 0..N {
            bed.gpu.write(x.addr() + i * 4, &value(i).to_ne_bytes()).unwrap();
            bed.gpu.write(y.addr() + i * 4, &1f32.to_ne_bytes()).unwrap();
        }
        let [x_at, y_at, n] = [x.addr(), y.addr(), N].map(u64::to_ne_bytes);
        let config = LaunchConfig::linear(3, 64);
        bed.outcome("axpy", &config, &[&x_at, &y_at, &2f32.to_ne_bytes(), &n])
            .unwrap();
        let wanted: Vec<f32> = (0..N).map(|i| 1.0 + 2.0 * value(i)).collect();
        assert_eq!(floats(&bed.read(&y, N as usize)), wanted);

        let out = bed.words(64);
        bed.outcome("total", &config, &[&x_at, &n, &out.addr().to_ne_bytes()])
            .unwrap();
        let words = bed.read(&out, 2);
        let sum = f64::from_bits(u64::from(words[1]) << 32 | u64::from(words[0]));
        assert_eq!(sum, (0..N).map(|i| f64::from(value(i))).sum::<f64>());

        let [width, rows] = [50u64, 20].map(u64::to_ne_bytes);
        bed.outcome("row_sums", &config, &[&x_at, &width, &rows, &out.addr().to_ne_bytes()])
            .unwrap();
        let wanted: Vec<f32> = (0..20).map(|row| (row * 50..row * 50 + 50).map(value).sum()).collect();
        assert_eq!(floats(&bed.read(&out, 20)), wanted);
    }
}

/// `lanes.cu` as the simulated GPU compiles it itself.
fn as_source(builder: SimGpuBuilder, kernels: &[&str]) -> Bed {
    let text = format!("{}\n{}", include_str!("ptx/as_source.cuh"), input("lanes.cu"));
    bed_on(builder, &text, kernels)
}

#[test]
fn ptx_and_its_source_agree() {
    let names = ["together", "spaces_of_memory", "atomics_of_all_kinds", "numbers"];
    for mode in [Mode::Fast, Mode::Seeded(11)] {
        let beds = [
            bed(builder().mode(mode), &input("lanes.ptx")),
            as_source(builder().mode(mode), &names),
        ];
        for seed in [3u32, 70] {
            let config = LaunchConfig::linear(2, 64);
            let [ptx, source] = beds
                .each_ref()
                .map(|bed| bed.run("together", &config, 2 * 64 * 32, &[&seed.to_ne_bytes()]));
            compare(&ptx, &source, 32);
        }
        let mut config = LaunchConfig::linear(1, 96);
        config.dynamic_shared_bytes = 96 * 4;
        let [ptx, source] = beds
            .each_ref()
            .map(|bed| bed.run("spaces_of_memory", &config, 96 * 8, &[&5i32.to_ne_bytes()]));
        compare(&ptx, &source, 8);
        let [ptx, source] = beds.each_ref().map(|bed| {
            let seed = 0x1234_5678_9abc_def1u64.to_ne_bytes();
            bed.run("numbers", &LaunchConfig::linear(1, 40), 40 * 40, &[&seed])
        });
        compare(&ptx, &source, 40);
        let [ptx, source] = beds.each_ref().map(|bed| {
            let out = bed.words(256);
            let at = [0, 32, 64, 96, 128, 160].map(|word| (out.addr() + word * 4).to_ne_bytes());
            let arguments: Vec<&[u8]> = at.iter().map(|at| &at[..]).collect();
            bed.outcome("atomics_of_all_kinds", &LaunchConfig::linear(2, 32), &arguments)
                .unwrap();
            bed.read(&out, 256)
        });
        compare(&ptx, &source, 32);
    }
}

/// The first difference, by row and word.
fn compare(ptx: &[u32], source: &[u32], row: usize) {
    assert!(source.iter().any(|word| *word != 0));
    if let Some(at) = (0..source.len()).find(|at| ptx[*at] != source[*at]) {
        panic!(
            "row {}, word {}: {:#x} and not {:#x}",
            at / row,
            at % row,
            ptx[at],
            source[at]
        );
    }
}

#[test]
fn forms_of_nvcc_do_what_they_say() {
    for bed in beds(&input("spaces.ptx")) {
        let (a, b, v) = (bed.words(16), bed.words(16), bed.words(16));
        let write = |memory: &DeviceMemory, words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            bed.gpu.write(memory.addr(), &bytes).unwrap();
        };
        write(&a, &[10, 0, 5, 100, 0, 42, 0, 0, 3, 4]);
        write(&b, &[1, 1, 2, 2, 3, 3, 4, 5]);
        write(&v, &[6, 7, 8, 9]);
        let at = [&a, &b, &v].map(|memory| memory.addr().to_ne_bytes());
        bed.outcome("orders", &LaunchConfig::linear(1, 1), &[&at[0], &at[1], &at[2]])
            .unwrap();
        assert_eq!(bed.read(&a, 10), [10, 10, 5, 105, 0, 42, 42, 7, 3, 4]);
        assert_eq!(bed.read(&b, 10), [4, 5, 2, 2, 3, 3, 4, 5, 0, 0]);
        assert_eq!(bed.read(&v, 8), [6, 7, 8, 9, 6, 7, 8, 9]);

        let (from, out) = (bed.words(64 * 4), bed.words(64));
        write(&from, &(0..256).collect::<Vec<u32>>());
        let at = [&from, &out].map(|memory| memory.addr().to_ne_bytes());
        // One thread: what it copies into the next element besides is the third one's first half.
        bed.outcome("copies", &LaunchConfig::linear(1, 1), &[&at[0], &at[1]])
            .unwrap();
        let poison = 0xa5a5_a5a5;
        assert_eq!(bed.read(&out, 1), [poison]);
        bed.outcome("copies", &LaunchConfig::linear(1, 64), &[&at[0], &at[1]])
            .unwrap();
        let out = bed.read(&out, 64);
        assert!((0..50).all(|thread| out[thread] == (63 - thread as u32) * 4), "{out:?}");
    }
}

#[test]
fn kernels_of_triton_run() {
    const COLUMNS: u64 = 1000;
    let value = |i: u64| (i % 23) as f32 / 4.0;
    let near = |found: &[f32], wanted: &[f32]| {
        for (at, (found, wanted)) in std::iter::zip(found, wanted).enumerate() {
            assert!(
                (found - wanted).abs() <= 1e-5 + wanted.abs() * 1e-5,
                "{at}: {found} and not {wanted}"
            );
        }
    };
    let mut config = LaunchConfig::linear(3, 128);
    config.dynamic_shared_bytes = 8 << 10;
    let (rows, columns, none) = (3u64, (COLUMNS as u32).to_ne_bytes(), 0u64.to_ne_bytes());
    let all: Vec<f32> = (0..rows * COLUMNS).map(value).collect();
    let fill = |bed: &Bed| {
        let (x, out) = (bed.words(all.len()), bed.words(all.len()));
        let bytes: Vec<u8> = all.iter().flat_map(|value| value.to_ne_bytes()).collect();
        bed.gpu.write(x.addr(), &bytes).unwrap();
        (x, out)
    };
    for bed in beds(&input("triton_add.ptx")) {
        let (x, out) = fill(&bed);
        let (x, at) = (x.addr().to_ne_bytes(), out.addr().to_ne_bytes());
        let count = (all.len() as u32).to_ne_bytes();
        bed.outcome("add", &config, &[&x, &x, &at, &count, &none, &none])
            .unwrap();
        near(
            &floats(&bed.read(&out, all.len())),
            &all.iter().map(|value| value * 2.0).collect::<Vec<_>>(),
        );
    }
    for bed in beds(&input("triton_softmax.ptx")) {
        let (x, out) = fill(&bed);
        let (x, at) = (x.addr().to_ne_bytes(), out.addr().to_ne_bytes());
        bed.outcome("softmax", &config, &[&x, &at, &columns, &none, &none])
            .unwrap();
        let wanted = all.chunks(COLUMNS as usize).flat_map(|row| {
            let sum: f32 = row.iter().map(|value| value.exp()).sum();
            row.iter().map(move |value| value.exp() / sum)
        });
        near(&floats(&bed.read(&out, all.len())), &wanted.collect::<Vec<_>>());
    }
    for bed in beds(&input("triton_layer_norm.ptx")) {
        let (x, out) = fill(&bed);
        let (x, at) = (x.addr().to_ne_bytes(), out.addr().to_ne_bytes());
        let epsilon = 1e-3f32;
        let arguments: [&[u8]; 8] = [&x, &x, &x, &at, &columns, &epsilon.to_ne_bytes(), &none, &none];
        bed.outcome("layer_norm", &config, &arguments).unwrap();
        let wanted = all.chunks(COLUMNS as usize).flat_map(|row| {
            let mean = row.iter().sum::<f32>() / COLUMNS as f32;
            let spread = row.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / COLUMNS as f32;
            // The first row is weight and bias too.
            std::iter::zip(row, &all)
                .map(move |(value, weight)| (value - mean) / (spread + epsilon).sqrt() * weight + weight)
        });
        near(&floats(&bed.read(&out, all.len())), &wanted.collect::<Vec<_>>());
    }
}

/// Half precision of a small whole number.
fn half(value: i32) -> u16 {
    let bits = (value as f32).to_bits();
    match value {
        0 => 0,
        _ => ((bits >> 16 & 0x8000) | ((bits >> 13 & 0x3_ffff) - (112 << 10)) & 0x7fff) as u16,
    }
}

#[test]
fn a_matrix_product_of_triton_runs() {
    let (m, n, k) = (64usize, 128usize, 96usize);
    let value = |i: usize| (i * 7 % 11) as i32 - 5;
    let bed = bed(builder(), &input("triton_matmul.ptx"));
    let halves = |count: usize| {
        (0..count)
            .flat_map(|i| half(value(i)).to_ne_bytes())
            .collect::<Vec<u8>>()
    };
    let (a, b, c) = (bed.words(m * k / 2), bed.words(k * n / 2), bed.words(m * n));
    bed.gpu.write(a.addr(), &halves(m * k)).unwrap();
    bed.gpu.write(b.addr(), &halves(k * n)).unwrap();
    let mut config = LaunchConfig::linear(1, 128);
    config.grid = [1, 2, 1];
    config.dynamic_shared_bytes = 48 << 10;
    let at = [&a, &b, &c].map(|memory| memory.addr().to_ne_bytes());
    let [depth, a_row, b_row, c_row] = [k, k, n, n].map(|number| (number as u32).to_ne_bytes());
    let none = 0u64.to_ne_bytes();
    let arguments: [&[u8]; 9] = [&at[0], &at[1], &at[2], &depth, &a_row, &b_row, &c_row, &none, &none];
    bed.outcome("matmul", &config, &arguments).unwrap();
    let found = floats(&bed.read(&c, m * n));
    for (at, found) in found.into_iter().enumerate() {
        let (row, column) = (at / n, at % n);
        let wanted: i32 = (0..k).map(|i| value(row * k + i) * value(i * n + column)).sum();
        assert_eq!(found, wanted as f32, "row {row}, column {column}");
    }
}

/// One kernel with this body.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n.reg .b64 %out, %rd<9>;\n\
         .reg .b32 %r<9>;\n.reg .b16 %h<9>;\n.reg .pred %p<9>;\nld.param.u64 %out, [out];\n{body}\nret;\n}}\n"
    )
}

#[test]
fn what_does_not_run_is_refused_with_its_place() {
    let gpu = builder().build().unwrap();
    for (body, what) in [
        (
            "mov.u32 %r1, 1;\nwgmma.fence.sync.aligned;",
            "`wgmma.fence.sync.aligned;`: the simulated GPU does not run",
        ),
        ("bar.sync 1;", "barriers with a number"),
        ("bar.sync 0, 64;", "barriers of a part of a block"),
        ("add.rz.f64 %rd1, %rd1, %rd2;", "`add` with `.rz.f64`"),
        ("min.xorsign.abs.f32 %r1, %r1, %r2;", "`min` with `.xorsign`"),
        ("add.s16x2 %r1, %r1, %r2;", "the type `s16x2`"),
        ("atom.global.exch.b128 %rd1, [%out], %rd2;", "b128"),
        ("mov.u32 %r1, %envreg3;", "the register `%envreg3`"),
        ("call.uni malloc, (out);", "calls of `malloc`"),
        ("mov.u64 %rd1, %r1;", "`%r1` has 32 bits and not 64"),
        ("bra there;", "`there` is not declared"),
        ("ld.shared::cluster.u32 %r1, [%r2];", "shared::cluster"),
        ("mbarrier.init.shared.b64 [%r1], 1;", "mbarrier.init"),
        ("add.f32 %r1, %r1, %r2, %r3;", "so many operands"),
    ] {
        let Err(error) = load(&gpu, &kernel(body), Window::default()) else {
            panic!("{body} was taken");
        };
        let told = error.to_string();
        assert!(told.contains(what) && told.contains("(line "), "{told}");
    }
    let hidden = Window::default().to_bytes();
    let told = gpu
        .load_ptx("test.ptx", &kernel(""), &[], &[(WINDOW, &hidden)], None)
        .err()
        .unwrap()
        .to_string();
    assert!(told.contains("no variable gpuvm_window of 32 bytes"), "{told}");
}

#[test]
fn a_kernel_that_traps_or_leaves_shared_memory_is_told() {
    for body in ["trap;", "st.shared.u32 [%r1+4096], 1;"] {
        for bed in beds(&kernel(body)) {
            let error = bed.error("k", &LaunchConfig::linear(1, 1), &[&0u64.to_ne_bytes()]);
            assert!(matches!(error, GpuError::Trap { .. }), "{error}");
        }
    }
    let bed = bed(builder(), &kernel("st.global.u32 [%out], 1;"));
    let error = bed.error("k", &LaunchConfig::linear(1, 1), &[&16u64.to_ne_bytes()]);
    assert!(matches!(error, GpuError::KernelFault { .. }), "{error}");
}

#[test]
fn loads_extend_and_vectors_keep_their_order() {
    let mut body = String::new();
    let types = [
        "u8", "s8", "b8", "u16", "s16", "b16", "u32", "s32", "b32", "f32", "u64", "s64", "b64", "f64",
    ];
    for (at, ty) in types.iter().enumerate() {
        let place = 64 + at * 8;
        body.push_str(&format!(
            "ld.global.{ty} %rd1, [%out+8];\nst.global.u64 [%out+{place}], %rd1;\n"
        ));
    }
    body.push_str(
        "ld.global.v4.u8 {%r1, %r2, _, %r4}, [%out+8];\nst.global.v4.u32 [%out+192], {%r1, %r2, 7, %r4};\n\
         ld.global.v2.b64 {%rd1, %rd2}, [%out];\nst.v2.u64 [%out+208], {%rd2, %rd1};\n\
         ld.volatile.global.u32 %r1, [%out+8];\nst.volatile.global.u32 [%out+224], %r1;\n\
         ld.relaxed.cta.global.u32 %r1, [%out+12];\nst.release.sys.global.u32 [%out+228], %r1;\n\
         ld.acquire.gpu.u32 %r1, [%out+8];\nst.relaxed.gpu.u32 [%out+232], %r1;\n\
         mov.b64 {%r1, %r2}, %rd2;\nmov.b32 {%h1, %h2}, %r1;\nmov.b32 %r3, {%h2, %h1};\nst.global.u32 [%out+236], %r3;",
    );
    let value = 0x8765_4321_89ab_cdefu64;
    for bed in beds(&kernel(&body)) {
        let out = bed.words(64);
        bed.gpu.write(out.addr() + 8, &value.to_ne_bytes()).unwrap();
        bed.outcome("k", &LaunchConfig::linear(1, 1), &[&out.addr().to_ne_bytes()])
            .unwrap();
        let words = bed.read(&out, 64);
        for (at, ty) in types.iter().enumerate() {
            let wanted = match *ty {
                "u8" | "b8" => value & 0xff,
                "s8" => value as i8 as u64,
                "u16" | "b16" => value & 0xffff,
                "s16" => value as i16 as u64,
                "s32" => value as i32 as u64,
                "u32" | "b32" | "f32" => value & 0xffff_ffff,
                _ => value,
            };
            let found = u64::from(words[17 + at * 2]) << 32 | u64::from(words[16 + at * 2]);
            assert_eq!(found, wanted, "{ty}");
        }
        assert_eq!(words[48..52], [0xef, 0xcd, 7, 0x89]);
        assert_eq!(
            words[52..60],
            [
                0x89ab_cdef,
                0x8765_4321,
                0,
                0,
                0x89ab_cdef,
                0x8765_4321,
                0x89ab_cdef,
                0xcdef_89ab
            ]
        );
    }
}

#[test]
fn races_of_ptx_are_found_and_orders_hold() {
    let options = SimOptions {
        find_races: true,
        ..SimOptions::default()
    };
    for (body, races) in [
        ("st.global.u32 [%out], 1;", true),
        ("red.relaxed.gpu.global.add.u32 [%out], 1;", false),
    ] {
        let bed = bed(builder().mode(Mode::Seeded(1)).options(options), &kernel(body));
        let out = bed.words(1);
        bed.outcome("k", &LaunchConfig::linear(2, 1), &[&out.addr().to_ne_bytes()])
            .unwrap();
        assert_eq!(bed.gpu.races().1 > 0, races, "{body}");
    }
    // A word and then a flag, by one block for another: what it sees may be old unless both order it.
    let told = |store: &str, load: &str| {
        let text = kernel(&format!(
            "mov.u32 %r1, %ctaid.x;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra reads;\nst.global.u32 [%out+128], 7;\n\
             {store} [%out], 1;\nnanosleep.u32 20000;\nret;\nreads:\nld.global.u32 %r3, [%out+128];\n\
             st.global.u32 [%out+260], %r3;\nagain:\n{load} %r2, [%out];\n\
             setp.eq.u32 %p1, %r2, 0;\n@%p1 bra again;\nld.global.u32 %r3, [%out+128];\nst.global.u32 [%out+256], %r3;"
        ));
        let seen = (0..40).map(|seed| {
            let bed = bed(builder().mode(Mode::Seeded(seed)), &text);
            let out = bed.words(128);
            bed.outcome("k", &LaunchConfig::linear(2, 1), &[&out.addr().to_ne_bytes()])
                .unwrap();
            bed.read(&out, 65)[64]
        });
        seen.collect::<Vec<u32>>()
    };
    assert!(
        told("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32")
            .iter()
            .all(|word| *word == 7)
    );
    assert!(told("st.relaxed.gpu.global.u32", "ld.relaxed.gpu.global.u32").contains(&0));
}

#[test]
fn addresses_of_a_window_go_where_their_pages_are() {
    const PAGE: u64 = 4096;
    for mode in [Mode::Fast, Mode::Seeded(5)] {
        let gpu = builder().mode(mode).build().unwrap();
        let layout = TableLayout::new(PAGE).unwrap();
        // Nothing is mapped there.
        let base = 1u64 << 46;
        let mut window = layout.window(base..base + PAGE).unwrap();
        let pages = layout.pages(&window);
        let (entries, marks) = (gpu.allocate(pages * 8, 256).unwrap(), gpu.allocate(pages, 256).unwrap());
        (window.entries, window.marks) = (entries.addr(), marks.addr());
        // Three pages of x and three of y, in places the other way round.
        let places = gpu.allocate(6 * PAGE, PAGE).unwrap();
        let page = |number: u64| if number < 3 { 10 + number } else { 100 + number };
        let place = |number: u64| places.addr() + (5 - number) * PAGE;
        for number in 0..6 {
            let entry = layout.entry(base + page(number) * PAGE, place(number), false);
            gpu.write(entries.addr() + page(number) * 8, &entry.to_ne_bytes())
                .unwrap();
            for at in 0..PAGE / 4 {
                let value = (number % 3 * 1024 + at) as f32 % 50.0;
                gpu.write(place(number) + at * 4, &value.to_ne_bytes()).unwrap();
            }
        }
        let module = load(&gpu, &input("plain.ptx"), window).unwrap();
        let stream = gpu.stream().unwrap();
        let bed = Bed { module, stream, gpu };
        let [x, y, n] = [base + page(0) * PAGE, base + page(3) * PAGE, 3 * PAGE / 4].map(u64::to_ne_bytes);
        let config = LaunchConfig::linear(2, 64);
        bed.outcome("axpy", &config, &[&x, &y, &3f32.to_ne_bytes(), &n])
            .unwrap();
        for number in 0..6 {
            let mut bytes = vec![0; PAGE as usize];
            bed.gpu.read(place(number), &mut bytes).unwrap();
            for (at, bytes) in bytes.as_chunks().0.iter().enumerate() {
                let before = (number as usize % 3 * 1024 + at) as f32 % 50.0;
                let wanted = if number < 3 { before } else { before * 4.0 };
                assert_eq!(f32::from_ne_bytes(*bytes), wanted, "page {number}, element {at}");
            }
            let mut mark = [9];
            bed.gpu.read(marks.addr() + page(number), &mut mark).unwrap();
            assert_eq!(mark, [u8::from(number >= 3)], "the mark of page {number}");
        }
    }
}

#[test]
fn carries_branches_by_number_and_leaders() {
    let body = "mov.u32 %r1, 0xffffffff;\nadd.cc.u32 %r2, %r1, 2;\naddc.cc.u32 %r3, %r1, 0;\naddc.u32 %r4, 5, 6;\n\
                st.global.v4.u32 [%out], {%r2, %r3, %r4, 0};\n\
                sub.cc.u32 %r2, 1, 2;\nsubc.u32 %r3, 9, 3;\nmad.lo.cc.u32 %r4, %r1, %r1, 0xffffffff;\nmadc.hi.u32 %r5, %r1, %r1, 1;\n\
                st.global.v4.u32 [%out+16], {%r2, %r3, %r4, %r5};\n\
                mov.u32 %r6, %laneid;\nelect.sync %r7|%p1, 0xfffffff0;\n@%p1 st.global.u32 [%out+32], %r6;\n\
                there: .branchtargets first, second, third;\nand.b32 %r6, %r6, 3;\nsetp.eq.u32 %p2, %r6, 3;\n@%p2 ret;\n\
                brx.idx %r6, there;\n\
                second:\nred.global.add.u32 [%out+36], 100;\nret;\nthird:\nred.global.add.u32 [%out+36], 10000;\nret;\n\
                first:\nred.global.add.u32 [%out+36], 1;";
    let text = kernel(body).replace("%laneid;\n", "%laneid;\nsetp.lt.u32 %p3, %r6, 4;\n@%p3 ret;\n");
    for bed in beds(&text) {
        let words = bed.run("k", &LaunchConfig::linear(1, 32), 16, &[]);
        assert_eq!(words[..4], [1, 0, 12, 0]);
        // (2^32 - 1)^2 is 0xfffffffe00000001, and 2^32 - 1 more ends in zeros above.
        assert_eq!(words[4..8], [0xffff_ffff, 5, 0, 0]);
        assert_eq!(words[8..10], [4, 7 + 700 + 70_000]);
    }
}
