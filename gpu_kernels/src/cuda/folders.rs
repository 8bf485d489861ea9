//! Where CUDA's libraries lie that the loader does not find by itself, and how NVRTC is loaded from there.

use std::env;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

/// Where else NVRTC may lie.
static FURTHER: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Has NVRTC looked for in this folder, too, where the loader does not find it, nor CUDA's usual folders have it. It counts until NVRTC is first
/// needed.
pub fn look_for_nvrtc_in(folder: impl Into<PathBuf>) {
    FURTHER.lock().push(folder.into());
}

/// Folders of CUDA's libraries: of $CUDA_HOME or $CUDA_PATH, and the usual one.
pub(crate) fn cuda_libraries() -> Vec<PathBuf> {
    let home = env::var_os("CUDA_HOME").or_else(|| env::var_os("CUDA_PATH"));
    let homes = home
        .map(PathBuf::from)
        .into_iter()
        .chain([PathBuf::from("/usr/local/cuda")]);
    homes.map(|home| home.join("lib64")).collect()
}

/// Loads NVRTC from where the loader does not look: $GPUVM_NVRTC, a file or its folder, else CUDA's usual folders, else
/// [those that were named](look_for_nvrtc_in). A library that is loaded is found by its name afterwards.
pub(crate) fn preload_nvrtc() {
    let asked = env::var_os("GPUVM_NVRTC").filter(|v| !v.is_empty()).map(PathBuf::from);
    // SAFETY: it asks whether the loader finds it by itself; nothing is closed.
    let plain = asked.is_none() && unsafe { cudarc::nvrtc::sys::is_culib_present() };
    if plain {
        return;
    }
    let folders = match asked {
        Some(asked) => vec![asked],
        None => [cuda_libraries(), FURTHER.lock().clone()].concat(),
    };
    for folder in folders {
        let files = match folder.is_dir() {
            true => ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
                .map(|name| folder.join(name))
                .to_vec(),
            false => vec![folder],
        };
        for file in files.iter().filter(|file| file.is_file()) {
            // SAFETY: NVIDIA's library; its initialisers are its own. The builtins, which it loads by name while it compiles, lie beside it.
            if let Ok(library) = unsafe { libloading::Library::new(file) } {
                // Never unloaded: the functions that are found in it are kept.
                std::mem::forget(library);
                preload_builtins(file);
                return;
            }
        }
    }
}

/// NVRTC loads its builtins by their bare name, which the loader finds only when they are loaded already or on its path.
fn preload_builtins(nvrtc: &Path) {
    let entries = nvrtc.parent().and_then(|folder| folder.read_dir().ok());
    for entry in entries.into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so.") {
            // SAFETY: as for the library itself.
            if let Ok(library) = unsafe { libloading::Library::new(entry.path()) } {
                std::mem::forget(library);
            }
        }
    }
}
