//! Rewrites PTX files, and says how long that took: `rewrite IN.ptx OUT.ptx`, or `rewrite IN.ptx` for the time alone; `--touches` first for
//! kernels whose loads mark pages.

use std::time::Instant;

use gpuvm_ptx::{TableLayout, rewrite};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let touches = arguments.first().is_some_and(|first| first == "--touches");
    arguments.drain(..usize::from(touches));
    let [input, output @ ..] = arguments.as_slice() else {
        return Err("give a PTX file".into());
    };
    let ptx = std::fs::read(input)?;
    let layout = TableLayout::new(4096)?.touches(touches).both_forms(true);
    let times = (0..5).map(|_| {
        let start = Instant::now();
        rewrite(&ptx, &layout).map(|rewritten| (start.elapsed(), rewritten))
    });
    let mut times = times.collect::<Result<Vec<_>, _>>()?;
    times.sort_by_key(|(time, _)| *time);
    let (time, rewritten) = &times[0];
    let lines = ptx.iter().filter(|byte| **byte == b'\n').count();
    print!("{}", rewritten.report);
    println!("{lines} lines in {:.2} ms", time.as_secs_f64() * 1e3);
    if let Some(output) = output.first() {
        std::fs::write(output, &rewritten.text)?;
    }
    Ok(())
}
