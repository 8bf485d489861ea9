//! Files that pyarrow 26 and safetensors 0.8 wrote from Python, by `tests/data/write.py`.

use gpuvm_formats::{ArrowFile, Dtype, SafeTensors};

use crate::{data, refused, says, sum, vm};

#[test]
fn feather_of_pyarrow() {
    let (vm, file) = (vm(), ArrowFile::open(data("plain.feather")).unwrap());
    assert_eq!(file.columns().collect::<Vec<_>>(), ["id", "fare", "name", "kind"]);
    let ids = file.column("id").unwrap();
    assert_eq!(ids.iter().map(|part| part.rows()).collect::<Vec<_>>(), [400, 400, 200]);
    let ids = ids.iter().map(|part| part.values().region::<i64>(&vm).unwrap());
    assert_eq!(
        ids.map(|part| sum::<_, u64>(&vm, "sum_i64", &part)).sum::<u64>(),
        1000 * 999 / 2
    );
    let fares = file.column("fare").unwrap();
    assert_eq!(fares.iter().map(|part| part.nulls()).sum::<u64>(), 250);
    let bits = fares[0]
        .validity()
        .unwrap()
        .region::<u8>(&vm)
        .unwrap()
        .to_vec()
        .unwrap();
    assert_eq!(bits, vec![0xee; 50]);
    let names = &file.column("name").unwrap()[1];
    let offsets = names.offsets().unwrap().region::<i32>(&vm).unwrap().to_vec().unwrap();
    let bytes = names.values().region::<u8>(&vm).unwrap().to_vec().unwrap();
    let name = |i: usize| &bytes[offsets[i] as usize..offsets[i + 1] as usize];
    assert_eq!((name(0), name(399)), (&b"n400"[..], &b"n799"[..]));
    let kinds = file.column("kind").unwrap();
    let [kind] = kinds[2].dictionary() else {
        panic!("{kinds:?}")
    };
    let ends = kind.offsets().unwrap().region::<i32>(&vm).unwrap().to_vec().unwrap();
    let text = kind.values().region::<u8>(&vm).unwrap().to_vec().unwrap();
    assert_eq!((&ends[..], &text[..]), (&[0, 3, 7][..], &b"bustaxi"[..]));
    let places = kinds[2].values().region::<i32>(&vm).unwrap().to_vec().unwrap();
    assert_eq!(places, (800..1000).map(|i| i % 2).collect::<Vec<_>>());
    let packed = ArrowFile::open(data("lz4.feather")).unwrap();
    says(
        &refused(packed.column("id")),
        &["LZ4_FRAME", "lz4.feather", "compression=\"uncompressed\""],
    );
}

#[test]
fn lists_of_pyarrow() {
    let (vm, file) = (vm(), ArrowFile::open(data("lists.feather")).unwrap());
    let vectors = file.column("vector").unwrap();
    assert_eq!(vectors.iter().map(|part| part.rows()).collect::<Vec<_>>(), [600, 400]);
    let part = vectors[1].values().region::<f32>(&vm).unwrap().to_vec().unwrap();
    assert_eq!((part.len(), vectors[1].list_size()), (1200, Some(3)));
    assert_eq!(part[3..6], [601.0, 300.5, -601.0]);
    let tokens = &file.column("tokens").unwrap()[1];
    let offsets = tokens.offsets().unwrap().region::<i32>(&vm).unwrap().to_vec().unwrap();
    let items = tokens.values().region::<i32>(&vm).unwrap().to_vec().unwrap();
    assert_eq!(tokens.nulls(), 40);
    for (row, i) in (600..1000).enumerate() {
        let length = if i % 10 == 0 { 0 } else { i % 7 };
        let found = &items[offsets[row] as usize..offsets[row + 1] as usize];
        assert_eq!(found, (0..length).collect::<Vec<_>>());
    }
    assert_eq!(file.columns().collect::<Vec<_>>(), ["vector", "tokens", "point.x"]);
    let points = file.column("point.x").unwrap();
    let points = points.iter().map(|part| part.values().region::<i32>(&vm).unwrap());
    let points: Vec<i32> = points.flat_map(|part| part.to_vec().unwrap()).collect();
    assert_eq!(points, (0..1000).collect::<Vec<_>>());
    says(
        &refused(file.column("point")),
        &["no column `point`", "it has `point.x`"],
    );
}

#[test]
fn structures_maps_and_views_of_pyarrow() {
    let (vm, file) = (vm(), ArrowFile::open(data("nested.feather")).unwrap());
    assert_eq!(
        file.columns().collect::<Vec<_>>(),
        ["point.x", "point.at.y", "stock.key", "stock.value", "word"]
    );
    let last = |name: &str| file.column(name).unwrap().remove(1);
    let y = last("point.at.y");
    let kept = y
        .within()
        .iter()
        .map(|bits| bits.region::<u8>(&vm).unwrap().to_vec().unwrap());
    let kept: Vec<_> = kept.collect();
    let values = y.values().region::<f64>(&vm).unwrap().to_vec().unwrap();
    assert_eq!((kept.len(), y.rows()), (2, 400));
    for (row, i) in (600..1000).enumerate() {
        let there = kept.iter().all(|bits| bits[row / 8] >> (row % 8) & 1 == 1);
        assert_eq!(there, i % 3 != 0 && i % 2 != 0);
        assert!(!there || values[row] == f64::from(i) / 2.0);
    }
    let amounts = last("stock.value");
    let ends = amounts.offsets().unwrap().region::<i32>(&vm).unwrap().to_vec().unwrap();
    let values = amounts.values().region::<i32>(&vm).unwrap().to_vec().unwrap();
    for (row, i) in (600..1000).enumerate() {
        let found = &values[ends[row] as usize..ends[row + 1] as usize];
        assert_eq!(found, (0..i % 3).map(|n| i + n).collect::<Vec<_>>());
    }
    let words = last("word");
    let views = words.values().region::<[u32; 4]>(&vm).unwrap().to_vec().unwrap();
    assert_eq!((words.nulls(), views[1][0]), (66, "601".len() as u32 + 601 % 40));
    assert!(!words.buffers().is_empty());
}

#[test]
fn safetensors_of_numpy() {
    let (vm, file) = (vm(), SafeTensors::open(data("model.safetensors")).unwrap());
    assert_eq!(file.notes()["made"], "by numpy");
    let weight = file.tensor("weight").unwrap();
    assert_eq!(weight.shape(), [40, 25]);
    let weight = weight.region::<f32>(&vm).unwrap();
    assert_eq!(sum::<_, f64>(&vm, "sum_f32", &weight), 1000.0 * 999.0 / 2.0);
    let half = file.tensor("half").unwrap();
    assert_eq!(half.dtype(), Dtype::F16);
    assert_eq!(half.region::<u16>(&vm).unwrap().to_vec().unwrap(), [0x3c00, 0xc000]);
    assert_eq!(
        file.tensor("count")
            .unwrap()
            .region::<i32>(&vm)
            .unwrap()
            .to_vec()
            .unwrap(),
        [7]
    );
}
