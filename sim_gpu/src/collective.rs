//! The kinds of collectives: `enum gpuvm_sim_collective`.

pub(crate) const SYNCWARP: u32 = 0;
pub(crate) const SHFL: u32 = 1;
pub(crate) const SHFL_UP: u32 = 2;
pub(crate) const SHFL_DOWN: u32 = 3;
pub(crate) const SHFL_XOR: u32 = 4;
pub(crate) const BALLOT: u32 = 5;
pub(crate) const ANY: u32 = 6;
pub(crate) const ALL: u32 = 7;
pub(crate) const MATCH_ANY: u32 = 8;
pub(crate) const MATCH_ALL: u32 = 9;
pub(crate) const REDUCE_ADD: u32 = 10;
pub(crate) const REDUCE_MIN_U: u32 = 11;
pub(crate) const REDUCE_MAX_U: u32 = 12;
pub(crate) const REDUCE_MIN_S: u32 = 13;
pub(crate) const REDUCE_MAX_S: u32 = 14;
pub(crate) const REDUCE_AND: u32 = 15;
pub(crate) const REDUCE_OR: u32 = 16;
pub(crate) const REDUCE_XOR: u32 = 17;
pub(crate) const BALLOT2: u32 = 18;

/// The CUDA name of a kind.
pub(crate) fn name(kind: u32) -> &'static str {
    const NAMES: [&str; 19] = [
        "__syncwarp",
        "__shfl_sync",
        "__shfl_up_sync",
        "__shfl_down_sync",
        "__shfl_xor_sync",
        "__ballot_sync",
        "__any_sync",
        "__all_sync",
        "__match_any_sync",
        "__match_all_sync",
        "__reduce_add_sync",
        "__reduce_min_sync(unsigned)",
        "__reduce_max_sync(unsigned)",
        "__reduce_min_sync(int)",
        "__reduce_max_sync(int)",
        "__reduce_and_sync",
        "__reduce_or_sync",
        "__reduce_xor_sync",
        "gpuvm_sim::ballot2",
    ];
    NAMES.get(kind as usize).copied().unwrap_or("an unknown collective")
}
