//! Files that pyarrow 26 and safetensors 0.8 wrote from Python, by `tests/data/write.py`: they are opened. What is in them is looked at by
//! python/tests/test_formats.py.

use gpuvm_formats::{ArrowFile, Dtype, SafeTensors};

use crate::{data, read, refused, says, sum, vm};

#[test]
fn columns_of_pyarrow() {
    let open = |name: &str| ArrowFile::open(data(name)).unwrap();
    for (name, columns) in [
        ("plain.feather", &["id", "fare", "name", "kind"][..]),
        ("lists.feather", &["vector", "tokens", "point.x"]),
        (
            "nested.feather",
            &["point.x", "point.at.y", "stock.key", "stock.value", "word"],
        ),
    ] {
        assert_eq!(open(name).columns().collect::<Vec<_>>(), columns);
        let rows = |column: &&str| open(name).column(column).unwrap().iter().map(|part| part.rows()).sum();
        assert!(columns.iter().map(rows).all(|rows: u64| rows == 1000), "{name}");
    }
    let ids = open("plain.feather").column("id").unwrap();
    assert!(ids.iter().flat_map(|part| read::<i64>(part.values())).eq(0..1000));
    let kind = open("plain.feather").column("kind").unwrap()[2].dictionary()[0].clone();
    assert_eq!(read::<u8>(kind.values()), b"bustaxi");
    let words = ["LZ4_FRAME", "lz4.feather", "compression=\"uncompressed\""];
    says(&refused(open("lz4.feather").column("id")), &words);
}

/// As Arrow's C++ library, and so pyarrow, writes them with `metadata_version=MetadataVersion.V4`.
#[test]
fn messages_of_version_4_before_a_footer_of_version_5() {
    let file = ArrowFile::open(data("v4.arrow")).unwrap();
    assert!(read::<i32>(file.column("i").unwrap()[0].values()).into_iter().eq(0..10));
    let halves = (0..10).map(|i| f64::from(i) / 2.0);
    assert!(
        read::<f64>(file.column("f").unwrap()[0].values())
            .into_iter()
            .eq(halves)
    );
}

#[test]
fn safetensors_of_numpy() {
    let (vm, file) = (vm(), SafeTensors::open(data("model.safetensors")).unwrap());
    assert_eq!(file.notes()["made"], "by numpy");
    let of = |name: &str| file.tensor(name).unwrap().clone();
    assert_eq!((of("weight").shape(), of("half").dtype()), (&[40, 25][..], Dtype::F16));
    let weight = of("weight").region::<f32>(&vm).unwrap();
    assert_eq!(sum::<_, f64>(&vm, "float, double", &weight), 1000.0 * 999.0 / 2.0);
    assert_eq!(read::<u16>(of("half").elements()), [0x3c00, 0xc000]);
    assert_eq!(read::<i32>(of("count").elements()), [7]);
}
