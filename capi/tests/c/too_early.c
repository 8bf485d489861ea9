// Frees memory that a region borrows, before the region or after it.
#include "cases.h"

int main(int argc, char** argv) {
    int early = argc == 2 && strcmp(argv[1], "too early") == 0;
    gpuvm_vm vm = small_vm();
    uint32_t* memory = calloc(COUNT, sizeof *memory);
    gpuvm_region region;
    OK(gpuvm_region_borrowed(vm, NULL, gpuvm_number(GPUVM_TYPE_U32), memory, COUNT, &region));
    static uint32_t found[COUNT];
    if (early) free(memory);
    OK(gpuvm_region_read(region, 0, found, sizeof found));
    OK(gpuvm_region_free(region));
    if (!early) free(memory);
    OK(gpuvm_vm_free(vm));
    return 0;
}
