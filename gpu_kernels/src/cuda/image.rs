//! Kernels that a user compiled: whether a file is what the driver may be given, and what the names in it stand for.

use std::borrow::Cow;

use super::elf;

/// How a fat binary begins.
const FATBIN: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

/// The variable that says with what kernel `name` was compiled, as `GPUVM_EXPORT` of `gpuvm/gpuvm.cuh` calls it.
pub(crate) fn code_name(name: &str) -> String {
    format!("gpuvm_export_code_{name}")
}

/// The variable that describes kernel `name`, as `GPUVM_EXPORT` calls it.
pub(crate) fn table_name(name: &str) -> String {
    format!("gpuvm_export_table_{name}")
}

/// The image as the driver reads it, which takes its length from the image itself: PTX gets a zero at its end.
pub(crate) fn checked(image: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    let cut_off = |what: &str| format!("it is a {what} that is cut off after {} bytes", image.len());
    if image.starts_with(b"\x7fELF") {
        return match elf::is_whole(image) {
            true => Ok(Cow::Borrowed(image)),
            false => Err(cut_off("cubin")),
        };
    }
    if image.starts_with(&FATBIN) {
        return match fatbin_bytes(image).is_some_and(|bytes| bytes <= image.len() as u64) {
            true => Ok(Cow::Borrowed(image)),
            false => Err(cut_off("fat binary")),
        };
    }
    let text = image.strip_suffix(b"\0").unwrap_or(image);
    let is_text = std::str::from_utf8(text).is_ok_and(|text| text.contains(".version") && text.contains(".target"));
    if !is_text || text.contains(&0) {
        return Err(
            "it is neither a cubin, nor a fat binary, nor PTX: nvcc makes them by -cubin, -fatbin and -ptx".to_owned(),
        );
    }
    let mut text = text.to_vec();
    text.push(0);
    Ok(Cow::Owned(text))
}

/// Bytes that a fat binary says it has: a magic number, a version (2), the header's bytes (2), the bytes behind it (8).
fn fatbin_bytes(image: &[u8]) -> Option<u64> {
    let header = u16::from_le_bytes(*image.get(6..)?.first_chunk()?);
    let body = u64::from_le_bytes(*image.get(8..)?.first_chunk()?);
    body.checked_add(header.into())
}

/// The name in the binary of the kernel that its source calls `name`: itself, for `extern "C"`, or one that the Itanium C++ ABI makes of
/// it, in any namespace.
pub(crate) fn lowered(name: &str, there: &[String]) -> Result<Option<String>, String> {
    if let Some(plain) = there.iter().find(|other| *other == name) {
        return Ok(Some(plain.clone()));
    }
    let own = format!("{}{name}", name.len());
    let is_own = |other: &&String| {
        let Some(rest) = other.strip_prefix("_Z") else {
            return false;
        };
        match rest.strip_prefix('N') {
            None => rest.starts_with(&own),
            Some(nested) => last_of(nested) == Some(own.as_str()),
        }
    };
    let found: Vec<&String> = there.iter().filter(is_own).collect();
    match found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        [one, other, ..] => Err(format!(
            "it has more than one kernel `{name}` ({one}, {other}): name them apart"
        )),
    }
}

/// The last of the lengths and names of a nested name, up to the `E` behind them.
fn last_of(nested: &str) -> Option<&str> {
    let mut rest = nested;
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let length: usize = rest.get(..digits)?.parse().ok()?;
        let (one, behind) = rest.split_at_checked(digits.checked_add(length)?)?;
        if behind.starts_with('E') {
            return Some(one);
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_by_their_source_names() {
        let there = [
            "_Z5countN5gpuvm5arrayIKjEEPjj",
            "plain",
            "_ZN3one3two5scaleEPf",
            "_ZN1a3sumEi",
            "_ZN1b3sumEi",
            "_Z7counterPj",
        ];
        let there = there.map(str::to_owned);
        let find = |name| lowered(name, &there);
        assert_eq!(find("count"), Ok(Some(there[0].clone())));
        assert_eq!(find("plain"), Ok(Some(there[1].clone())));
        assert_eq!(find("scale"), Ok(Some(there[2].clone())));
        assert_eq!(find("counter"), Ok(Some(there[5].clone())));
        // Its own mangled name, too.
        assert_eq!(find("_ZN1a3sumEi"), Ok(Some(there[3].clone())));
        for absent in ["two", "array", "coun", "", "one"] {
            assert_eq!(find(absent), Ok(None), "{absent}");
        }
        assert!(find("sum").is_err_and(|cause| cause.contains("_ZN1a3sumEi") && cause.contains("_ZN1b3sumEi")));
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let ptx = b".version 8.0\n.target sm_90\n.address_size 64\n";
        assert_eq!(checked(ptx).unwrap().last(), Some(&0));
        assert_eq!(checked(&[&ptx[..], b"\0"].concat()).unwrap().len(), ptx.len() + 1);
        let mut fat = FATBIN.to_vec();
        fat.extend([1, 0, 16, 0]);
        fat.extend(8u64.to_le_bytes());
        assert!(checked(&fat).is_err_and(|cause| cause.contains("cut off after 16 bytes")));
        fat.extend([0; 8]);
        assert!(checked(&fat).is_ok());
        for cut in 4..fat.len() {
            assert!(checked(&fat[..cut]).is_err(), "{cut}");
        }
        let torn = [&ptx[..], b"\0more"].concat();
        for wrong in [
            &b""[..],
            b"int main() {}",
            b"\x7fELF",
            b"\x7fELF\x02\x01",
            &torn,
            b"\xff.version .target",
        ] {
            assert!(checked(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Of nvcc, which `./test` brings: a cubin, a fat binary and PTX have what `GPUVM_EXPORT` puts there.
    #[test]
    fn files_of_nvcc_are_whole_and_describe_their_kernels() {
        let Some(nvcc) = std::env::var_os("GPUVM_NVCC") else {
            eprintln!("SKIPPED: GPUVM_NVCC does not name nvcc; `./test` brings it");
            return;
        };
        let scratch = tempfile::tempdir().expect("a folder");
        let file = |name: &str| scratch.path().join(name);
        let source = "#include <gpuvm/gpuvm.cuh>\n__global__ void count(gpuvm::array<const unsigned> keys, unsigned* out) {\n\
                      out[0] = keys.size();\n}\nGPUVM_EXPORT(count)\n";
        std::fs::write(file("count.cu"), source).expect("written");
        crate::write_headers(scratch.path()).expect("the headers");
        let made = |kind: &str| {
            let mut command = std::process::Command::new(&nvcc);
            command.args(["-std=c++17", "-arch=sm_90", "-DGPUVM_FEATURES=1", kind, "-I"]);
            command.arg(scratch.path()).arg("-o");
            command.arg(file("image")).arg(file("count.cu"));
            let output = command.output().expect("nvcc");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            std::fs::read(file("image")).expect("what nvcc made")
        };
        let cubin = made("-cubin");
        assert!(matches!(checked(&cubin), Ok(Cow::Borrowed(_))));
        for cut in (4..cubin.len()).step_by(97) {
            assert!(checked(&cubin[..cut]).is_err(), "{cut} of {} bytes", cubin.len());
        }
        let code = elf::variable(&cubin, &code_name("count")).expect("with what it was compiled");
        assert_eq!(code, [gpuvm_layouts::LAYOUT_VERSION, 1].map(u32::to_ne_bytes).concat());
        let table = elf::variable(&cubin, &table_name("count")).expect("its parameters");
        let params = crate::back_end::params::parse(table).expect("a table");
        assert_eq!(params[0].type_name, "gpuvm::array<const unsigned int>");
        let fat = made("-fatbin");
        assert!(matches!(checked(&fat), Ok(Cow::Borrowed(_))));
        assert!(checked(&fat[..fat.len() - 1]).is_err());
        let ptx = made("-ptx");
        assert!(matches!(checked(&ptx), Ok(Cow::Owned(_))));
        let text = String::from_utf8(ptx).expect("text");
        assert!(text.contains(&code_name("count")) && text.contains(&table_name("count")));
    }
}
