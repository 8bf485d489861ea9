fn main() -> Result<(), gpuvm::Error> {
    let vm = gpuvm::Vm::builder().build()?;
    let texts = vm.region::<String>(10).zeroed()?;
    println!("{}", texts.len());
    Ok(())
}
