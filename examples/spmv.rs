//! Sparse matrix-vector product y = A x: the matrix is eight times larger than the memory for its pages.

use std::error::Error;
use std::io::{Write, stdout};

use gpuvm::{LaunchConfig, Vm};

/// A matrix in CSR form with `rows` rows and between 1 and 31 entries a row.
struct Matrix {
    offsets: Vec<u64>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

fn matrix(rows: u64) -> Matrix {
    let mut matrix = Matrix {
        offsets: vec![0],
        columns: Vec::new(),
        values: Vec::new(),
    };
    for row in 0..rows {
        for k in 0..1 + row * 7 % 31 {
            matrix.columns.push(((row * 2_654_435_761 + k * 40_503) % rows) as u32);
            matrix.values.push(((row + k) % 17) as f64 - 8.0);
        }
        matrix.offsets.push(matrix.columns.len() as u64);
    }
    matrix
}

fn main() -> Result<(), Box<dyn Error>> {
    let rows = 50_000;
    let a = matrix(rows);
    let x: Vec<f64> = (0..rows).map(|i| (i % 101) as f64).collect();
    let bytes = a.columns.len() as u64 * 12;

    let vm = Vm::builder().frame_memory(bytes / 8).build()?;
    let entries = a.columns.len() as u64;
    let offsets = vm.region().name("offsets").read_only().from_slice(&a.offsets)?;
    let columns = vm.region().name("columns").read_only().from_slice(&a.columns)?;
    let values = vm.region().name("values").read_only().from_slice(&a.values)?;
    let vector = vm.region().name("x").read_only().from_slice(&x)?;
    let y = vm.region::<f64>().name("y").zeroed(rows)?;

    let spmv = vm.kernel("spmv.cu", include_str!("spmv.cu"), "spmv<double>")?;
    let config = LaunchConfig::new(rows.div_ceil(128) as u32, 128);
    spmv.launch(config, (&offsets, &columns, &values, &vector, &y))?
        .sync()?;

    for (row, &found) in y.to_vec()?.iter().enumerate() {
        let range = a.offsets[row] as usize..a.offsets[row + 1] as usize;
        let expected: f64 = range.map(|k| a.values[k] * x[a.columns[k] as usize]).sum();
        // Small whole numbers: every sum is exact.
        if found != expected {
            return Err(format!("row {row} is {found}, expected {expected}").into());
        }
    }
    let stats = vm.stats()?;
    // Not println!, which panics where the output is closed or full.
    writeln!(
        stdout(),
        "{rows} rows with {entries} entries are right: {} faults, {} pages fetched",
        stats.faults,
        stats.pages_fetched
    )?;
    Ok(())
}
