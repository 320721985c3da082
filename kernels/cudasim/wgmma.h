// kernels/cudasim/wgmma.h: wgmma.mma_async m64nNk16, bf16 to float (PTX ISA, "Asynchronous warpgroup level matrix
// instructions"), and registers that the warps of a block hand to each other (setmaxnreg).
//
// Each warp of a warpgroup computes its own 16 rows, so here a product is a collective of a warp; that all four of a
// warpgroup issue the same products is checked when the block is over. Operands are read when the product is issued
// (Async::early) or when its group is waited for (Async::late). Until then its accumulators hold poison.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cudasim/findings.h"

namespace sim {

// What a warp has issued and not waited for; wgmma.cpp owns the meaning.
struct Products {
    struct Product {
        float* d[32];                // of each lane
        const std::uint32_t* a[32];  // null: A is in shared memory
        std::uint64_t a_matrix, b_matrix;
        unsigned n;
        bool add, a_transposed, b_transposed;
        bool done;  // an early one
        Site site;
    };
    struct Held {  // the accumulators of products that are not over
        float* d[32];
        std::vector<float> values;  // n / 2 for each lane
    };
    std::vector<Product> queue;       // oldest first
    std::vector<std::size_t> groups;  // where each committed group ends in the queue
    std::vector<Held> held;
    bool fenced = false;  // wgmma.fence since the last wait
    unsigned issued = 0;
    unsigned registers = 0;  // of each thread, by setmaxnreg; 0: as launched
    Site site;               // of the last product, or setmaxnreg
};

// d (64 x n, of which each lane of the warpgroup has n / 2) = a b, or d + a b. A is in registers, if `a` is not null,
// or described by a_matrix. Transposed: rows of A, or columns of B, lie together in shared memory, and not what is
// summed over.
struct ProductArguments {
    float* d;
    unsigned n;
    const std::uint32_t* a;
    std::uint64_t a_matrix, b_matrix;
    bool add, a_transposed, b_transposed;
};
void wgmma(const ProductArguments& arguments, const Site& site);
void wgmma_fence(const Site& site);
void wgmma_commit(const Site& site);
void wgmma_wait(unsigned groups_left, const Site& site);

void set_max_registers(unsigned count, const Site& site);

// What a descriptor holds of an address: how far it is from the beginning of shared memory.
std::uint32_t address_in_shared(const void* address);

}  // namespace sim
