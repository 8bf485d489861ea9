// What C writes in short. From here on this is capi/tail.h, which the generator appends.

// The type of numbers: gpuvm_number(GPUVM_TYPE_F32).
static inline gpuvm_element gpuvm_number(uint32_t kind) {
    gpuvm_element element;
    memset(&element, 0, sizeof element);
    element.kind = kind;
    return element;
}

// The type of structures of the program's: gpuvm_structure("point", sizeof(point), 8).
static inline gpuvm_element gpuvm_structure(const char* name, uint64_t bytes, uint32_t align) {
    gpuvm_element element;
    memset(&element, 0, sizeof element);
    element.kind = GPUVM_TYPE_STRUCTURE;
    element.bytes = bytes;
    element.align = align;
    element.name = name;
    return element;
}

// An argument by its parts.
static inline gpuvm_arg gpuvm_arg_of(uint32_t kind, uint64_t value) {
    gpuvm_arg arg;
    memset(&arg, 0, sizeof arg);
    arg.kind = kind;
    arg.value = value;
    return arg;
}

static inline gpuvm_arg gpuvm_arg_region(gpuvm_region region) { return gpuvm_arg_of(GPUVM_ARG_KIND_REGION, region.id); }
static inline gpuvm_arg gpuvm_arg_buffer(gpuvm_buffer buffer) { return gpuvm_arg_of(GPUVM_ARG_KIND_BUFFER, buffer.id); }
static inline gpuvm_arg gpuvm_arg_elastic(gpuvm_elastic elastic) {
    return gpuvm_arg_of(GPUVM_ARG_KIND_ELASTIC, elastic.id);
}
static inline gpuvm_arg gpuvm_arg_broadcast(gpuvm_broadcast broadcast) {
    return gpuvm_arg_of(GPUVM_ARG_KIND_BROADCAST, broadcast.id);
}

// Memory that a launch of gpuvm_launch_by() only reads, and memory that it may write.
static inline gpuvm_use gpuvm_reads(gpuvm_arg arg) {
    gpuvm_use use;
    memset(&use, 0, sizeof use);
    use.arg = arg;
    return use;
}
static inline gpuvm_use gpuvm_writes(gpuvm_arg arg) {
    gpuvm_use use = gpuvm_reads(arg);
    use.writes = 1;
    return use;
}

// A device address of memory that gpuvm does not know. Kernels of the GPU reach it until the launch has ended.
static inline gpuvm_arg gpuvm_arg_address(gpuvm_element element, uint64_t address) {
    gpuvm_arg arg = gpuvm_arg_of(GPUVM_ARG_KIND_ADDRESS, address);
    arg.element = element;
    return arg;
}

// A structure that the kernel takes by value. Its bytes stay until the launch function has returned.
static inline gpuvm_arg gpuvm_arg_structure(gpuvm_element element, const void* data) {
    gpuvm_arg arg = gpuvm_arg_of(GPUVM_ARG_KIND_VALUE, 0);
    arg.element = element;
    arg.data = data;
    return arg;
}

// A number, which has exactly the parameter's type.
static inline gpuvm_arg gpuvm_arg_number(uint32_t kind, const void* number, uint64_t bytes) {
    gpuvm_arg arg = gpuvm_arg_of(GPUVM_ARG_KIND_VALUE, 0);
    arg.element.kind = kind;
    memcpy(&arg.value, number, bytes < sizeof arg.value ? bytes : sizeof arg.value);
    return arg;
}

static inline gpuvm_arg gpuvm_arg_u8(uint8_t x) { return gpuvm_arg_number(GPUVM_TYPE_U8, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_u16(uint16_t x) { return gpuvm_arg_number(GPUVM_TYPE_U16, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_u32(uint32_t x) { return gpuvm_arg_number(GPUVM_TYPE_U32, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_u64(uint64_t x) { return gpuvm_arg_number(GPUVM_TYPE_U64, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_i8(int8_t x) { return gpuvm_arg_number(GPUVM_TYPE_I8, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_i16(int16_t x) { return gpuvm_arg_number(GPUVM_TYPE_I16, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_i32(int32_t x) { return gpuvm_arg_number(GPUVM_TYPE_I32, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_i64(int64_t x) { return gpuvm_arg_number(GPUVM_TYPE_I64, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_f32(float x) { return gpuvm_arg_number(GPUVM_TYPE_F32, &x, sizeof x); }
static inline gpuvm_arg gpuvm_arg_f64(double x) { return gpuvm_arg_number(GPUVM_TYPE_F64, &x, sizeof x); }

#ifndef __cplusplus
// Settings and how many they are, for gpuvm_vm_new: GPUVM_SETTINGS({"transport", "direct", 0}, {"frame_memory", .number
// = 1 << 20}).
#define GPUVM_SETTINGS(...) \
    (const gpuvm_setting[]){__VA_ARGS__}, sizeof((const gpuvm_setting[]){__VA_ARGS__}) / sizeof(gpuvm_setting)
#endif

#if !defined(__cplusplus) && defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
// The argument that x is: a number, a region, a buffer, an elastic buffer or a broadcast array.
#define GPUVM_ARG(x)                              \
    _Generic((x), uint8_t                         \
             : gpuvm_arg_u8, uint16_t             \
             : gpuvm_arg_u16, uint32_t            \
             : gpuvm_arg_u32, uint64_t            \
             : gpuvm_arg_u64, int8_t              \
             : gpuvm_arg_i8, int16_t              \
             : gpuvm_arg_i16, int32_t             \
             : gpuvm_arg_i32, int64_t             \
             : gpuvm_arg_i64, float               \
             : gpuvm_arg_f32, double              \
             : gpuvm_arg_f64, gpuvm_region        \
             : gpuvm_arg_region, gpuvm_buffer     \
             : gpuvm_arg_buffer, gpuvm_elastic    \
             : gpuvm_arg_elastic, gpuvm_broadcast \
             : gpuvm_arg_broadcast)(x)
#endif
