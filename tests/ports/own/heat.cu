// Heat in a rod: a program as its author would write it, with everything in GPU memory. Each step moves every cell
// towards the mean of its neighbours; then the blocks' sums are added up.
#include <stdio.h>
#include <stdlib.h>

#ifndef CELLS
#define CELLS 100000
#endif
#define STEPS 6
#define RATE 0.25f
#define THREADS 128

#define CHECK(call)                                              \
    do {                                                         \
        cudaError_t status = (call);                             \
        if (status != cudaSuccess) {                             \
            fprintf(stderr, "%s\n", cudaGetErrorString(status)); \
            exit(1);                                             \
        }                                                        \
    } while (0)

typedef unsigned int Cell;

__device__ float towards(float from, float to) { return from + RATE * (to - from); }

__global__ void step(const float* now, float* next, Cell cells) {
    Cell i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= cells) return;
    float left = i > 0 ? now[i - 1] : now[i];
    float right = i + 1 < cells ? now[i + 1] : now[i];
    next[i] = towards(now[i], (left + right) / 2);
}

__global__ void sum(const float* now, float* sums, Cell cells) {
    Cell each = (cells + gridDim.x * blockDim.x - 1) / (gridDim.x * blockDim.x);
    Cell first = (blockIdx.x * blockDim.x + threadIdx.x) * each;
    float total = 0;
    for (Cell i = first; i < first + each && i < cells; i++) {
        total += now[i];
    }
    sums[blockIdx.x * blockDim.x + threadIdx.x] = total;
}

int main() {
    float *now, *next, *sums;
    float* host = (float*)malloc(CELLS * sizeof(float));
    for (int i = 0; i < CELLS; i++) host[i] = (float)(i % 100);
    CHECK(cudaMalloc(&now, CELLS * sizeof(float)));
    CHECK(cudaMalloc(&next, CELLS * sizeof(float)));
    CHECK(cudaMalloc(&sums, THREADS * sizeof(float)));
    CHECK(cudaMemcpy(now, host, CELLS * sizeof(float), cudaMemcpyHostToDevice));
    for (int i = 0; i < STEPS; i++) {
        step<<<(CELLS + THREADS - 1) / THREADS, THREADS>>>(now, next, CELLS);
        float* swap = now;
        now = next;
        next = swap;
    }
    sum<<<1, THREADS>>>(now, sums, CELLS);
    CHECK(cudaMemcpy(host, sums, THREADS * sizeof(float), cudaMemcpyDeviceToHost));
    float total = 0;
    for (int i = 0; i < THREADS; i++) total += host[i];
    printf("%f\n", total);
    return 0;
}
