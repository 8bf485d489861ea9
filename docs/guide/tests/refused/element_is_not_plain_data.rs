fn main() -> Result<(), gpuvm::Error> {
    let vm = gpuvm::Vm::builder().build()?;
    let texts = vm.region::<String>().zeroed(10)?;
    println!("{}", texts.len());
    Ok(())
}
