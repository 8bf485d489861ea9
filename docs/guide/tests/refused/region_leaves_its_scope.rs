fn main() -> Result<(), gpuvm::Error> {
    let vm = gpuvm::Vm::builder().build()?;
    let mut memory = vec![0u32; 100];
    let escaped = vm.scope(|scope| scope.region("lent", &mut memory))?;
    println!("{}", escaped.len());
    Ok(())
}
