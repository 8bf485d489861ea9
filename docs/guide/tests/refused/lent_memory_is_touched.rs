fn main() -> Result<(), gpuvm::Error> {
    let vm = gpuvm::Vm::builder().build()?;
    let mut memory = vec![0u32; 100];
    vm.scope(|scope| {
        let lent = scope.region("lent", &mut memory)?;
        memory[3] = 5;
        lent.flush()
    })
}
