//! Applications write what they come to: read back from each format, and compared with the processor's result for the same parameters.

use std::fs::File;
use std::path::Path;

use gpuvm_workloads::apps::{App, Column, Values, catalogue};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use crate::common::{case_of, finish, gpuvm};

/// Applications, inputs, and other values for all of their parameters. `EDGES` is a file.
const RUNS: &[(&str, &str, &str)] = &[
    ("vector-add", "20", ""),
    ("mvt", "20", ""),
    ("atax", "20", ""),
    ("bicg", "20", ""),
    ("gesummv", "20", "alpha=-0.5 beta=7"),
    ("stencil", "20", ""),
    ("query0", "trips:2000", "share=0.2"),
    ("query1", "trips:2000", "least=7.5"),
    ("query2", "trips:2000", "share=0.3 payment=2"),
    ("query3", "trips:2000", "share=0.01 fewest=2 most=5"),
    ("query4", "trips:2000", "share=0.3"),
    ("embedding", "300x8", "bags=7 ids=3"),
    ("sort", "3000", "part=700"),
    ("knn", "clusters:300:8", "k=3 beam=96 recall=0.5"),
    ("bfs", "EDGES", "source=800"),
    ("sssp", "EDGES", "source=800 step=3"),
    ("cc", "EDGES", ""),
    ("pagerank", "kron:6", "iterations=9 damping=0.6"),
    ("pagerank", "kron:6", "tolerance=0.01"),
    ("tc", "kron:6", ""),
];
/// Parameters of how and not of what.
const SAME_RESULT: [&str; 4] = ["beam", "part", "recall", "step"];
/// Two components; ids with gaps.
const EDGES: &str = "900 70\n70 800\n3 900\n3 4000\n10 20\n";

/// The values, and NumPy's name of their type.
fn numbers(values: &Values) -> (Vec<f64>, &'static str) {
    match values {
        Values::I32(all) => (all.iter().map(|value| f64::from(*value)).collect(), "<i4"),
        Values::U32(all) => (all.iter().map(|value| f64::from(*value)).collect(), "<u4"),
        Values::I64(all) => (all.iter().map(|value| *value as f64).collect(), "<i8"),
        Values::U64(all) => (all.iter().map(|value| *value as f64).collect(), "<u8"),
        Values::F32(all) => (all.iter().map(|value| f64::from(*value)).collect(), "<f4"),
    }
}

/// The values as files have them, row by row, each with its type.
fn by_rows(columns: &[Column]) -> Vec<(f64, &'static str)> {
    let parts: Vec<_> = columns
        .iter()
        .map(|column| (numbers(&column.values), column.width.unwrap_or(1)))
        .collect();
    let row = |row: usize| {
        parts
            .iter()
            .flat_map(move |((all, kind), width)| all[row * width..][..*width].iter().map(|value| (*value, *kind)))
    };
    (0..columns[0].rows()).flat_map(row).collect()
}

/// What the processor comes to, as it is to be written.
fn expected(app: &dyn App) -> Vec<Column> {
    app.written(app.expected().to_vec())
}

fn given(text: &'static str) -> Vec<(&'static str, String)> {
    let pairs = text.split_ascii_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name, value.to_owned())).collect()
}

fn read_text(path: &Path, like: &[Column]) -> Vec<f64> {
    let text = std::fs::read_to_string(path).unwrap();
    let (head, rest) = text.split_once('\n').unwrap();
    let names: Vec<String> = like.iter().map(ToString::to_string).collect();
    assert_eq!(head, format!("# {}", names.join("\t")));
    assert_eq!(rest.lines().count(), like[0].rows());
    rest.split_ascii_whitespace()
        .map(|value| value.parse().unwrap())
        .collect()
}

fn read_npy(path: &Path, like: &[Column]) -> Vec<f64> {
    let bytes = std::fs::read(path).unwrap();
    let begin = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00") && begin.is_multiple_of(64) && bytes[begin - 1] == b'\n');
    let head = String::from_utf8_lossy(&bytes[10..begin]).replace(' ', "");
    for column in like {
        let (kind, rows) = (numbers(&column.values).1, column.rows());
        let width = column.width.map_or(String::new(), |width| format!("{width},"));
        let field = match (like, column.width) {
            ([_], _) => format!("{{'descr':'{kind}','fortran_order':False,'shape':({rows},{width}),}}"),
            (_, None) => format!("('{}','{kind}')", column.name),
            (_, Some(_)) => format!("('{}','{kind}',({width}))", column.name),
        };
        assert!(head.contains(&field), "{head}: {field}");
    }
    let mut rest = &bytes[begin..];
    let value = |(_, kind): (f64, &str)| {
        let own;
        (own, rest) = rest.split_at(if kind.ends_with('8') { 8 } else { 4 });
        match kind {
            "<i4" => f64::from(i32::from_le_bytes(own.try_into().unwrap())),
            "<u4" => f64::from(u32::from_le_bytes(own.try_into().unwrap())),
            "<f4" => f64::from(f32::from_le_bytes(own.try_into().unwrap())),
            "<i8" => i64::from_le_bytes(own.try_into().unwrap()) as f64,
            _ => u64::from_le_bytes(own.try_into().unwrap()) as f64,
        }
    };
    let found = by_rows(like).into_iter().map(value).collect();
    assert!(rest.is_empty(), "{} bytes are left", rest.len());
    found
}

fn read_parquet(path: &Path, like: &[Column]) -> Vec<f64> {
    fn number(field: &Field) -> Vec<f64> {
        match field {
            Field::Int(value) => vec![f64::from(*value)],
            Field::UInt(value) => vec![f64::from(*value)],
            Field::Long(value) => vec![*value as f64],
            Field::ULong(value) => vec![*value as f64],
            Field::Float(value) => vec![f64::from(*value)],
            Field::ListInternal(list) => list.elements().iter().flat_map(number).collect(),
            other => panic!("{other:?}"),
        }
    }
    let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let rows = file.get_row_iter(None).unwrap().map(Result::unwrap);
    let row = |row: parquet::record::Row| {
        assert!(
            row.get_column_iter()
                .map(|(name, _)| name)
                .eq(like.iter().map(|column| column.name))
        );
        row.get_column_iter()
            .flat_map(|(_, field)| number(field))
            .collect::<Vec<_>>()
    };
    rows.flat_map(row).collect()
}

/// Runs an application, and compares the file that it writes with the processor's result.
fn runs(folder: &Path, app: &dyn App, like: &[Column], arguments: &str, end: &str) {
    let path = folder.join(format!("out{end}"));
    let (status, out, err) = finish(gpuvm(folder, &format!("run {arguments} --output out{end}")));
    assert_eq!((status, err.as_str()), (0, ""), "{arguments}: {out}");
    let found = match end {
        ".npy" => read_npy(&path, like),
        ".parquet" => read_parquet(&path, like),
        _ => read_text(&path, like),
    };
    let expected = by_rows(like);
    assert_eq!(found.len(), expected.len(), "{arguments} {end}");
    for (place, (one, (other, _))) in found.iter().zip(expected).enumerate() {
        let close = (one - other).abs() <= app.slack(other).max(1e-6 * other.abs());
        assert!(close, "{arguments} {end}: value {place} is {one}, and not {other}");
    }
}

#[test]
fn results_are_those_of_the_processor_in_each_format() {
    let folder = tempfile::tempdir().unwrap();
    let edges = folder.path().join("edges.txt");
    std::fs::write(&edges, EDGES).unwrap();
    for (name, input, parameters) in RUNS {
        let input = input.replace("EDGES", edges.to_str().unwrap());
        let (entry, given) = (catalogue::find(name).unwrap(), given(parameters));
        let app = entry.make_with(&input, &given).unwrap();
        let like = expected(&*app);
        // Each parameter matters by itself.
        let usual = expected(&*entry.make(&input).unwrap());
        for one in &given {
            let with = expected(&*entry.make_with(&input, std::slice::from_ref(one)).unwrap());
            let same = format!("{with:?}") == format!("{usual:?}");
            assert_eq!(same, SAME_RESULT.contains(&one.0), "{name} with {one:?}");
        }
        let options: Vec<String> = given.iter().map(|(name, value)| format!("--{name} {value}")).collect();
        let arguments = format!("{name} {input} {}", options.join(" "));
        for end in ["", ".txt", ".npy", ".parquet"] {
            runs(folder.path(), &*app, &like, &arguments, end);
        }
        if entry.several {
            runs(
                folder.path(),
                &*app,
                &like,
                &format!("{arguments} --gpu sim,sim,sim"),
                ".npy",
            );
        }
    }
    let tested = |entry: &&catalogue::Entry| RUNS.iter().any(|(name, ..)| *name == entry.name);
    assert_eq!(catalogue::ALL.iter().filter(tested).count(), catalogue::ALL.len());
    // Nothing else is left: the edges, and a file of each name.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5);
}

#[test]
fn parameters_and_files_that_cannot_be_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("edges.txt"), EDGES).unwrap();
    for case in [
        "sssp edges.txt --source 71 => 1: the graph has no vertex 71; its ids go from 3 to 4000, not all of them used",
        "sssp kron:4 --source -1 => 2: invalid source `-1`: expected a whole number from 0",
        "sssp kron:4 --step 0 => 2: invalid step `0`: expected a whole number from 1",
        "pagerank kron:4 --damping 1.5 => 2: invalid damping `1.5`: expected a number from 0 to 1",
        "pagerank kron:4 --tolerance NaN => 2: invalid tolerance `NaN`: expected a number from 0 to 2",
        "pagerank kron:4 --iterations 0 => 2: invalid iterations `0`: expected a whole number from 1 to 100000",
        "knn clusters:300:8 --k 0 => 2: invalid k `0`: expected a whole number from 1 to 256",
        "knn clusters:30:8 --k 31 => 1: ask for 1 to 30",
        "query1 trips:10 --share 2 => 2: invalid share `2`: expected a number from 0 to 1",
        "cc kron:4 --source 1 => 2: unexpected argument '--source'",
        // Before the input, which is not there.
        "cc not_here --output x.csv => 1: end the name in .txt, .tsv, .npy or .parquet",
        "cc not_here --output no/x.npy => 1: cannot write to no/x.npy",
        "pagerank not_here --gpu sim,sim --output no/x.npy => 1: cannot write to no/x.npy",
        "cc edges.txt --output ./edges.txt => 1: is the input itself",
    ] {
        let (arguments, status, expected) = case_of(case);
        let (code, out, err) = finish(gpuvm(folder.path(), &format!("run {arguments}")));
        assert_eq!((code, out.as_str()), (status, ""), "{arguments}: {err}");
        assert!(err.contains(expected), "{arguments}: {err}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn help_shows_the_parameters_of_an_application_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    for entry in catalogue::ALL.iter().filter(|entry| entry.name != "bfs") {
        let (_, help, _) = finish(gpuvm(folder.path(), &format!("run {} --help", entry.name)));
        assert!(help.starts_with(entry.about) && help.contains(entry.input), "{help}");
        assert_eq!(help.contains("each with a part of the work"), entry.several, "{help}");
        let own = help.split_once("\nParameters:\n").map_or("", |(_, own)| own);
        for parameter in (entry.parameters)() {
            let default = parameter
                .default
                .map_or("Without it".to_owned(), |default| format!("[default: {default}]"));
            let line = own
                .lines()
                .find(|line| line.contains(&format!("--{} ", parameter.name)));
            assert!(
                line.is_some_and(|line| line.contains(&parameter.allowed)),
                "{}: {help}",
                parameter.name
            );
            assert!(
                own.contains(&default) || parameter.help.contains("in the place of"),
                "{help}"
            );
        }
        assert_eq!(own.matches("  --").count(), (entry.parameters)().len(), "{help}");
    }
}
