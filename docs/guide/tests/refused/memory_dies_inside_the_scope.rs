fn main() -> Result<(), gpuvm::Error> {
    let vm = gpuvm::Vm::builder().build()?;
    vm.scope(|scope| {
        let mut memory = vec![0u32; 100];
        let lent = scope.region("lent", &mut memory)?;
        lent.flush()
    })
}
