//! `gpuvm convert`.

use std::io;

use gpuvm_workloads::graph::{LoadOptions, Weights};

use crate::args::ConvertArgs;
use crate::bfs::{direction_name, load_graph, refuse_graph};
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Bars;
use crate::stdout;

/// Loads the graph, and writes it as a `.gcsr` file.
pub fn run(args: &ConvertArgs) -> Result<(), CliError> {
    let ConvertArgs {
        input, output: path, ..
    } = args;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => CliError::OutputExists { path: path.clone() },
        _ => CliError::Convert {
            path: path.clone(),
            source,
        },
    };
    refuse_graph(input, path)?;
    let output = Output::create_file(path, args.force).map_err(failed)?;
    let options = LoadOptions {
        direction: args.direction.direction(),
        seed: args.graph_seed,
        weights: args.weights.map_or(Weights::None, Weights::from),
        verify: true,
    };
    let mut bars = Bars::new(true);
    let graph = load_graph(input, &options, &mut bars)?;
    let written = output.finish(|out| graph.write(out, &mut |progress| bars.loading(progress)));
    bars.clear();
    written.map_err(failed)?;
    Ok(stdout::print_line(format_args!(
        "{}: {} vertices, {} stored edges, {}, {}",
        path.display(),
        graph.csr().vertices(),
        graph.csr().edges(),
        direction_name(&graph),
        graph.weights_name(),
    ))?)
}
