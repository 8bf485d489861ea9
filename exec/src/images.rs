//! Code as programs hand it to the driver, and its rewritten text.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};

use gpuvm_ptx::{EmbeddedPtx, FunctionReport, Item, Left, Space, TableLayout, best, embedded, rewrite};

/// What a fat binary that nvcc has made begins with, and what stands in a program for one.
const FAT_BINARY: u32 = 0xba55_ed50;
const WRAPPER: u32 = 0x4662_43b1;
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");
/// Before the names of kernels that were not rewritten.
const PLAIN: &str = "gpuvm_plain_";
/// Bytes of a fat binary's header.
const HEADER_BYTES: usize = 16;

/// Rewritten code.
pub struct Image {
    pub text: CString,
    /// There are some that the program may name, so that its code is loaded once, as this text.
    pub has_variables: bool,
    /// By their names.
    pub kernels: BTreeMap<String, KernelOf>,
}

/// What became of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelOf {
    /// The name of its form that marks nothing, which is for launches whose pages all have frames.
    pub quiet: Option<CString>,
    /// The name of its form that was not rewritten, where the text has one.
    pub plain: Option<CString>,
    /// Why it uses all pages at home, if it does.
    pub at_home: Option<String>,
}

/// What a file has, as a program would give it: it ends with zeros. None of a fat binary that is cut off.
pub fn ended(mut code: Vec<u8>) -> Option<Vec<u8>> {
    let is_binary = code.get(..4) == Some(&FAT_BINARY.to_le_bytes());
    let whole = code.get(8..HEADER_BYTES).and_then(|length| length.try_into().ok());
    let whole = whole.map(u64::from_le_bytes);
    if is_binary && whole.is_none_or(|length| length > (code.len() - HEADER_BYTES) as u64) {
        return None;
    }
    code.extend([0; 4]);
    Some(code)
}

/// Rewrites code for a GPU of that architecture. The error says why it is left as it is.
///
/// # Safety
/// `code` is what a program gives the driver as code: a text that ends with a zero byte, a fat binary, or an object.
pub unsafe fn rewritten(code: *const c_void, architecture: u32, layout: &TableLayout) -> Result<Image, String> {
    // SAFETY: the caller's promise: whatever it is has four bytes, texts too.
    let magic = unsafe { code.cast::<u32>().read_unaligned() };
    let text = match magic {
        // SAFETY: what stands for a fat binary has its address there.
        WRAPPER => return unsafe { rewritten(*code.cast::<*const c_void>().add(1), architecture, layout) },
        FAT_BINARY => {
            // SAFETY: a fat binary has a header, with the length of the rest.
            let bytes = unsafe {
                let length = code.cast::<u8>().add(8).cast::<u64>().read_unaligned();
                std::slice::from_raw_parts(code.cast::<u8>(), HEADER_BYTES + length as usize)
            };
            of_fat_binary(bytes, architecture)?
        }
        ELF => return Err("it has machine code alone".into()),
        // SAFETY: the caller's promise: it is text.
        _ => unsafe { CStr::from_ptr(code.cast::<c_char>()) }.to_bytes().to_vec(),
    };
    of_text(&text, layout)
}

fn of_fat_binary(bytes: &[u8], architecture: u32) -> Result<Vec<u8>, String> {
    let found: Vec<Vec<EmbeddedPtx>> = embedded(bytes).map_err(|error| error.to_string())?;
    match &found[..] {
        [] => Err("it has machine code alone".into()),
        [texts] => best(texts, architecture)
            .map(|best| best.text.clone())
            .ok_or_else(|| format!("its PTX is for later GPUs than this one, of architecture {architecture}")),
        _ => Err("it has PTX of several files in one".into()),
    }
}

fn of_text(text: &[u8], layout: &TableLayout) -> Result<Image, String> {
    let rewritten = rewrite(text, layout).map_err(|error| error.to_string())?;
    let functions = &rewritten.report.functions;
    // Any kernel may call them.
    let of_all = functions
        .iter()
        .filter(|function| !function.is_entry)
        .find_map(uses_home);
    let kernels = functions.iter().filter(|function| function.is_entry).map(|function| {
        let kernel = KernelOf {
            quiet: function.quiet.as_deref().and_then(|name| CString::new(name).ok()),
            plain: None,
            at_home: uses_home(function).or_else(|| of_all.clone()),
        };
        (function.name.clone(), kernel)
    });
    let mut kernels: BTreeMap<String, KernelOf> = kernels.collect();
    // It has been read before. Behind a zero there is nothing.
    let original = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let original = std::str::from_utf8(original).map_err(|error| error.to_string())?;
    let module = gpuvm_ptx::Module::parse(original).map_err(|error| error.to_string())?;
    let has_variables = module.items.iter().any(is_variable);
    let text = match has_variables {
        true => with_plain(rewritten.text, original, &module),
        false => rewritten.text,
    };
    for (name, kernel) in kernels.iter_mut().filter(|_| has_variables) {
        kernel.plain = CString::new(format!("{PLAIN}{name}")).ok();
    }
    let text = CString::new(text).map_err(|error| error.to_string())?;
    Ok(Image {
        text,
        has_variables,
        kernels,
    })
}

/// Whether it is a variable that code of the program may have changed. Texts and names of functions, as nvcc has them, are none.
fn is_variable(item: &Item<'_>) -> bool {
    let Item::Variable(variable) = item else { return false };
    let is_string = |name: &str| name.starts_with("$str") || name.starts_with("__unnamed_");
    matches!(variable.space, Space::Global | Space::Const | Space::Other)
        && !variable.names.iter().all(|declared| is_string(declared.name))
}

/// A rewritten text with the kernels of the one that it was made from behind it, by other names. They share its variables; functions that they call
/// look up as ever.
fn with_plain(mut rewritten: String, original: &str, module: &gpuvm_ptx::Module<'_>) -> String {
    let kernels = module
        .functions()
        .filter(|function| function.is_entry && function.body.is_some());
    for function in kernels {
        // A name is a part of the text.
        let name = function.name.as_ptr().addr() - original.as_ptr().addr();
        for part in [
            "\n\n",
            &original[function.span.start..name],
            PLAIN,
            &original[name..function.span.end],
        ] {
            rewritten.push_str(part);
        }
    }
    rewritten.push('\n');
    rewritten
}

/// Why a function needs pages at home: an instruction that may access paged memory and looks no page up.
fn uses_home(function: &FunctionReport) -> Option<String> {
    // A function without a body is one of the GPU's own library, such as `vprintf`.
    let left = |left: &&gpuvm_ptx::LeftAlone| left.why.may_use_home() && left.why != Left::OutsideCall;
    let found = function.left.iter().find(left)?;
    Some(format!("{} looks no page up: {}", found.opcode, found.why))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &CStr = c".version 8.0 .target sm_75 .address_size 64
.visible .entry plain(.param .u64 at) {
    .reg .b64 %a; .reg .b32 %v;
    ld.param.u64 %a, [at]; ld.global.u32 %v, [%a]; st.global.u32 [%a+4], %v; ret;
}
.visible .entry bulk(.param .u64 at) {
    .reg .b64 %a;
    ld.param.u64 %a, [at];
    cp.async.bulk.prefetch.L2.global [%a], 64; newer.global.u32 [%a], 1; ret;
}";

    fn layout() -> TableLayout {
        TableLayout::new(65536).unwrap().touches(true).both_forms(true)
    }

    #[test]
    fn text_is_rewritten_kernel_by_kernel() {
        // SAFETY: a text that ends.
        let image = unsafe { rewritten(TEXT.as_ptr().cast(), 90, &layout()) }.unwrap();
        let plain = &image.kernels["plain"];
        assert_eq!(
            (plain.at_home.as_deref(), plain.quiet.as_deref()),
            (None, Some(c"gpuvm_quiet_plain"))
        );
        let reason = image.kernels["bulk"].at_home.clone().unwrap();
        assert!(reason.contains("looks no page up"), "{reason}");
        assert!(image.text.to_str().unwrap().contains("gpuvm_window"));
    }

    /// What the GPU's memory holds is used so, and the text is read by who reads the other.
    #[test]
    fn kernels_are_there_as_they_were_written_too() {
        let own = format!("{}\n.visible .global .u32 count;\n", TEXT.to_str().unwrap());
        let own = CString::new(own).unwrap();
        // SAFETY: texts that end.
        let [image, alone] =
            [own.as_c_str(), TEXT].map(|text| unsafe { rewritten(text.as_ptr().cast(), 90, &layout()) }.unwrap());
        assert!(image.has_variables && !alone.has_variables && alone.kernels["plain"].plain.is_none());
        let text = image.text.to_str().unwrap();
        let module = gpuvm_ptx::Module::parse(text).unwrap();
        let original = gpuvm_ptx::Module::parse(own.to_str().unwrap()).unwrap();
        for function in original.functions() {
            let name = image.kernels[function.name].plain.clone().unwrap();
            let form = module
                .functions()
                .find(|form| form.name.as_bytes() == name.to_bytes())
                .unwrap();
            let own = &own.to_str().unwrap()[function.span.clone()];
            assert_eq!(text[form.span.clone()].replace("gpuvm_plain_", ""), own);
        }
    }

    #[test]
    fn a_file_that_is_cut_off_is_no_code() {
        let binary = fat_binary(TEXT.to_bytes());
        assert_eq!(ended(binary[..binary.len() - 1].to_vec()), None);
        assert_eq!(ended(binary[..12].to_vec()), None);
        let whole = ended(binary.clone()).unwrap();
        assert_eq!(
            (&whole[..binary.len()], &whole[binary.len()..]),
            (&binary[..], &[0; 4][..])
        );
        assert_eq!(ended(Vec::new()), Some(vec![0; 4]), "the driver says what it is");
    }

    /// A fat binary with one text, as the format has it.
    fn fat_binary(text: &[u8]) -> Vec<u8> {
        let mut entry = vec![0; 64];
        entry[0] = 1;
        entry[2..4].copy_from_slice(&0x0101_u16.to_le_bytes());
        entry[4..8].copy_from_slice(&64_u32.to_le_bytes());
        entry[8..16].copy_from_slice(&(text.len() as u64).to_le_bytes());
        entry[28..32].copy_from_slice(&75_u32.to_le_bytes());
        let mut bytes = vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
        bytes.extend(((entry.len() + text.len()) as u64).to_le_bytes());
        bytes.extend(entry);
        bytes.extend(text);
        bytes
    }

    #[test]
    fn fat_binaries_are_found_behind_what_stands_for_them() {
        let binary = fat_binary(TEXT.to_bytes());
        let wrapper = [u64::from(WRAPPER), binary.as_ptr() as u64];
        // SAFETY: both are what the driver takes.
        let [direct, wrapped] = unsafe {
            [
                rewritten(binary.as_ptr().cast(), 90, &layout()).map(|image| image.text),
                rewritten(wrapper.as_ptr().cast(), 90, &layout()).map(|image| image.text),
            ]
        };
        assert!(direct.is_ok(), "{direct:?}");
        assert_eq!(direct, wrapped);
        // SAFETY: as above.
        let older = unsafe { rewritten(binary.as_ptr().cast(), 70, &layout()) }.map(|_| ());
        assert!(older.unwrap_err().contains("later GPUs"));
    }

    #[test]
    fn machine_code_is_left() {
        let object = *b"\x7fELF\x02\x01\x01\0";
        // SAFETY: an object's first bytes, more of which is not read.
        let left = unsafe { rewritten(object.as_ptr().cast(), 90, &layout()) }.map(|_| ());
        assert_eq!(left, Err("it has machine code alone".into()));
    }
}
