//! tmp
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n: u64 = a[2].parse().unwrap();
    let list: Vec<gpuvm_simulate::Workload> = if a[1] == "all" { gpuvm_simulate::Workload::ALL.to_vec() } else { vec![a[1].parse().unwrap()] };
    for w in list {
    let o = gpuvm_simulate::run::Options { unwatched: a.len() > 3 && a[3] == "unwatched", ..Default::default() };
    let _ = gpuvm_simulate::run::run(w, 0, &o);
    let t = std::time::Instant::now();
    let mut looks = 0;
    let mut virt = 0;
    let mut bad = 0;
    let mut sum = String::new();
    for s in 0..n {
        match gpuvm_simulate::run::run(w, s, &o).outcome {
            Ok(p) => { looks += p.looks.steps; virt += p.virtual_ns; sum = format!("{p:?}"); }
            Err(f) => { bad += 1; if bad < 3 { println!("{w} {s}: {} {:?}\n{}", f.what, f.further, f.trace.join("\n")); } }
        }
    }
    println!("{w}: {:.1} seeds/s, {} steps, {} virtual us, {bad} bad\n   {sum}", n as f64 / t.elapsed().as_secs_f64(), looks / n, virt / n / 1000);
    }
}
