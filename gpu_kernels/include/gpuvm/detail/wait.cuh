// How lanes wait: in bounds, with growing pauses. No other code of the library waits that long.
#pragma once

#include "report.cuh"

namespace gpuvm {
namespace detail {

// A bounded wait: polls with growing back-off, and looks at the abort flag and the clock now and then.
struct Wait {
    u64 started;
    const layout::VmDesc* vm;
    u32 turns = 0;
    u32 pause_ns = 64;

    GPUVM_DEVICE explicit Wait(const layout::VmDesc* of) : started(time_ns()), vm(of) {}

    GPUVM_DEVICE u64 waited() const { return time_ns() - started; }

    // Others got on: the limit counts from here.
    GPUVM_DEVICE void restart() { started = time_ns(); }

    // The end is near: the next pauses are short again.
    GPUVM_DEVICE void keep_short() {
        if (pause_ns > 256) pause_ns = 256;
    }

    // One turn. False when the wait must end: the launch was aborted or the limit is reached.
    GPUVM_DEVICE bool again() {
        if (aborted(vm)) return false;
        if ((++turns & 15) == 0 && waited() > vm->wait_limit_ns) return false;
        sleep_ns(pause_ns);
        if (pause_ns < 1024) pause_ns *= 2;
        return true;
    }
};

}  // namespace detail
}  // namespace gpuvm
