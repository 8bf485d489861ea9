//! Tensors of files that the crate `safetensors` wrote.

use gpuvm::Placement;
use gpuvm_formats::{Dtype, SafeTensors};
use safetensors::tensor::{Dtype as Stored, TensorView};

use crate::{read, refused, says, sum, vm, write};

/// A file with a tensor for each entry, as that crate writes it.
pub fn file_of(tensors: &[(&str, Stored, &[usize], &[u8])], notes: &[(&str, &str)]) -> Vec<u8> {
    let views = tensors.iter().map(|&(name, dtype, shape, bytes)| {
        let view = TensorView::new(dtype, shape.to_vec(), bytes);
        (name, view.unwrap())
    });
    let notes = notes.iter().map(|&(a, b)| (a.to_owned(), b.to_owned()));
    safetensors::serialize(views, Some(notes.collect())).unwrap()
}

fn floats(count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

#[test]
fn a_kernel_adds_up_a_tensor_where_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let (large, small) = (floats(50_000), floats(3));
    let halves: Vec<u8> = [0x3c00u16, 0xc000].iter().flat_map(|h| h.to_le_bytes()).collect();
    let bytes = file_of(
        &[
            ("large", Stored::F32, &[50, 1000], &large),
            ("small", Stored::F32, &[3], &small),
            ("half", Stored::BF16, &[2, 1], &halves),
            ("flags", Stored::BOOL, &[5], &[1, 0, 1, 1, 0]),
            ("scalar", Stored::I64, &[], &7i64.to_le_bytes()),
            ("none", Stored::F64, &[0, 4], &[]),
            ("complex", Stored::C64, &[1], &[1; 8]),
            ("fourbits", Stored::F4, &[4], &[0x12, 0x34]),
        ],
        &[("format", "pt")],
    );
    let path = write(&folder, "model.safetensors", &bytes);
    let file = SafeTensors::open(&path).unwrap();
    assert_eq!(file.notes()["format"], "pt");
    assert_eq!(file.tensors().len(), 8);
    let vm = vm();
    let tensor = file.tensor("large").unwrap();
    assert_eq!((tensor.shape(), tensor.dtype()), (&[50, 1000][..], Dtype::F32));
    assert_eq!(tensor.elements().bytes(), 200_000);
    let first = tensor.elements().offset_bytes() as usize;
    assert_eq!(bytes[first..][..large.len()], large);
    let region = tensor.region::<f32>(&vm).unwrap();
    assert!(region.is_read_only());
    assert_eq!(sum::<_, f64>(&vm, "float, double", &region), 50_000.0 * 49_999.0 / 2.0);
    let in_place = vm.region::<f32>().name("mine").placement(Placement::Auto);
    let in_place = file.tensor("large").unwrap().map(in_place).unwrap();
    assert_eq!(in_place.name(), "mine");
    assert_eq!(
        sum::<_, f64>(&vm, "float, double", &in_place),
        50_000.0 * 49_999.0 / 2.0
    );

    let of = |name: &str| file.tensor(name).unwrap().clone();
    assert_eq!(read::<u16>(of("half").elements()), [0x3c00, 0xc000]);
    assert_eq!(read::<u8>(of("half").elements()), halves);
    assert_eq!(read::<u8>(of("flags").elements()), [1, 0, 1, 1, 0]);
    assert_eq!(read::<i64>(of("scalar").elements()), [7]);
    assert_eq!((of("scalar").shape(), of("scalar").elements().len()), (&[][..], 1));
    assert!(read::<f64>(of("none").elements()).is_empty());
    assert_eq!(of("complex").dtype(), Dtype::C64);
    assert_eq!(read::<[f32; 2]>(of("complex").elements()).len(), 1);
    assert_eq!(read::<u8>(of("fourbits").elements()), [0x12, 0x34]);
    assert_eq!(of("fourbits").elements().len(), 4);
}

#[test]
fn another_type_and_another_name_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let tensors: [(&str, Stored, &[usize], &[u8]); 2] =
        [("w", Stored::F16, &[2], &[0; 4]), ("v", Stored::F32, &[1], &[0; 4])];
    let bytes = file_of(&tensors, &[]);
    let path = write(&folder, "model.safetensors", &bytes);
    let (vm, file) = (vm(), SafeTensors::open(&path).unwrap());
    let (w, v) = (file.tensor("w").unwrap(), file.tensor("v").unwrap());
    let words = ["`w`", "model.safetensors", "F16", "f32", "u16"];
    says(&refused(w.region::<f32>(&vm)), &words);
    refused(w.region::<i16>(&vm));
    says(&refused(v.region::<u32>(&vm)), &["`v`", "F32", "ask for f32"]);
    says(&refused(file.tensor("x")), &["no tensor `x`", "`w`", "`v`"]);
    // Cut after it was opened.
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    says(&refused(w.region::<u16>(&vm)), &["`w`", "exceed"]);
    std::fs::remove_file(&path).unwrap();
    says(&refused(v.region::<f32>(&vm)), &["`v`", "No such file"]);
}

/// A file with that header, which claims this many bytes, and `data` bytes after it.
fn by_header(claimed: u64, header: &str, data: usize) -> Vec<u8> {
    [&claimed.to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn headers_that_lie_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let open = |bytes: &[u8]| SafeTensors::open(write(&folder, "bad.safetensors", bytes));
    let with = |header: &str, data| open(&by_header(header.len() as u64, header, data));
    for bytes in [&[][..], &[1, 2, 3], &[0; 8]] {
        says(
            &refused(open(bytes)),
            &["bad.safetensors", "not a complete safetensors file"],
        );
    }
    for claimed in [3, 1 << 20, 99_000_000, 1 << 40, u64::MAX, u64::MAX - 7] {
        says(&refused(open(&by_header(claimed, "{}", 0))), &["header"]);
    }
    assert!(with("{}", 0).unwrap().tensors().is_empty());
    let one = |name: &str, dtype: &str, shape: &str, offsets: &str| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{offsets}]}}"#)
    };
    let only = |dtype: &str, shape: &str, offsets: &str| format!("{{{}}}", one("a", dtype, shape, offsets));
    let overlap = [one("a", "U8", "4", "0,4"), one("b", "U8", "4", "2,6")].join(",");
    for (header, data) in [
        ("{}".to_owned(), 1),
        ("[]".to_owned(), 0),
        ("{".to_owned(), 0),
        ("\u{0}\u{1}".to_owned(), 0),
        (only("F32", "1", "0,4"), 3),
        (only("F32", "1", "0,4"), 5),
        (only("F32", "2", "0,4"), 4),
        (only("F99", "1", "0,4"), 4),
        (only("F32", "-1", "0,4"), 4),
        (only("F32", "1", "4,0"), 4),
        (only("F32", "1", "4,8"), 8),
        (r#"{"a":{"dtype":"F32","shape":[1]}}"#.to_owned(), 4),
        (format!("{{{overlap}}}"), 6),
        (only("F32", "9223372036854775807,4", "0,4"), 4),
        (only("U8", "18446744073709551615", "0,18446744073709551615"), 4),
    ] {
        says(&refused(with(&header, data)), &["bad.safetensors"]);
    }
    // Right, but of an odd length, so that the numbers are not aligned.
    let odd = only("F32", "1", "0,4") + " ";
    let file = with(&odd[..odd.len() - usize::from(odd.len().is_multiple_of(4))], 4).unwrap();
    let a = file.tensor("a").unwrap();
    let words = ["`a`", "not a multiple of 4", "from_reader"];
    says(&refused(a.region::<f32>(&vm())), &words);
    assert_eq!(a.region::<u8>(&vm()).unwrap().len(), 4);
    says(&refused(SafeTensors::open(folder.path())), &["regular"]);
    let none = SafeTensors::open(folder.path().join("none"));
    says(&refused(none), &["No such file"]);
}

#[test]
fn what_is_no_tensor_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, words) in [
        (
            &b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"[..],
            ["a Git LFS pointer", "git lfs pull"],
        ),
        (
            b"<html><body>sign in</body></html>",
            ["an HTML page", "fetch the file itself"],
        ),
        (
            b"{\n  \"metadata\": {}, \"weight_map\": {} }",
            ["JSON", "open the .safetensors files"],
        ),
        (
            b"PK\x03\x04\x14\0\0\0\x08\0.................",
            ["a zip archive", "unpack it"],
        ),
        (b"GGUF\x03\0\0\0..................", ["a GGUF file", "convert it"]),
    ] {
        let path = write(&folder, "model.safetensors", bytes);
        says(&refused(SafeTensors::open(&path)), &words);
        if bytes[0] != b'{' {
            says(&refused(gpuvm_formats::ArrowFile::open(&path)), &words);
        }
    }
    let pipe = folder.path().join("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    says(&refused(SafeTensors::open(&pipe)), &["it is not a regular file"]);
    says(
        &refused(gpuvm_formats::ArrowFile::open(&pipe)),
        &["it is not a regular file"],
    );
    for made in [
        vm().region::<u8>().map_file(&pipe),
        vm().region::<u8>().from_file(&pipe),
    ] {
        let error = made.unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "it is not a regular file", "{error}");
    }
}
