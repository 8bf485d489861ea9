// Makes a Vm, and tells why not.
#include <gpuvm/host.hpp>

#include <cstdio>

int main() try {
    gpuvm::host::Vm vm;
    std::puts("made");
} catch (const gpuvm::host::error& error) {
    std::puts(error.what());
}
