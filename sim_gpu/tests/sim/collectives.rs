//! Warp collectives, gathering, barriers, and what happens when their rules are broken.

use crate::common::{Bed, bed, bed_on, builder};
use gpuvm_gpu::{GpuError, LaunchConfig};

fn one_warp(bed: &Bed, name: &str) -> Vec<u32> {
    bed.run(name, &LaunchConfig::linear(1, 32), 32, &[])
}

#[test]
fn shuffles_move_values_of_4_and_8_bytes() {
    let bed = bed(
        r#"
__global__ void idx(unsigned* out) { out[threadIdx.x] = __shfl_sync(~0u, threadIdx.x * 10, 5); }
__global__ void group(unsigned* out) { out[threadIdx.x] = __shfl_sync(~0u, threadIdx.x, 1, 8); }
__global__ void up(unsigned* out) { out[threadIdx.x] = __shfl_up_sync(~0u, threadIdx.x, 3); }
__global__ void down(unsigned* out) { out[threadIdx.x] = __shfl_down_sync(~0u, threadIdx.x, 3, 16); }
__global__ void bfly(unsigned* out) { out[threadIdx.x] = __shfl_xor_sync(~0u, threadIdx.x, 6); }
__global__ void wide(unsigned* out) {
    double d = __shfl_sync(~0u, 0.5 + threadIdx.x, threadIdx.x ^ 1);
    unsigned long long u = __shfl_sync(~0u, 0x100000000ull * threadIdx.x, 31 - threadIdx.x);
    float f = __shfl_sync(~0u, 0.25f * threadIdx.x, 4);
    out[threadIdx.x] = d == 0.5 + (threadIdx.x ^ 1) && u >> 32 == 31 - threadIdx.x && f == 1.0f;
}
"#,
        &["idx", "group", "up", "down", "bfly", "wide"],
    );
    let lanes = || 0..32u32;
    assert!(one_warp(&bed, "idx").iter().all(|&v| v == 50));
    assert_eq!(
        one_warp(&bed, "group"),
        lanes().map(|l| l / 8 * 8 + 1).collect::<Vec<_>>()
    );
    assert_eq!(
        one_warp(&bed, "up"),
        lanes().map(|l| if l >= 3 { l - 3 } else { l }).collect::<Vec<_>>()
    );
    assert_eq!(
        one_warp(&bed, "down"),
        lanes().map(|l| if l % 16 < 13 { l + 3 } else { l }).collect::<Vec<_>>()
    );
    assert_eq!(one_warp(&bed, "bfly"), lanes().map(|l| l ^ 6).collect::<Vec<_>>());
    assert_eq!(one_warp(&bed, "wide"), vec![1; 32]);
}

#[test]
fn votes_matches_and_reductions() {
    let bed = bed(
        r#"
__global__ void votes(unsigned* out) {
    unsigned l = threadIdx.x, r = 0;
    r |= (__ballot_sync(~0u, l % 3 == 0) == 0x49249249u) << 0;
    r |= (__any_sync(~0u, l == 7) && !__any_sync(~0u, l == 99)) << 1;
    r |= (__all_sync(~0u, l < 32) && !__all_sync(~0u, l < 31)) << 2;
    r |= (__match_any_sync(~0u, l / 8) == 0xffu << l / 8 * 8) << 3;
    r |= (__match_any_sync(~0u, (unsigned long long)(l % 2) << 40) == (l % 2 ? 0xaaaaaaaau : 0x55555555u)) << 4;
    int all; unsigned m = __match_all_sync(~0u, 17, &all);
    r |= (all && m == ~0u) << 5;
    m = __match_all_sync(~0u, l, &all);
    r |= (!all && m == 0) << 6;
    unsigned a, b; gpuvm_sim::ballot2(~0u, l < 4, l >= 30, &a, &b);
    r |= (a == 0xfu && b == 0xc0000000u) << 7;
    out[l] = r;
}
__global__ void reduce(unsigned* out) {
    unsigned l = threadIdx.x, r = 0;
    int s = (int)l - 16;
    r |= (__reduce_add_sync(~0u, l) == 496) << 0;
    r |= (__reduce_add_sync(~0u, s) == -16) << 1;
    r |= (__reduce_min_sync(~0u, s) == -16 && __reduce_max_sync(~0u, s) == 15) << 2;
    r |= (__reduce_min_sync(~0u, l + 5) == 5 && __reduce_max_sync(~0u, (unsigned)s) == 0xffffffffu) << 3;
    r |= (__reduce_and_sync(~0u, l | 32) == 32 && __reduce_or_sync(~0u, l) == 31 && __reduce_xor_sync(~0u, l) == 0) << 4;
    out[l] = r;
}
"#,
        &["votes", "reduce"],
    );
    assert_eq!(one_warp(&bed, "votes"), vec![0xff; 32]);
    assert_eq!(one_warp(&bed, "reduce"), vec![0x1f; 32]);
}

#[test]
fn diverged_lanes_meet_by_mask_not_by_place() {
    let bed = bed(
        r#"
// Four groups loop different numbers of times in their own branches, then all meet in calls at two places of the code.
__global__ void diverge(unsigned* out) {
    unsigned l = threadIdx.x, g = l / 8, mask = 0xffu << g * 8, v = 0;
    for (unsigned i = 0; i < 10 + g * 7; ++i) {
        if (g == 0) v += __popc(__ballot_sync(mask, 1));
        else if (g == 1) v += __shfl_sync(mask, l, 8) == 8 ? 8 : 0;
        else v += __reduce_add_sync(mask, 1u);
        if (g == 3 && l == 31) __syncwarp(1u << 31);
    }
    unsigned total;
    if (l % 2) total = __reduce_add_sync(~0u, v); else total = __reduce_add_sync(~0u, v);
    out[l] = total == 8 * 8 * (10 + 17 + 24 + 31);
}
"#,
        &["diverge"],
    );
    assert_eq!(one_warp(&bed, "diverge"), vec![1; 32]);
}

#[test]
fn active_masks_gather_the_lanes_of_a_branch() {
    let bed = bed(
        r#"
__global__ void active(unsigned* out) {
    unsigned l = threadIdx.x;
    unsigned whole = __activemask();
    unsigned half = 0;
    if (l >= 16) half = __activemask();
    unsigned among, same = gpuvm_sim::match_active(l % 4, &among);
    // Which of the two halves is behind is the compiler's choice of layout; each is answered whole.
    unsigned mine = l >= 16 ? 0xffff0000u : 0x0000ffffu;
    out[l] = (whole == ~0u) + 2 * (half == (l >= 16 ? mine : 0)) +
             4 * ((among == ~0u || among == mine) && same == (0x11111111u << l % 4 & among));
}
__global__ void consistent(unsigned* out) {
    unsigned l = threadIdx.x;
    for (unsigned i = 0; i < 1000; ++i) {
        unsigned active, same = gpuvm_sim::match_active((l + i) % 3, &active);
        if (!(active >> l & 1) || !(same >> l & 1) || (same & ~active)) out[l] = 1;
        if (l % 5 == i % 5) __nanosleep(100);
        // Every lane of the answer got the same answer, so they can meet.
        if (__shfl_sync(same, active, __ffs(same) - 1) != active) out[l] = 2;
        out[32 + l] += 1;
    }
}
"#,
        &["active", "consistent"],
    );
    assert_eq!(one_warp(&bed, "active"), vec![7; 32]);
    let out = bed.run("consistent", &LaunchConfig::linear(1, 32), 64, &[]);
    assert_eq!(out, [vec![0; 32], vec![1000; 32]].concat());
}

#[test]
fn barriers_wait_for_live_threads_only() {
    let bed = bed(
        r#"
__global__ void exits(unsigned* out) {
    __shared__ unsigned count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (threadIdx.x % 3 == 0) return;
    atomicAdd(&count, 1);
    __syncthreads();
    out[threadIdx.x] = count;
}
__global__ void votes(unsigned* out) {
    unsigned t = threadIdx.x;
    int n = __syncthreads_count(t < 70);
    int a = __syncthreads_and(t < 100), b = __syncthreads_and(t < 99);
    int o = __syncthreads_or(t == 42), p = __syncthreads_or(0);
    out[t] = n == 70 && a == 1 && b == 0 && o == 1 && p == 0;
}
"#,
        &["exits", "votes"],
    );
    let out = bed.run("exits", &LaunchConfig::linear(1, 96), 96, &[]);
    assert!(
        out.iter()
            .enumerate()
            .all(|(t, &v)| v == if t % 3 == 0 { 0 } else { 64 }),
        "{out:?}"
    );
    assert_eq!(bed.run("votes", &LaunchConfig::linear(1, 100), 100, &[]), vec![1; 100]);
}

#[test]
fn broken_rules_end_the_launch_and_name_lanes() {
    let bed = bed(
        r#"
__global__ void exited(unsigned*) { if (threadIdx.x < 4) return; __syncwarp(); }
__global__ void late_exit(unsigned*) { if (threadIdx.x == 9) return; else __syncwarp(); }
__global__ void not_in_mask(unsigned*) { if (threadIdx.x == 3) __syncwarp(0x10); }
__global__ void kinds(unsigned*) { if (threadIdx.x < 5) __syncwarp(); else __ballot_sync(~0u, 1); }
__global__ void masks(unsigned*) { __syncwarp(threadIdx.x < 2 ? 0xffu : 0xfu); }
__global__ void barrier_kinds(unsigned*) { if (threadIdx.x < 32) __syncthreads(); else __syncthreads_or(1); }
"#,
        &["exited", "late_exit", "not_in_mask", "kinds", "masks", "barrier_kinds"],
    );
    let cause = |name: &str, threads: u32| match bed.error(name, &LaunchConfig::linear(1, threads), &[&[0; 8]]) {
        GpuError::Collective { kernel, cause, .. } if kernel == name => cause,
        other => panic!("{name}: {other}"),
    };
    let exited = cause("exited", 32);
    assert!(
        exited.contains("__syncwarp") && exited.contains("lanes 0-3"),
        "{exited}"
    );
    assert!(cause("late_exit", 32).contains("lane 9"));
    assert!(cause("not_in_mask", 32).contains("0x00000010"));
    let kinds = cause("kinds", 32);
    assert!(
        kinds.contains("__ballot_sync") && kinds.contains("lanes 0-4") && kinds.contains("__syncwarp"),
        "{kinds}"
    );
    assert!(cause("masks", 8).contains("0x000000ff"));
    assert!(cause("barrier_kinds", 64).contains("__syncthreads_or"));
}

#[test]
fn exited_lanes_can_be_skipped_as_on_hardware() {
    let text = r#"
__global__ void early(unsigned* out) {
    if (threadIdx.x >= 20) return;
    out[threadIdx.x] = __reduce_add_sync(~0u, 1u);
}
"#;
    let bed = bed_on(builder().skip_exited_lanes(true), text, &["early"]);
    assert_eq!(bed.run("early", &LaunchConfig::linear(1, 32), 20, &[]), vec![20; 20]);
}

#[test]
fn a_partial_warp_has_only_its_own_lanes() {
    let bed = bed(
        "__global__ void part(unsigned* out) { out[threadIdx.x] = __reduce_add_sync(~0u, 1u) + 100 * __popc(__activemask()); }",
        &["part"],
    );
    let out = bed.run("part", &LaunchConfig::linear(1, 45), 45, &[]);
    assert_eq!(out, [vec![32 + 3200; 32], vec![13 + 1300; 13]].concat());
}
