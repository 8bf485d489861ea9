//! The binary interface: names, versions, sizes and places of fields.

use std::{collections::BTreeSet, fmt::Write, path::Path, process::Command};

use crate::prefix::{Prefix, ran};

fn file(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The functions that the header declares, without those that it defines.
fn declared(header: &str) -> BTreeSet<String> {
    let (declared, _) = header
        .split_once("// What C writes in short.")
        .expect("the header's tail");
    let lines = declared
        .lines()
        .filter(|line| !line.starts_with("//") && !line.starts_with(' '));
    let names = lines.filter_map(|line| line.split_once('(')?.0.split([' ', '*']).next_back());
    names
        .filter(|name| name.starts_with("gpuvm_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_library_exports_what_the_header_declares_and_no_more() {
    let script = file("gpuvm.map");
    let listed: BTreeSet<String> = xtask::symbols(&script).into_iter().map(str::to_owned).collect();
    assert!(listed.len() > 70, "{listed:?}");
    assert_eq!(
        declared(&xtask::header().unwrap()),
        listed,
        "capi/gpuvm.map lists the functions of gpuvm.h"
    );
    let prefix = Prefix::new();
    let library = prefix.path().join("lib/libgpuvm.so");
    let mut nm = Command::new("nm");
    let exported = ran(nm
        .args(["--dynamic", "--defined-only", "--with-symbol-versions"])
        .arg(&library));
    let exported: BTreeSet<String> = exported
        .lines()
        .filter_map(|line| line.split(' ').next_back())
        .filter(|name| *name != "GPUVM_0.1")
        .map(|name| {
            name.strip_suffix("@@GPUVM_0.1")
                .unwrap_or_else(|| panic!("{name} has no version"))
                .to_owned()
        })
        .collect();
    assert_eq!(exported, listed);
    let dynamic = ran(Command::new("readelf").arg("--dynamic").arg(library));
    assert!(dynamic.contains("Library soname: [libgpuvm.so.0]"), "{dynamic}");
}

/// A structure and its fields, as Rust has them: size, alignment, and the place of each.
struct Shape {
    name: &'static str,
    size: usize,
    align: usize,
    fields: Vec<(&'static str, usize)>,
}

macro_rules! shapes {
    ($($path:path as $name:ident { $($field:ident),* $(,)? })*) => {
        vec![$({
            use $path as Structure;
            Shape {
                name: stringify!($name),
                size: size_of::<Structure>(),
                align: align_of::<Structure>(),
                fields: vec![$((stringify!($field), std::mem::offset_of!(Structure, $field))),*],
            }
        }),*]
    };
}

fn shapes() -> Vec<Shape> {
    use gpuvm_capi::{broadcast, elastic, element, handles, launch, module, precompiled, region, slots, tiered, vm};
    shapes! {
        handles::gpuvm_vm as gpuvm_vm { id }
        vm::gpuvm_gpu_info as gpuvm_gpu_info {
            size, page_size, frames, frame_capacity, bookkeeping_bytes, borrowed_bytes, transport, queue_pairs
        }
        vm::gpuvm_resized as gpuvm_resized { size, bytes, kept_bytes, missing_bytes, took_ns }
        vm::gpuvm_setting as gpuvm_setting { name, text, number }
        element::gpuvm_element as gpuvm_element { kind, align, bytes, name }
        region::gpuvm_region_options as gpuvm_region_options {
            size, name, gpu, read_only, never_evicted, placement, at_host, home_on_gpu, home_gpu, replicas, integrity,
            priority
        }
        region::gpuvm_region_health as gpuvm_region_health { size, pages_without_copy, stale_pages, homes, lost_homes }
        elastic::gpuvm_elastic_options as gpuvm_elastic_options { size, name, tag, length, gpu, priority }
        elastic::gpuvm_grown as gpuvm_grown { size, first, moved_bytes, took_ns, premapped }
        tiered::gpuvm_tiered_options as gpuvm_tiered_options { size, name, budget, gpu, priority }
        tiered::gpuvm_moved as gpuvm_moved { size, came, left, took_ns }
        slots::gpuvm_slot_options as gpuvm_slot_options { size, policy, gpu }
        slots::gpuvm_slot_table as gpuvm_slot_table { region, record_bytes }
        slots::gpuvm_slot_ids as gpuvm_slot_ids { size, address, count, wide, reserved, stream }
        slots::gpuvm_slot_stats as gpuvm_slot_stats { size, hits, misses, prefetched, evictions, bytes }
        broadcast::gpuvm_broadcast_options as gpuvm_broadcast_options { size, name, subscribers, count_all }
        module::gpuvm_compile_options as gpuvm_compile_options {
            size, include_dirs, include_dir_count, defines, define_count, header_names, header_texts, header_count,
            debug, reserved
        }
        launch::gpuvm_arg as gpuvm_arg { kind, reserved, element, value, data }
        launch::gpuvm_launch_options as gpuvm_launch_options {
            size, grid, block, deadline_ns, thread_spans, warp_spans, stream, dynamic_shared_bytes, untimed
        }
        launch::gpuvm_launch_report as gpuvm_launch_report { size, blocks, elapsed_ns }
        precompiled::gpuvm_device_code as gpuvm_device_code { layout_version, features }
        precompiled::gpuvm_use as gpuvm_use { arg, writes, reserved }
    }
}

#[test]
fn cpp_has_every_function_of_c() {
    let face = file("include/gpuvm/host.hpp") + &file("include/gpuvm/launch.cuh");
    let words: BTreeSet<&str> = face.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let script = file("gpuvm.map");
    let functions = xtask::symbols(&script);
    // It is for messages of programs, and takes no handle.
    let missing: Vec<_> = functions.into_iter().filter(|name| !words.contains(name)).collect();
    assert_eq!(
        missing,
        ["gpuvm_code_name"],
        "gpuvm/host.hpp and gpuvm/launch.cuh have nothing for these"
    );
}

#[test]
fn c_has_the_structures_that_rust_has() {
    let shapes = shapes();
    // Every structure that the header has, but handles, which are alike.
    let header = xtask::header().unwrap();
    for line in header.lines().filter_map(|line| line.strip_prefix("typedef struct ")) {
        let name = line.split(' ').next().unwrap_or_default();
        let is_handle = header.contains(&format!("typedef struct {name} {{\n    /// 0: the "));
        let known = shapes.iter().any(|shape| shape.name == name);
        assert!(is_handle || known, "{name} is not compared");
    }
    let mut program = String::from("#include <gpuvm.h>\n#include <stddef.h>\n");
    for Shape {
        name,
        size,
        align,
        fields,
    } in &shapes
    {
        writeln!(
            program,
            "_Static_assert(sizeof({name}) == {size} && _Alignof({name}) == {align}, \"{name}\");"
        )
        .unwrap();
        for (field, offset) in fields {
            writeln!(
                program,
                "_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");"
            )
            .unwrap();
        }
    }
    program += "int main(void) { return 0; }\n";
    let prefix = Prefix::new();
    let source = prefix.scratch().join("shapes.c");
    std::fs::write(&source, program).unwrap();
    prefix.compile(&source, &[]);
}
