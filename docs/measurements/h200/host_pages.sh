#!/usr/bin/env bash
# Reads and stores of one GPU at 16 GiB of host memory, by how the host's pages are made: 4 KiB, transparent huge pages of 2 MiB,
# pages of 2 MiB that were set aside (hugetlb). Needs nvcc, a GPU and 16 GiB; writes its table to the standard output.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/host_pages.cu" <<'END'
#include <cuda_runtime.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#include <chrono>
typedef unsigned long long u64;
#define OK(x) do { cudaError_t e = (x); if (e) { printf("%s: %s\n", #x, cudaGetErrorString(e)); return false; } } while (0)
__device__ __host__ inline u64 mix(u64 x) { x ^= x >> 31; x *= 0x7fb5d329728ea185ull; x ^= x >> 27; x *= 0x81dadef4bc2dd44dull; return x ^ x >> 33; }
__global__ void fill(u64* a, u64 n) { for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) a[i] = mix(i); }
__global__ void scattered(const u64* a, u64 mask, u64 reads, u64 seed, u64* wrong) {
    u64 bad = 0, n = (u64)gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < reads; i += n) { u64 at = mix(i + seed) & mask; bad += a[at] != mix(at); }
    if (bad) atomicAdd(wrong, bad);
}
__global__ void lines(const u64* a, u64 n, u64* wrong) {
    u64 bad = 0;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) bad += a[i] != mix(i);
    if (bad) atomicAdd(wrong, bad);
}
__global__ void stores(u64* a, u64 mask, u64 count, u64 seed) {
    u64 n = (u64)gridDim.x * blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += n) { u64 at = mix(i + seed) & mask; a[at] = mix(at); }
}
static long huge_kb() { long total = 0, v; char line[512]; FILE* f = fopen("/proc/self/smaps", "r"); while (f && fgets(line, sizeof line, f)) if (sscanf(line, "AnonHugePages: %ld", &v) == 1) total += v; if (f) fclose(f); return total; }
static void touch(char* p, u64 bytes) { std::vector<std::thread> t; u64 part = bytes / 16; for (int k = 0; k < 16; ++k) t.emplace_back([=] { for (u64 i = 0; i < part; i += 4096) p[k * part + i] = 0; }); for (auto& x : t) x.join(); }
template <class F> static float timed(F f) { cudaEvent_t a, b; cudaEventCreate(&a); cudaEventCreate(&b); f(0); float best = 1e9; for (int k = 1; k < 4; ++k) { cudaEventRecord(a); f(k); cudaEventRecord(b); cudaEventSynchronize(b); float ms; cudaEventElapsedTime(&ms, a, b); if (ms < best) best = ms; } return best; }
static bool measure(const char* name, char* host, u64 bytes, bool registered) {
    auto t0 = std::chrono::steady_clock::now();
    if (registered) OK(cudaHostRegister(host, bytes, cudaHostRegisterMapped));
    double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count();
    u64* a; OK(cudaHostGetDevicePointer((void**)&a, host, 0));
    u64 n = bytes / 8; u64* wrong; OK(cudaMallocManaged(&wrong, 8)); *wrong = 0;
    fill<<<1056, 512>>>(a, n); OK(cudaDeviceSynchronize());
    u64 reads = 1 << 24;
    printf("%-22s huge %8ld kB, registered in %5.2f s:", name, huge_kb(), s);
    for (u64 range : {bytes, bytes / 16, bytes / 256}) {
        float ms = timed([&](int k) { scattered<<<1056, 1024>>>(a, range / 8 - 1, reads, (u64)k << 40, wrong); });
        printf(" reads/%lluMiB %.1f M/s", range >> 20, reads / ms / 1e3);
    }
    float ms = timed([&](int k) { lines<<<1056, 512>>>(a, n / 4, wrong); });
    printf(" lines %.1f GB/s", n / 4 * 8 / ms / 1e6);
    ms = timed([&](int k) { stores<<<1056, 1024>>>(a, n - 1, reads, (u64)k << 40); });
    printf(" stores %.1f M/s", reads / ms / 1e3);
    ms = timed([&](int k) { fill<<<1056, 512>>>(a, n / 4); });
    printf(" stored lines %.1f GB/s", n / 4 * 8 / ms / 1e6);
    OK(cudaDeviceSynchronize());
    printf(" wrong %llu\n", *wrong); fflush(stdout);
    if (registered) OK(cudaHostUnregister(host));
    return true;
}
int main() {
    u64 bytes = 16ull << 30;

    char* p;
    if (cudaHostAlloc((void**)&p, bytes, cudaHostAllocMapped) == cudaSuccess) { measure("cudaHostAlloc", p, bytes, false); cudaFreeHost(p); }
    p = (char*)mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(p, bytes, MADV_NOHUGEPAGE); touch(p, bytes); measure("4 KiB, registered", p, bytes, true); munmap(p, bytes);
    char* q = (char*)mmap(0, bytes + (1 << 21), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p = (char*)(((u64)q + (1 << 21) - 1) >> 21 << 21);
    int advised = madvise(p, bytes, MADV_HUGEPAGE); touch(p, bytes); printf("madvise %d\n", advised); measure("THP, registered", p, bytes, true); munmap(q, bytes + (1 << 21));
    p = (char*)mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << 26), -1, 0);
    if (p == MAP_FAILED) perror("hugetlb"); else { touch(p, bytes); measure("hugetlb, registered", p, bytes, true); }
}
END
nvcc -O3 -std=c++17 -arch=native -o "$folder/host_pages" "$folder/host_pages.cu"
"$folder/host_pages"
