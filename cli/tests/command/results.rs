//! Applications write what they come to: read back from each format, and compared with the processor's result for the same parameters.

use std::fs::File;
use std::path::Path;

use gpuvm_workloads::apps::{App, Column, Values, catalogue};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use crate::common::{finish, gpuvm};

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

/// A column: its name, and its values, of a type that is known by NumPy's name where the file says it.
type Read = (String, Vec<f64>);

fn numbers(values: &Values) -> (Vec<f64>, &'static str) {
    match values {
        Values::I32(all) => (all.iter().map(|value| f64::from(*value)).collect(), "<i4"),
        Values::U32(all) => (all.iter().map(|value| f64::from(*value)).collect(), "<u4"),
        Values::I64(all) => (all.iter().map(|value| *value as f64).collect(), "<i8"),
        Values::U64(all) => (all.iter().map(|value| *value as f64).collect(), "<u8"),
        Values::F32(all) => (all.iter().map(|value| f64::from(*value)).collect(), "<f4"),
    }
}

/// What the processor comes to, as it is to be written.
fn expected(app: &dyn App) -> Vec<Column> {
    app.written(app.expected().to_vec())
}

fn given(text: &'static str) -> Vec<(&'static str, String)> {
    let pairs = text.split_ascii_whitespace().filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name, value.to_owned())).collect()
}

/// The numbers of a row follow each other; each column has as many as `like` says.
fn by_columns(like: &[Column], mut next: impl FnMut(&'static str) -> Option<f64>) -> Vec<Read> {
    let mut all: Vec<Read> = like.iter().map(|column| (column.name.to_owned(), Vec::new())).collect();
    for _ in 0..like[0].rows() {
        for ((_, values), column) in all.iter_mut().zip(like) {
            let kind = numbers(&column.values).1;
            values.extend((0..column.width.unwrap_or(1)).map(|_| next(kind).expect("a value is missing")));
        }
    }
    assert_eq!(next("<i4"), None, "there are more values");
    all
}

fn read_text(path: &Path, like: &[Column]) -> Vec<Read> {
    let text = std::fs::read_to_string(path).unwrap();
    let (head, rest) = text.split_once('\n').unwrap();
    let names: Vec<String> = like.iter().map(ToString::to_string).collect();
    assert_eq!(head, format!("# {}", names.join("\t")));
    assert_eq!(rest.lines().count(), like[0].rows());
    let mut values = rest.split_ascii_whitespace();
    by_columns(like, |_| values.next().map(|value| value.parse().unwrap()))
}

fn read_npy(path: &Path, like: &[Column]) -> Vec<Read> {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes[..8], *b"\x93NUMPY\x01\x00");
    let begin = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert!(begin.is_multiple_of(64) && bytes[begin - 1] == b'\n');
    let field = |column: &Column| {
        let kind = numbers(&column.values).1;
        let wide = column.width.map_or(String::new(), |width| format!(", ({width},)"));
        format!("('{}', '{kind}'{wide})", column.name)
    };
    let (kind, across) = match like {
        [one] => (
            format!("'{}'", numbers(&one.values).1),
            one.width.map_or(String::new(), |width| format!(" {width},")),
        ),
        _ => (
            format!("[{}]", like.iter().map(field).collect::<Vec<_>>().join(", ")),
            String::new(),
        ),
    };
    let head = format!(
        "{{'descr': {kind}, 'fortran_order': False, 'shape': ({},{across}), }}",
        like[0].rows()
    );
    assert_eq!(std::str::from_utf8(&bytes[10..begin]).unwrap().trim_end(), head);
    let mut rest = &bytes[begin..];
    by_columns(like, |kind| {
        let (word, after) = rest.split_first_chunk::<4>()?;
        let (long, behind) = rest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let (value, left) = match kind {
            "<i4" => (f64::from(i32::from_le_bytes(*word)), after),
            "<u4" => (f64::from(u32::from_le_bytes(*word)), after),
            "<f4" => (f64::from(f32::from_le_bytes(*word)), after),
            "<i8" => (i64::from_le_bytes(*long) as f64, behind),
            _ => (u64::from_le_bytes(*long) as f64, behind),
        };
        rest = left;
        Some(value)
    })
}

fn read_parquet(path: &Path, like: &[Column]) -> Vec<Read> {
    fn number(field: &Field, values: &mut Vec<f64>) {
        match field {
            Field::Int(value) => values.push(f64::from(*value)),
            Field::UInt(value) => values.push(f64::from(*value)),
            Field::Long(value) => values.push(*value as f64),
            Field::ULong(value) => values.push(*value as f64),
            Field::Float(value) => values.push(f64::from(*value)),
            Field::ListInternal(list) => list.elements().iter().for_each(|field| number(field, values)),
            other => panic!("{other:?}"),
        }
    }
    let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let mut all: Vec<Read> = like.iter().map(|column| (column.name.to_owned(), Vec::new())).collect();
    for row in file.get_row_iter(None).unwrap() {
        for ((name, field), (known, values)) in row.unwrap().get_column_iter().zip(&mut all) {
            assert_eq!(name, known);
            number(field, values);
        }
    }
    all
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
    for ((name, found), column) in found.iter().zip(like) {
        let expected = numbers(&column.values).0;
        assert_eq!(found.len(), expected.len(), "{arguments} {end}: {name}");
        let close = |(one, other): (&f64, &f64)| (one - other).abs() <= app.slack(*other).max(1e-6 * other.abs());
        let wrong = found.iter().zip(&expected).position(|pair| !close(pair));
        assert_eq!(
            wrong, None,
            "{arguments} {end}: {name}: {found:?}, and not {expected:?}"
        );
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
                &format!("{arguments} --gpus sim,sim,sim"),
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
    for (arguments, status, expected) in [
        (
            "sssp edges.txt --source 71",
            1,
            "the graph has no vertex 71; its ids go from 3 to 4000, not all of them used",
        ),
        (
            "sssp kron:4 --source -1",
            2,
            "`-1` is no source, which is a whole number from 0",
        ),
        (
            "sssp kron:4 --step 0",
            2,
            "`0` is no step, which is a whole number from 1",
        ),
        (
            "pagerank kron:4 --damping 1.5",
            2,
            "`1.5` is no damping, which is a number from 0 to 1",
        ),
        (
            "pagerank kron:4 --tolerance NaN",
            2,
            "`NaN` is no tolerance, which is a number from 0 to 2",
        ),
        (
            "pagerank kron:4 --iterations 0",
            2,
            "`0` is no iterations, which is a whole number from 1 to 100000",
        ),
        (
            "knn clusters:300:8 --k 0",
            2,
            "`0` is no k, which is a whole number from 1 to 256",
        ),
        ("knn clusters:30:8 --k 31", 1, "ask for 1 to 30"),
        (
            "query1 trips:10 --share 2",
            2,
            "`2` is no share, which is a number from 0 to 1",
        ),
        ("cc kron:4 --source 1", 2, "unexpected argument '--source'"),
        // Before the input, which is not there.
        (
            "cc not_here --output x.csv",
            1,
            "end it in .txt, .tsv, .npy or .parquet",
        ),
        ("cc not_here --output no/x.npy", 1, "cannot write to no/x.npy"),
        (
            "pagerank not_here --gpus sim,sim --output no/x.npy",
            1,
            "cannot write to no/x.npy",
        ),
        ("cc edges.txt --output ./edges.txt", 1, "is the input itself"),
    ] {
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
        assert_eq!(help.contains("--gpus"), entry.several, "{help}");
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
