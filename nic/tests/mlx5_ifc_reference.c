// Prints where the fields of firmware commands lie that gpuvm uses: structure, field, first bit, bits.
// Built by hand, for the fields that the record names, against the kernel's header, which is GPL and not part of this
// repository:
//   awk '/^#/ { if (NR > 2) exit; next }
//        { print ($2 == "*" ? "SIZE(" : "FIELD(" $2 ", ") $1 ")" }' mlx5_ifc_fields.txt > fields.h
//   gcc -w -I . -I HEADERS/include/linux/mlx5 mlx5_ifc_reference.c && ./a.out | diff - mlx5_ifc_fields.txt
// The header describes a bit by a byte, so offsets and sizes in bytes are those in bits.
#include <stddef.h>
#include <stdio.h>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
typedef u16 __be16;
typedef u32 __be32;
typedef u64 __be64;
#define BIT(n) (1u << (n))
#define BIT_ULL(n) (1ull << (n))
#define DECLARE_FLEX_ARRAY(type, name) \
    struct {                           \
        struct {                       \
        } empty_##name;                \
        type name[];                   \
    }
#include "mlx5_ifc.h"

#define SIZE(s) printf(#s " * 0 %zu\n", sizeof(struct mlx5_ifc_##s##_bits));
#define FIELD(f, s)                                                         \
    printf(#s " " #f " %zu %zu\n", offsetof(struct mlx5_ifc_##s##_bits, f), \
           sizeof(((struct mlx5_ifc_##s##_bits*)0)->f));

int main(void) {
#include "fields.h"
    return 0;
}
