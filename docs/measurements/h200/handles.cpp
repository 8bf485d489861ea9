// What the driver takes for memory in handles, by their size, in bare calls:
// c++ -O2 -I/usr/local/cuda/include -o handles handles.cpp -lcuda && ./handles
#include <cuda.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

static void check(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return;
    const char* name = "unknown";
    cuGetErrorName(result, &name);
    std::fprintf(stderr, "%s: %s\n", what, name);
    std::exit(1);
}
#define OK(call) check(call, #call)

// Microseconds that `work` takes.
template <class Work>
static double timed(Work work) {
    auto began = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began).count();
}

int main() {
    CUdevice device;
    CUcontext context;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    CUmemAllocationProp kind = {};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = 0;
    CUmemAccessDesc access = {};
    access.location = kind.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const size_t total = 4ull << 30;
    for (size_t piece : {2ull << 20, 8ull << 20, 32ull << 20, 128ull << 20}) {
        for (int round = 0; round < 2; ++round) {
            size_t n = total / piece;
            std::vector<CUmemGenericAllocationHandle> handles(n);
            CUdeviceptr at;
            OK(cuMemAddressReserve(&at, total, 2 << 20, 0, 0));
            // `stride` other than 1: handles in another order than their addresses.
            auto map = [&](size_t stride) {
                return timed([&] {
                    for (size_t i = 0; i < n; ++i) OK(cuMemMap(at + i * piece, piece, 0, handles[i * stride % n], 0));
                });
            };
            auto open_all = [&] { return timed([&] { OK(cuMemSetAccess(at, total, &access, 1)); }); };
            double create = timed([&] {
                for (auto& handle : handles) OK(cuMemCreate(&handle, piece, &kind, 0));
            });
            double first = map(1), open = open_all();
            double unmap = timed([&] { OK(cuMemUnmap(at, total)); });
            double again = map(1);
            double singly = timed([&] {
                for (size_t i = 0; i < n; ++i) OK(cuMemSetAccess(at + i * piece, piece, &access, 1));
            });
            double unmap_singly = timed([&] {
                for (size_t i = 0; i < n; ++i) OK(cuMemUnmap(at + i * piece, piece));
            });
            double shuffled = map(769), open_shuffled = open_all();
            OK(cuMemUnmap(at, total));
            double release = timed([&] {
                for (auto handle : handles) OK(cuMemRelease(handle));
            });
            OK(cuMemAddressFree(at, total));
            std::printf(
                "piece %4zu MiB x %5zu: us each: create %6.2f map %6.2f (again %6.2f, shuffled %6.2f) open at once "
                "%6.2f (shuffled %6.2f) singly %6.2f unmap at once %6.2f singly %6.2f release %6.2f; all of 4 GiB %.1f "
                "ms\n",
                piece >> 20, n, create / n, first / n, again / n, shuffled / n, open / n, open_shuffled / n, singly / n,
                unmap / n, unmap_singly / n, release / n, (create + first + open) / 1e3);
        }
    }
}
