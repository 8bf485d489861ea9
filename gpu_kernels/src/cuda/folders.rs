//! Where CUDA's libraries lie that the loader does not find by itself.

use std::env;
use std::path::PathBuf;

/// Folders of CUDA's libraries: of $CUDA_HOME or $CUDA_PATH, and the usual one.
pub(crate) fn cuda_libraries() -> Vec<PathBuf> {
    let home = env::var_os("CUDA_HOME").or_else(|| env::var_os("CUDA_PATH"));
    let homes = home
        .map(PathBuf::from)
        .into_iter()
        .chain([PathBuf::from("/usr/local/cuda")]);
    homes.map(|home| home.join("lib64")).collect()
}
