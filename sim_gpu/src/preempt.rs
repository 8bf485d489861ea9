//! The machine-dependent part of traps and preemption.

use super::abi::STACK_BYTES;
use gpuvm_gpu::back_end::host_page_bytes;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{position, redirect, set_registers};

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{position, redirect, set_registers};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the simulated GPU's traps know x86-64 and AArch64; teach preempt.rs this processor's registers");

/// Whether workers can be preempted by a signal on this machine.
pub(crate) const BY_SIGNAL: bool = cfg!(target_arch = "x86_64");

/// End of the guard page of the stack that `sp` lies in.
pub(crate) fn stack_floor(sp: usize) -> usize {
    (sp & !(STACK_BYTES - 1)) + host_page_bytes() as usize
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::ffi::c_void;

    use corosensei::trap::TrapHandlerRegs;

    use crate::abi::{COLOUR_BYTES, LANE_OFFSET, Lane, STACK_BYTES};
    use crate::preempt::stack_floor;
    use crate::switch::yield_now;

    /// Bytes below the stack pointer that a function may use without moving it.
    const RED_ZONE: usize = 128;
    /// Stack that the trampoline and the switch may need.
    const ROOM: usize = 8 << 10;

    unsafe fn registers<'a>(context: *mut c_void) -> &'a mut [i64; 23] {
        // SAFETY: the caller passes the context that the kernel gave to the running handler.
        unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs }
    }

    /// Stack pointer and instruction pointer of an interrupted context.
    ///
    /// # Safety
    /// `context` is what the kernel passed to the running signal handler.
    pub(crate) unsafe fn position(context: *mut c_void) -> (usize, usize) {
        // SAFETY: as the caller promises.
        let regs = unsafe { registers(context) };
        (
            regs[libc::REG_RSP as usize] as usize,
            regs[libc::REG_RIP as usize] as usize,
        )
    }

    /// Makes the interrupted coroutine leave through its trap handler.
    ///
    /// # Safety
    /// As for [`position`]; `new` was set up for the interrupted coroutine.
    pub(crate) unsafe fn set_registers(context: *mut c_void, new: &TrapHandlerRegs) {
        // SAFETY: as the caller promises.
        let regs = unsafe { registers(context) };
        let TrapHandlerRegs {
            rip,
            rsp,
            rbp,
            rdi,
            rsi,
        } = *new;
        regs[libc::REG_RIP as usize] = rip as i64;
        regs[libc::REG_RSP as usize] = rsp as i64;
        regs[libc::REG_RBP as usize] = rbp as i64;
        regs[libc::REG_RDI as usize] = rdi as i64;
        regs[libc::REG_RSI as usize] = rsi as i64;
        // The interrupted code may have set the direction flag, which functions expect to be clear.
        regs[libc::REG_EFL as usize] &= !0x400;
    }

    /// Lets the interrupted lane call [`preempted`] before it goes on at `pc`; false when its stack has no room.
    ///
    /// # Safety
    /// As for [`position`]; `sp` lies in a lane's stack and `pc` in its kernel module's code.
    pub(crate) unsafe fn redirect(context: *mut c_void, sp: usize, pc: usize) -> bool {
        if sp < stack_floor(sp) + ROOM {
            return false;
        }
        // SAFETY: below the red zone the stack is unused, and there is room, as just checked; the trampoline returns to the address stored.
        unsafe {
            let top = sp - RED_ZONE - 8;
            (top as *mut usize).write(pc);
            let regs = registers(context);
            regs[libc::REG_RSP as usize] = top as i64;
            regs[libc::REG_RIP as usize] = gpuvm_sim_preempt as *const () as i64;
        }
        true
    }

    unsafe extern "C" {
        fn gpuvm_sim_preempt();
    }

    /// Runs on the interrupted lane's stack: lets others run.
    unsafe extern "C" fn preempted() {
        let here = 0u8;
        let sp = &raw const here as usize;
        let colour = sp / STACK_BYTES % 32 * COLOUR_BYTES;
        let lane = ((sp & !(STACK_BYTES - 1)) + LANE_OFFSET - colour) as *mut Lane;
        // SAFETY: `redirect` brought a running lane here, in its kernel's code, where no reference into its warp is held.
        unsafe { yield_now(lane) };
    }

    // XSAVE of everything up to AVX-512 (mask 0xe7) takes at most 2,696 bytes; processors without XSAVE have FXSAVE's 512.
    // On entry the stack holds the interrupted address, above it the red zone. All registers and flags are as interrupted.
    std::arch::global_asm!(
        ".balign 16",
        ".hidden gpuvm_sim_preempt",
        ".globl gpuvm_sim_preempt",
        "gpuvm_sim_preempt:",
        "pushfq",
        "push rax",
        "push rcx",
        "push rdx",
        "push rbx",
        "push rbp",
        "push rsi",
        "push rdi",
        "push r8",
        "push r9",
        "push r10",
        "push r11",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "cld",
        "mov rbp, rsp",
        "sub rsp, 2816",
        "and rsp, -64",
        "mov rbx, rsp",
        // XCR0 tells whether XSAVE may be used: CPUID.1:ECX.OSXSAVE, bit 27. CPUID overwrites rbx, so the area is kept in r12 too.
        "mov r12, rsp",
        "mov eax, 1",
        "xor ecx, ecx",
        "cpuid",
        "mov rbx, r12",
        "bt ecx, 27",
        "setc r13b",
        "test r13b, r13b",
        "jz 2f",
        "xor eax, eax",
        "mov [rbx + 512], rax",
        "mov [rbx + 520], rax",
        "mov [rbx + 528], rax",
        "mov [rbx + 536], rax",
        "mov [rbx + 544], rax",
        "mov [rbx + 552], rax",
        "mov [rbx + 560], rax",
        "mov [rbx + 568], rax",
        "mov eax, 0xe7",
        "xor edx, edx",
        "xsave64 [rbx]",
        "jmp 3f",
        "2:",
        "fxsave64 [rbx]",
        "3:",
        "call {preempted}",
        "test r13b, r13b",
        "jz 4f",
        "mov eax, 0xe7",
        "xor edx, edx",
        "xrstor64 [rbx]",
        "jmp 5f",
        "4:",
        "fxrstor64 [rbx]",
        "5:",
        "mov rsp, rbp",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop r11",
        "pop r10",
        "pop r9",
        "pop r8",
        "pop rdi",
        "pop rsi",
        "pop rbp",
        "pop rbx",
        "pop rdx",
        "pop rcx",
        "pop rax",
        "popfq",
        "ret 128",
        preempted = sym preempted,
    );
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use std::ffi::c_void;

    use corosensei::trap::TrapHandlerRegs;

    /// Stack pointer and instruction pointer of an interrupted context.
    ///
    /// # Safety
    /// `context` is what the kernel passed to the running signal handler.
    pub(crate) unsafe fn position(context: *mut c_void) -> (usize, usize) {
        // SAFETY: as the caller promises.
        let machine = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
        (machine.sp as usize, machine.pc as usize)
    }

    /// Makes the interrupted coroutine leave through its trap handler.
    ///
    /// # Safety
    /// As for [`position`]; `new` was set up for the interrupted coroutine.
    pub(crate) unsafe fn set_registers(context: *mut c_void, new: &TrapHandlerRegs) {
        // SAFETY: as the caller promises.
        let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
        let TrapHandlerRegs {
            pc,
            sp,
            x0,
            x1,
            x29,
            lr,
        } = *new;
        (machine.pc, machine.sp) = (pc, sp);
        (machine.regs[0], machine.regs[1], machine.regs[29], machine.regs[30]) = (x0, x1, x29, lr);
    }

    /// Kernels count basic blocks on this processor instead.
    ///
    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn redirect(_context: *mut c_void, _sp: usize, _pc: usize) -> bool {
        false
    }
}
