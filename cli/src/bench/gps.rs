//! The applications of GPS on several GPUs: broadcast arrays, and the ways that they are compared with.

mod streams;

use std::collections::BTreeMap;

use clap::Args;
use gpuvm::{CudaGpu, Gpu, SimulatedGpu, Transport, Vm};
use gpuvm_gpu::cuda;
use gpuvm_workloads::apps::AppError;
use gpuvm_workloads::gps::{Case, Form, Measured, Plan, catalogue};

use crate::bench::driver::{Benchmark, Run, name_and_input, unknown_app};
use crate::bench::machine::{LAUNCH_LIMIT, Machine, direct};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::machine::MachineArgs;

/// Applications on several GPUs.
#[derive(Debug, Args)]
pub struct GpsArgs {
    /// How many of the GPUs have a part of the work, with commas between: 1 to 16. Without it: all that --gpu names, else 2, 4, 8 and 16
    /// as far as the machine has them, and 2 simulated ones.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = parse_count)]
    pub count: Vec<usize>,

    /// Applications as NAME or NAME:INPUT, with commas between: jacobi:ROWSxWIDTH, pagerank:GRAPH, sssp:GRAPH,
    /// als:USERSxITEMSxEACH, diffusion:PLANESxHEIGHTxWIDTH, wave:ROWSxWIDTH; streams are loads and stores alone. Without it: all of
    /// them, with inputs of which an iteration takes some milliseconds on one GPU, and small ones on simulated GPUs.
    #[arg(long, value_name = "APP,..", value_delimiter = ',')]
    pub app: Vec<String>,

    /// Forms besides one GPU, with commas between: broadcast, peer-loads, copies, managed. Without it: all of them.
    #[arg(long, value_name = "FORM,..", value_delimiter = ',')]
    pub form: Vec<Form>,

    /// Iterations of a run. Without it: 50, and 4 on simulated GPUs.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub iterations: Option<u32>,
}

fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(count) if (1..=16).contains(&count) => Ok(count),
        _ => Err("a number of GPUs from 1 to 16".to_owned()),
    }
}

/// Loads and stores alone, beside the names of applications.
const STREAMS: &str = "streams";
/// What rows have besides.
const SPEEDUP: &str = "speedup";
const SENT: &str = "sent MB";
const READ: &str = "read by others MB";
const SENT_OF_READ: &str = "sent of read";
const LEAST: &str = "least speedup";
/// The name of rows over all applications.
const MEAN: &str = "geometric mean";
/// Simulated GPUs where no count is given.
const SIMULATED: usize = 2;
/// The most GPUs of a broadcast array.
const GPUS_MAX: usize = 16;
/// Frames of a virtual memory whose pages nothing uses.
const FRAME_BYTES: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// What the small input is run for before a large one, whose result the processor would take too long for.
const SMALL: Plan = Plan {
    iterations: 3,
    repeat: 1,
};

impl Benchmark for GpsArgs {
    const NAME: &'static str = "gps";

    fn machine(&self, said: &MachineArgs) -> MachineArgs {
        // Those that it is given are of the virtual memories that are measured.
        let mut machine = direct(said);
        machine.gpu.truncate(1);
        machine
    }

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        drop(probe);
        let asked = named(run)?;
        let gpus = gpus(run)?;
        let counts = counts(run, gpus.len())?;
        let plan = Plan {
            iterations: run.iterations.unwrap_or(run.usual(50, 4)),
            repeat: run.repeat,
        };
        let mut bench = Bench {
            run,
            gpus,
            plan,
            report,
        };
        if run.app.is_empty() || run.app.iter().any(|app| app == STREAMS) {
            bench.streams()?;
        }
        for (entry, input) in asked {
            let input = input.unwrap_or(run.usual(entry.large, entry.small));
            bench.app(entry, input, &counts)?;
        }
        bench.means(&counts);
        Ok(())
    }
}

/// The applications that were asked for, with the inputs of those that were given one.
fn named(args: &GpsArgs) -> Result<Vec<(&'static catalogue::Entry, Option<&str>)>, CliError> {
    let one = |asked| {
        let (name, input) = name_and_input(asked);
        let names = catalogue::ALL.iter().map(|entry| entry.name).chain([STREAMS]);
        let entry = catalogue::find(name).ok_or_else(|| unknown_app(name, names))?;
        Ok((entry, input))
    };
    if args.app.is_empty() {
        return Ok(catalogue::ALL.iter().map(|entry| (entry, None)).collect());
    }
    let asked = args.app.iter().filter(|app| *app != STREAMS);
    asked.map(|asked| one(asked)).collect()
}

/// The GPUs that there are, in their order.
fn gpus(args: &Run<'_, GpsArgs>) -> Result<Vec<Gpu>, CliError> {
    if let Some(gpus) = args.said.several() {
        return Ok(gpus.to_vec());
    }
    if args.is_cuda {
        let devices = cuda::devices()?;
        let gpu = |device: cuda::DeviceInfo| Gpu::Cuda(CudaGpu::ordinal(device.ordinal));
        return Ok(devices.into_iter().map(gpu).collect());
    }
    let workers = args.machine.workers.unwrap_or(1);
    let simulated = || Gpu::from(SimulatedGpu::new().workers(workers));
    Ok(std::iter::repeat_with(simulated).take(GPUS_MAX).collect())
}

/// How many of them are measured with, one after the other.
fn counts(args: &Run<'_, GpsArgs>, there: usize) -> Result<Vec<usize>, CliError> {
    let named = args.said.several().is_some();
    let simulated = !named && there == GPUS_MAX && args.count.is_empty();
    let counts = match (args.count.is_empty(), !named) {
        (false, _) => args.count.clone(),
        (true, false) => vec![there],
        (true, true) if simulated => vec![SIMULATED],
        (true, true) => [2, 4, 8, 16].into_iter().filter(|count| *count <= there).collect(),
    };
    match counts.iter().find(|count| **count > there) {
        Some(count) => Err(CliError::Options(format!("--count {count}; there are {there} GPUs"))),
        None if counts.is_empty() => Err(CliError::Options(
            "this machine has one GPU; give --count 1, or --gpu sim".to_owned(),
        )),
        None => Ok(counts),
    }
}

struct Bench<'a> {
    run: &'a Run<'a, GpsArgs>,
    gpus: Vec<Gpu>,
    plan: Plan,
    report: &'a mut Report,
}

impl Bench<'_> {
    /// A virtual memory of the first `count` GPUs.
    fn vm(&self, count: usize) -> Result<Vm, CliError> {
        let builder = self.run.machine.builder(PAGE_BYTES, None)?;
        let builder = builder.gpus(self.gpus[..count].iter().cloned());
        let builder = builder.transport(Transport::Direct).frame_memory(FRAME_BYTES);
        let built = builder.launch_deadline(LAUNCH_LIMIT).build();
        built.map_err(CliError::BackEnd)
    }

    fn app(&mut self, entry: &catalogue::Entry, input: &str, counts: &[usize]) -> Result<(), CliError> {
        let failed = |source| CliError::App {
            app: entry.name.to_owned(),
            source,
        };
        let mut case = entry.make(input).map_err(failed)?;
        let mut small = match case.is_small() {
            true => None,
            false => Some(entry.make(entry.small).map_err(failed)?),
        };
        let mut compared = BTreeMap::new();
        let mut one: Option<Row> = None;
        for &count in counts {
            let vm = self.vm(count)?;
            let mut rows: Vec<(Form, Row)> = Vec::new();
            for form in self.forms(one.is_some()) {
                if let Some(small) = &mut small
                    && let Some(found) = self.form(&mut **small, &vm, form, SMALL)?
                {
                    compared.insert(form, found.verified);
                }
                let Some(found) = self.form(&mut *case, &vm, form, self.plan)? else {
                    continue;
                };
                let also = compared.get(&form).copied().unwrap_or(0);
                let row = self.row(&*case, form, count, &found, also);
                match form {
                    Form::One => one = Some(row),
                    _ => rows.push((form, row)),
                }
            }
            if let Some(one) = one.as_ref().filter(|_| count == counts[0]) {
                self.report.rows.push(one.clone());
            }
            self.report.rows.extend(beside(one.as_ref(), rows));
        }
        Ok(())
    }

    /// The forms that were asked for, behind one GPU's.
    fn forms(&self, one_has_run: bool) -> Vec<Form> {
        let asked = |form: &Form| self.run.form.is_empty() || self.run.form.contains(form);
        let runs = |form: &Form| match form {
            Form::One => !one_has_run,
            form => asked(form),
        };
        Form::ALL.into_iter().filter(runs).collect()
    }

    /// Runs a form; none where these GPUs do not have it, which the report says.
    fn form(&mut self, case: &mut dyn Case, vm: &Vm, form: Form, plan: Plan) -> Result<Option<Measured>, CliError> {
        match case.run(vm, form, plan) {
            Ok(found) => Ok(Some(found)),
            Err(AppError::Form { form, reason }) => {
                let row = format!("{} {form}", case.name());
                if !self.report.skipped.iter().any(|skipped| skipped.name == row) {
                    self.report.skip(&row, reason);
                }
                Ok(None)
            }
            Err(source) => Err(CliError::App {
                app: format!("{} {form}", case.name()),
                source,
            }),
        }
    }

    fn row(&self, case: &dyn Case, form: Form, gpus: usize, found: &Measured, also: u64) -> Row {
        let iterations = f64::from(self.plan.iterations);
        let times = found.times.iter().map(|time| time.as_secs_f64() * 1e3 / iterations);
        let row = Row::new(case.name(), Unit::Milliseconds, times.collect());
        let row = row.verified(found.verified + also, "values");
        let row = row.with("input", case.input()).with("form", form);
        let row = row.with("gpus", if form == Form::One { 1 } else { gpus });
        match form {
            Form::Broadcast => {
                let (sent, read) = (found.sent as f64, found.read as f64);
                let row = row.and(SENT, sent / 1e6).and(READ, read / 1e6);
                if read > 0.0 {
                    row.and(SENT_OF_READ, sent / read)
                } else {
                    row
                }
            }
            Form::Copies => row.and(SENT, found.sent as f64 / 1e6),
            _ => row,
        }
    }

    /// The geometric means over all applications, of each form and count.
    fn means(&mut self, counts: &[usize]) {
        let forms = Form::ALL.into_iter().filter(|form| *form != Form::One);
        for (count, form) in counts
            .iter()
            .flat_map(|count| forms.clone().map(move |form| (count, form)))
        {
            let is = |row: &&Row| {
                let of = |name: &str| row.parameters.get(name).map(String::as_str);
                of("form") == Some(&form.to_string()) && of("gpus") == Some(&count.to_string())
            };
            let rows: Vec<&Row> = self.report.rows.iter().filter(is).collect();
            let speedups: Vec<f64> = rows.iter().filter_map(|row| row.more.get(SPEEDUP).copied()).collect();
            if speedups.is_empty() {
                continue;
            }
            let (mean, least) = (geometric(&speedups), speedups.iter().copied().fold(f64::MAX, f64::min));
            let times: Vec<f64> = rows.iter().map(|row| row.figure).collect();
            let verified = rows.iter().map(|row| row.verified).sum();
            let row = Row::new(MEAN, Unit::Milliseconds, vec![geometric(&times)])
                .with("form", form)
                .with("gpus", count)
                .and(SPEEDUP, mean)
                .and(LEAST, least)
                .verified(verified, "values");
            if form == Form::Broadcast {
                let first = &mut self.report.first;
                first.insert(format!("broadcast_speedup_{count}"), mean.into());
                first.insert(format!("broadcast_least_speedup_{count}"), least.into());
            }
            self.report.rows.push(row);
        }
    }
}

/// Rows of one application and count beside one GPU's; that of broadcast arrays beside the best one of the others.
fn beside(one: Option<&Row>, rows: Vec<(Form, Row)>) -> Vec<Row> {
    let others = rows.iter().filter(|(form, _)| *form != Form::Broadcast);
    let best = others.min_by(|(_, one), (_, other)| one.figure.total_cmp(&other.figure));
    let best: Option<(Form, Runs)> = best.map(|(form, row)| (*form, row.runs.clone()));
    let row = |(form, row): (Form, Row)| {
        let row = match one {
            Some(one) => {
                let speedup = one.figure / row.figure;
                row.and(SPEEDUP, speedup)
            }
            None => row,
        };
        match &best {
            Some((name, runs)) if form == Form::Broadcast => row.ceiling(&name.to_string(), runs),
            _ => row,
        }
    };
    rows.into_iter().map(row).collect()
}

fn geometric(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_geometric() {
        assert!((geometric(&[2.0, 8.0]) - 4.0).abs() < 1e-12);
        assert!((geometric(&[1.5]) - 1.5).abs() < 1e-12);
    }

    #[test]
    fn broadcast_arrays_stand_beside_the_best_other_form() {
        let row = |time: f64| Row::new("x", Unit::Milliseconds, vec![time]);
        let rows = vec![
            (Form::Broadcast, row(5.0)),
            (Form::Peer, row(20.0)),
            (Form::Copies, row(6.0)),
        ];
        let rows = beside(Some(&row(10.0)), rows);
        assert_eq!(rows[0].more[SPEEDUP], 2.0);
        assert_eq!(rows[0].ratio, Some(1.2));
        assert_eq!(rows[0].ceiling_name.as_deref(), Some("copies"));
        assert!(rows[1].ratio.is_none() && rows[1].more[SPEEDUP] == 0.5);
    }
}
