//! Ports of programs that others wrote: their kernels as they are over plain memory, against the ported ones over pages with memory for
//! a quarter of them. The programs are not here: `tests/ports/run FOLDER` ports those that it finds there. What always runs is a port of
//! a program of our own.

mod bench;
mod cut;
mod graphs;
mod managed;
mod own;
mod polybench;
mod port;

use std::path::{Path, PathBuf};

use port::Port;

/// The ports of others' programs.
fn others() -> impl Iterator<Item = &'static Port> {
    let [polybench, managed, graphs] = [&polybench::PORTS[..], &managed::PORTS, &graphs::PORTS];
    polybench.iter().chain(managed).chain(graphs)
}

/// `GPUVM_PORTS` names the folder with the programs, `GPUVM_PORTS_ONLY` some of the ports.
#[test]
fn others_programs() {
    let Some(folder) = std::env::var_os("GPUVM_PORTS").map(PathBuf::from) else {
        eprintln!("skipped: GPUVM_PORTS names no folder with programs to port; see tests/ports/run --help");
        return;
    };
    let only = std::env::var("GPUVM_PORTS_ONLY").unwrap_or_default();
    let only: Vec<&str> = only.split_whitespace().collect();
    for name in &only {
        assert!(others().any(|port| port.name == *name), "there is no port {name}");
    }
    let mut failed = 0;
    for port in others().filter(|port| only.is_empty() || only.contains(&port.name)) {
        match port.run(&folder) {
            Ok(row) => println!("{row}"),
            Err(error) => {
                failed += 1;
                println!("{:<30} FAILED: {}", port.name, gpuvm_nic::with_causes(error.as_ref()));
            }
        }
    }
    assert_eq!(failed, 0, "ports failed");
}

#[test]
fn a_program_of_our_own() {
    let row = own::PORT.run(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    println!("{row}");
}

#[test]
fn a_port_that_does_not_fit_its_program_is_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let refused = |port: Port, folder: &Path| match port.run(folder) {
        Ok(row) => panic!("it passed: {row}"),
        Err(error) => gpuvm_nic::with_causes(error.as_ref()),
    };
    let nowhere = refused(own::PORT, Path::new("no_such_folder"));
    assert!(nowhere.contains("git clone https://"), "{nowhere}");
    let changes = own::PORT.changes + 1;
    let other = refused(Port { changes, ..own::PORT }, folder);
    assert!(other.contains("is not of revision"), "{other}");
    let wrong = |bench: &bench::Bench| {
        let mut values = (own::PORT.run)(bench)?;
        values[3] += f64::from(u8::from(bench.paged()));
        Ok(values)
    };
    let wrong = refused(
        Port {
            run: wrong,
            ..own::PORT
        },
        folder,
    );
    assert!(wrong.contains("result 3 is"), "{wrong}");
}
