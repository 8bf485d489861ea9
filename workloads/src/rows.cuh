// Walks of a graph's rows by whole warps, over arrays of any kind, which the host chooses (access.cuh).
//
// Two shapes. Where some rows are walked, lanes bring one row each, and all walk them end to end (`walk_rows`); long
// rows are listed in pieces (`list_row`) that other warps take. Where all rows are walked, the array of edges is cut
// into pieces whatever the rows are (`walk_piece`). So a row of a million edges keeps no warp busy while the others
// have ended.
#pragma once

#include "access.cuh"

// The host defines what it needs to know, too: it allocates lists and cuts edges.
constexpr u64 kPiece = ROW_PIECE_EDGES;
// A row this long is listed, in pieces that end at multiples of kPiece in the array of edges.
constexpr u64 kListedRow = 4 * kPiece;
// The list's first words count its pieces at even and odd levels. A piece is its first edge times kPieceUnit plus its
// length.
constexpr u32 kListHead = ROW_LIST_HEAD;
constexpr u64 kPieceUnit = 2 * kPiece;

// A word that other warps change, as it is now.
__device__ inline u32 now(const u32* word) { return *static_cast<const volatile u32*>(word); }

// Lists the pieces of a row, by a whole warp: `note(place)` is called for each piece's place in the list.
template <class Note>
__device__ void list_row(u64* list, int level, u64 begin, u64 end, Note note) {
    u64 first_piece = begin / kPiece, pieces = (end - 1) / kPiece - first_piece + 1, place = 0;
    if (lane() == 0) place = atomicAdd(&list[level % 2], pieces);
    place = kListHead + __shfl_sync(kWholeWarp, place, 0);
    for (u64 piece = lane(); piece < pieces; piece += 32) {
        u64 first = (first_piece + piece) * kPiece, past = first + kPiece;
        if (first < begin) first = begin;
        if (past > end) past = end;
        list[place + piece] = first * kPieceUnit + (past - first);
        note(place + piece);
    }
}

// The first lane whose `past`, which ascends with the lane, is above `edge`. All lanes come here.
__device__ inline u32 owner_of(u32 past, u32 edge) {
    u32 owner = 0;
    for (u32 half = 16; half; half /= 2)
        if (__shfl_sync(kWholeWarp, past, owner + half - 1) <= edge) owner += half;
    return owner;
}

// Walks the rows that lanes hold, one or none each, end to end: all lanes take the next 32 edges, as
// `use(edge, what the edge's row brings)`. They stop when launches over `array` are to.
template <class Array, class Use>
__device__ void walk_rows(const Array& array, u64 begin, u32 length, u32 brings, Use use) {
    // Edges of this lane's row and of those before it.
    u32 past = length;
    for (u32 apart = 1; apart < 32; apart *= 2) {
        u32 before = __shfl_up_sync(kWholeWarp, past, apart);
        if (lane() >= apart) past += before;
    }
    // What is added to an edge's number for its place in the array.
    u64 place = begin - (past - length);
    u32 edges = __shfl_sync(kWholeWarp, past, 31);
    for (u32 first = 0; first < edges && !__any_sync(kWholeWarp, stopped(array)); first += 32) {
        u32 edge = first + lane(), owner = owner_of(past, edge);
        u64 from = __shfl_sync(kWholeWarp, place, owner);
        u32 brought = __shfl_sync(kWholeWarp, brings, owner);
        if (edge < edges) use(from + edge, brought);
    }
}

// Goes over edges [piece * kPiece, ...) to the end of the piece, or to `edges`. `row` is the row of the first of them.
// All lanes call `use(there, row, edge)` together, four neighbouring edges a lane, one after the other; `there` says
// whether the lane has an edge.
template <class Offsets, class Use>
__device__ void walk_piece(const Offsets& offsets, u32 vertices, u32 row, u64 piece, u64 edges, Use use) {
    u64 begin = piece * kPiece;
    u32 at = 0, end = static_cast<unsigned>(edges - begin < kPiece ? edges - begin : kPiece);
    for (; at < end && row < vertices; row += 32) {
        // Where rows end, counted from the piece's begin.
        u32 past = end;
        if (row + lane() < vertices) {
            u64 ends = offsets[row + lane() + 1ull];
            if (ends < begin + end) past = static_cast<unsigned>(ends - begin);
        }
        // After a fault lanes may have read zeros.
        if (__any_sync(kWholeWarp, stopped(offsets))) return;
        u32 here = __shfl_sync(kWholeWarp, past, 31);
        // From a multiple of 512 bytes on.
        for (u32 first = at / 128 * 128; first < here; first += 128) {
            for (u32 k = 0; k < 4; ++k) {
                u32 edge = first + lane() * 4 + k, owner = owner_of(past, edge);
                use(edge >= at && edge < here, row + owner, begin + edge);
            }
        }
        if (here > at) at = here;
    }
}
