//! The applications of GPS on simulated GPUs: each in all forms that need no CUDA, compared with the processor and with one GPU.

use gpuvm::{SimulatedGpu, Transport, Vm};
use gpuvm_workloads::apps::AppError;
use gpuvm_workloads::gps::{Form, Measured, Plan, catalogue};

fn vm(count: usize) -> Vm {
    let gpus = (0..count).map(|_| SimulatedGpu::new().workers(1));
    let vm = Vm::builder().gpus(gpus).transport(Transport::Direct);
    vm.frame_memory(1 << 16).build().unwrap()
}

const PLAN: Plan = Plan {
    iterations: 3,
    repeat: 1,
};

/// Runs an application in every form on that many GPUs.
fn every_form(name: &str, input: &str, count: usize) -> Vec<(Form, Measured)> {
    let vm = vm(count);
    let mut case = catalogue::find(name).unwrap().make(input).unwrap();
    let mut measured = Vec::new();
    for form in Form::ALL {
        match case.run(&vm, form, PLAN) {
            Ok(found) => {
                assert!(found.verified > 0, "{name} {form}: nothing was compared");
                measured.push((form, found));
            }
            Err(AppError::Form { form, .. }) => assert_eq!(form, Form::Managed),
            Err(error) => panic!("{name} {input} {form} on {count}: {error:?}"),
        }
    }
    measured
}

fn everywhere(name: &str, input: &str) {
    for count in [1, 2, 3] {
        let measured = every_form(name, input, count);
        assert_eq!(measured.len(), 4);
        for (form, found) in measured {
            assert_eq!(found.times.len(), 1);
            // Nothing leaves a GPU that is alone.
            let sends = count > 1 && matches!(form, Form::Broadcast | Form::Copies);
            assert!(found.sent > 0 || !sends, "{name} {form} on {count}: {found:?}");
            assert!(count > 1 || found.sent == 0, "{name} {form} on {count}: {found:?}");
            // Once pages are subscribed to, no byte goes to who does not read it.
            let most = found.read + found.read / 20;
            assert!(
                form != Form::Broadcast || found.sent <= most,
                "{name} on {count}: {found:?}"
            );
        }
    }
}

#[test]
fn jacobi_is_the_processors() {
    everywhere("jacobi", "70x600");
}

#[test]
fn ranks_are_the_processors() {
    everywhere("pagerank", "urand:15:2");
    // Rows of thousands of edges, which a block walks together, and a part that is mostly one row.
    everywhere("pagerank", "kron:12:16");
}

#[test]
fn shortest_paths_are_the_processors() {
    everywhere("sssp", "urand:15:2");
    everywhere("sssp", "kron:9");
}

#[test]
fn factors_are_the_processors() {
    everywhere("als", "70x40x9");
}

#[test]
fn diffusion_is_the_processors() {
    everywhere("diffusion", "19x30x70");
}

#[test]
fn the_wave_is_the_processors() {
    everywhere("wave", "70x600");
}
