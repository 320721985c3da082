#include "kernels/cudasim/wgmma.h"

#include <bit>
#include <cstring>
#include <string>

#include "kernels/cudasim/block.h"
#include "kernels/cudasim/tensor_map.h"

namespace sim {
namespace {

constexpr unsigned rows = 16, depth = 16, most_columns = 256;  // of a warp's product

// A matrix in shared memory, as its descriptor says (PTX ISA, "Matrix descriptor format").
struct Matrix {
    std::ptrdiff_t start;
    std::ptrdiff_t leading, stride;  // bytes
    unsigned span;                   // of the swizzle, bytes
};
Matrix decode(Block& block, std::uint64_t descriptor, bool transposed, const Site& site) {
    static constexpr unsigned spans[] = {0, 128, 64, 32};
    const auto field = [=](unsigned from) { return static_cast<std::ptrdiff_t>(descriptor >> from & 0x3fff) * 16; };
    const Matrix m{field(0), field(16), field(32), spans[descriptor >> 62]};
    const auto refuse = [&](const std::string& why) {
        block.stop(Kind::misaligned, "a wgmma of " + block.who() + " at " + where(site) + ": " + why);
    };
    if ((descriptor >> 49 & 7) != 0) refuse("descriptors with a base offset are not simulated");
    if (m.span > 0 && m.start / 128 % (m.span / 16) != 0)
        refuse("a swizzled matrix begins within a group of rows; it must begin where the pattern does");
    if (m.span > 0 && !transposed && m.start % m.span + 2 * depth > m.span)
        refuse("the 16 elements of a row leave the span of their swizzle");
    return m;
}

// Where element (i, k) lies; i counts rows of A or columns of B. Eight elements from a multiple of eight on lie
// together: along i, if transposed, and else along k.
std::ptrdiff_t place(const Matrix& m, bool transposed, unsigned i, unsigned k) {
    const std::ptrdiff_t i8 = i / 8, k8 = k / 8, in_i = i % 8, in_k = k % 8;
    const std::ptrdiff_t pieces = m.span / 16;
    if (!transposed)
        return m.span == 0 ? m.start + in_i * 16 + i8 * m.stride + k8 * m.leading + in_k * 2
                           : m.start + in_i * m.span + i8 * m.stride + std::ptrdiff_t{k} * 2;
    return m.span == 0
               ? m.start + i8 * m.stride + in_k * 16 + k8 * m.leading + in_i * 2
               : m.start + i8 % pieces * 16 + i8 / pieces * m.leading + in_k * m.span + k8 * m.stride + in_i * 2;
}

double value(std::uint16_t bf16) { return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16); }

// out(i, k, x) for every element of `count` rows of A or columns of B, from `first` on.
template <class Out>
void read(Block& block, std::uint64_t descriptor, bool transposed, unsigned first, unsigned count, const Site& site,
          Out&& out) {
    const Matrix m = decode(block, descriptor, transposed, site);
    for (unsigned chunk = 0; chunk < count * depth / 8; ++chunk) {
        // Eight elements that lie together.
        const unsigned i = transposed ? chunk % (count / 8) * 8 : chunk / 2;
        const unsigned k = transposed ? chunk / (count / 8) : chunk % 2 * 8;
        const void* const p = block.shared().at(swizzled(place(m, transposed, first + i, k), m.span));
        if (!block.shared().contains(p, 16))
            block.stop(Kind::out_of_bounds,
                       "a wgmma of " + block.who() + " at " + where(site) + " reads outside of shared memory");
        if (!block.shared().seen_async(p, 16))
            block.stop(Kind::missing_fence, "a wgmma of " + block.who() + " at " + where(site) +
                                                " may not see what was written to shared memory: no fence.proxy.async "
                                                "came after it");
        std::uint16_t bits[8];
        std::memcpy(bits, p, 16);
        for (unsigned e = 0; e < 8; ++e) out(transposed ? i + e : i, transposed ? k : k + e, value(bits[e]));
    }
}

// Row and column of element e of lane's accumulators.
unsigned row_of(unsigned lane, unsigned e) { return lane / 4 + e % 4 / 2 * 8; }
unsigned column_of(unsigned lane, unsigned e) { return e / 4 * 8 + lane % 4 * 2 + e % 2; }

void multiply(Block& block, const Products::Product& p, std::vector<float>& d) {
    double a[rows][depth], b[depth][most_columns];
    read(block, p.b_matrix, p.b_transposed, 0, p.n, p.site, [&](unsigned i, unsigned k, double x) { b[k][i] = x; });
    if (p.a[0]) {
        for (unsigned lane = 0; lane < warp_lanes; ++lane)
            for (unsigned r = 0; r < 4; ++r)
                for (unsigned half = 0; half < 2; ++half)
                    a[lane / 4 + r % 2 * 8][lane % 4 * 2 + r / 2 * 8 + half] =
                        value(static_cast<std::uint16_t>(p.a[lane][r] >> 16 * half));
    } else {
        const unsigned warp_of_four = block.thread() / warp_lanes % 4;
        read(block, p.a_matrix, p.a_transposed, warp_of_four * rows, rows, p.site,
             [&](unsigned i, unsigned k, double x) { a[i][k] = x; });
    }
    double sum[rows][most_columns];
    for (unsigned i = 0; i < rows; ++i) {
        for (unsigned j = 0; j < p.n; ++j) sum[i][j] = 0;
        for (unsigned k = 0; k < depth; ++k)
            for (unsigned j = 0; j < p.n; ++j) sum[i][j] += a[i][k] * b[k][j];
    }
    const unsigned each = p.n / 2;
    for (unsigned lane = 0; lane < warp_lanes; ++lane)
        for (unsigned e = 0; e < each; ++e) {
            float& x = d[lane * each + e];
            x = static_cast<float>(sum[row_of(lane, e)][column_of(lane, e)] + (p.add ? static_cast<double>(x) : 0.0));
        }
}

Products::Held* find(Products& products, const float* d) {
    for (auto& held : products.held)
        if (held.d[0] == d) return &held;
    return nullptr;
}

struct WgmmaPart : Part {
    const ProductArguments* arguments;
};
void run_wgmma(Part* const (&parts)[warp_lanes], unsigned) {
    Block& block = Block::current();
    Products& products = block.products();
    const auto arguments = [&](unsigned lane) -> const ProductArguments& {
        return *static_cast<const WgmmaPart&>(*parts[lane]).arguments;
    };
    const ProductArguments& first = arguments(0);
    const Site& site = parts[0]->site;
    if (!products.fenced)
        block.stop(Kind::missing_fence, "a wgmma of " + block.who() + " at " + where(site) +
                                            " may not see its registers: no wgmma.fence came since the last wait");
    Products::Product p{.d = {},
                        .a = {},
                        .a_matrix = first.a_matrix,
                        .b_matrix = first.b_matrix,
                        .n = first.n,
                        .add = first.add,
                        .a_transposed = first.a_transposed,
                        .b_transposed = first.b_transposed,
                        .done = false,
                        .site = site};
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        if (arguments(lane).a_matrix != p.a_matrix || arguments(lane).b_matrix != p.b_matrix ||
            arguments(lane).add != p.add)
            block.stop(Kind::warp_mismatch, "lanes 0 and " + std::to_string(lane) + " of the warp of " + block.who() +
                                                " bring different matrices to the wgmma at " + where(site));
        p.d[lane] = arguments(lane).d;
        p.a[lane] = arguments(lane).a;
    }
    Products::Held* held = find(products, p.d[0]);
    const unsigned each = p.n / 2;
    if (!held) {
        products.held.push_back({});
        held = &products.held.back();
        held->values.resize(warp_lanes * each);
        for (unsigned lane = 0; lane < warp_lanes; ++lane) {
            held->d[lane] = p.d[lane];
            std::memcpy(&held->values[lane * each], p.d[lane], each * sizeof(float));
            fill_poison(p.d[lane], each * sizeof(float), block.config().poison);
        }
    }
    if (block.config().async == Async::early) {
        multiply(block, p, held->values);
        p.done = true;
    }
    products.queue.push_back(p);
    products.site = site;
    ++products.issued;
    if (block.thread() / warp_lanes % 4 == 0) ++block.counters().wgmma;
}
constexpr Collective wgmma_collective{"wgmma", &run_wgmma, true};

void run_fence(Part* const (&)[warp_lanes], unsigned) { Block::current().products().fenced = true; }
constexpr Collective fence_collective{"wgmma.fence", &run_fence, true};

void run_commit(Part* const (&)[warp_lanes], unsigned) {
    Products& products = Block::current().products();
    products.groups.push_back(products.queue.size());
}
constexpr Collective commit_collective{"wgmma.commit_group", &run_commit, true};

struct WaitPart : Part {
    unsigned groups_left;
};
void run_wait(Part* const (&parts)[warp_lanes], unsigned) {
    Block& block = Block::current();
    Products& products = block.products();
    while (products.groups.size() > static_cast<const WaitPart&>(*parts[0]).groups_left) {
        const std::size_t count = products.groups.front();
        for (std::size_t i = 0; i < count; ++i) {
            const Products::Product& p = products.queue[i];
            if (!p.done) multiply(block, p, find(products, p.d[0])->values);
        }
        products.queue.erase(products.queue.begin(), products.queue.begin() + static_cast<std::ptrdiff_t>(count));
        products.groups.erase(products.groups.begin());
        for (std::size_t& end : products.groups) end -= count;
    }
    products.fenced = false;
    std::erase_if(products.held, [&](const Products::Held& held) {
        for (const auto& p : products.queue)
            if (p.d[0] == held.d[0]) return false;
        const std::size_t each = held.values.size() / warp_lanes;
        for (unsigned lane = 0; lane < warp_lanes; ++lane)
            std::memcpy(held.d[lane], &held.values[lane * each], each * sizeof(float));
        return true;
    });
}
constexpr Collective wait_collective{"wgmma.wait_group", &run_wait, true};

void join(const Collective& what, const Site& site) {
    Part part{&what, all_lanes, site};
    Block::current().join(part);
}

}  // namespace

void wgmma(const ProductArguments& arguments, const Site& site) {
    WgmmaPart part{{&wgmma_collective, all_lanes, site}, &arguments};
    Block::current().join(part);
}
void wgmma_fence(const Site& site) { join(fence_collective, site); }
void wgmma_commit(const Site& site) { join(commit_collective, site); }
void wgmma_wait(unsigned groups_left, const Site& site) {
    WaitPart part{{&wait_collective, all_lanes, site}, groups_left};
    Block::current().join(part);
}

std::uint32_t address_in_shared(const void* address) {
    Block& block = Block::current();
    const std::ptrdiff_t offset = block.shared().offset(address);
    if (offset < 0) block.stop(Kind::out_of_bounds, block.who() + " describes a matrix outside of shared memory");
    return static_cast<std::uint32_t>(offset);
}

void set_max_registers(unsigned count, const Site& site) {
    Block& block = Block::current();
    if (count % 8 != 0 || count < 24 || count > 256)
        block.stop(Kind::bad_launch, block.who() + " asks for " + std::to_string(count) + " registers at " +
                                         where(site) + "; setmaxnreg takes a multiple of 8 from 24 to 256");
    block.products().registers = count;
    block.products().site = site;
}

// After a warp's last lane: what it issued and never waited for.
void Block::check_products_over(unsigned warp) {
    const Products& products = products_[warp];
    if (!products.queue.empty())
        report(Kind::missing_wait, "warp " + std::to_string(warp) + " of " + block_text() +
                                       " left without waiting for " + std::to_string(products.queue.size()) +
                                       " products of wgmma, the first of them " + "issued at " +
                                       where(products.queue.front().site));
}

// After a block: the four warps of a warpgroup did the same, and their registers were there.
void Block::check_warpgroups() {
    constexpr unsigned all_registers = 65536;
    unsigned registers = 0;
    for (unsigned w = 0; w < warp_count_; ++w) {
        const Products &first = products_[w / 4 * 4], &mine = products_[w];
        registers += mine.registers * warp_lanes;
        if (mine.issued == first.issued && mine.registers == first.registers) continue;
        report(Kind::divergence, "in " + block_text() + " warp " + std::to_string(w) + " issued " +
                                     std::to_string(mine.issued) + " wgmma and set " + std::to_string(mine.registers) +
                                     " registers, and warp " + std::to_string(w / 4 * 4) + " of its warpgroup " +
                                     std::to_string(first.issued) + " and " + std::to_string(first.registers) +
                                     ", last at " +
                                     where(mine.issued > first.issued || mine.registers ? mine.site : first.site));
        return;
    }
    if (registers > all_registers)
        report(Kind::bad_launch, "the warps of " + block_text() + " ask for " + std::to_string(registers) +
                                     " registers; a multiprocessor has " + std::to_string(all_registers) +
                                     ", and the last to ask would wait for ever");
}

}  // namespace sim
