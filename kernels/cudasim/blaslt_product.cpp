#include "kernels/cudasim/blaslt_product.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <vector>

#include "kernels/cudasim/bf16.h"
#include "kernels/cudasim/memory.h"
#include "kernels/cudasim/shared.h"
#include "kernels/cudasim/streams.h"

namespace sim {
namespace {

using namespace cuda;

float element(const void* p, cudaDataType_t type, std::size_t i) {
    if (type == CUDA_R_32F) {
        float x;
        std::memcpy(&x, static_cast<const std::byte*>(p) + 4 * i, 4);
        return x;
    }
    std::uint16_t bits;
    std::memcpy(&bits, static_cast<const std::byte*>(p) + 2 * i, 2);
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
}
void put_element(void* p, cudaDataType_t type, std::size_t i, float x) {
    if (type == CUDA_R_32F)
        std::memcpy(static_cast<std::byte*>(p) + 4 * i, &x, 4);
    else {
        const __nv_bfloat16 v(x);
        std::memcpy(static_cast<std::byte*>(p) + 2 * i, &v, 2);
    }
}

// One matrix of the batch as floats, rows x cols of op(matrix), column after column.
std::vector<float> as_floats(const std::byte* data, const MatrixLayout& l, bool transpose) {
    std::vector<float> out(l.rows * l.cols);
    for (std::uint64_t c = 0; c < l.cols; ++c)
        for (std::uint64_t r = 0; r < l.rows; ++r)
            out[transpose ? r * l.cols + c : c * l.rows + r] =
                element(data, l.type, c * static_cast<std::uint64_t>(l.ld) + r);
    return out;
}

template <class Data>
Data* of_batch(Data* data, const MatrixLayout& l, std::int32_t batch) {
    return data + static_cast<std::size_t>(batch * l.batch_stride) * l.element_bytes();
}

// put(column, row, sum) for the sums over [begin, end) of k. Four columns of d at once: each column of a is read for all
// of them. The order of a sum is k, always.
template <class Put>
void multiply(const MatmulProduct& p, std::int32_t batch, std::uint64_t begin, std::uint64_t end, Put put) {
    const auto [m, n, k] = p.sizes;
    const std::vector<float> a = as_floats(of_batch(p.a, p.la, batch), p.la, p.desc.transpose_a);
    const std::vector<float> b = as_floats(of_batch(p.b, p.lb, batch), p.lb, p.desc.transpose_b);
    std::vector<float> sum(4 * m);
    for (std::uint64_t j = 0; j < n; j += 4) {
        const std::uint64_t columns = std::min<std::uint64_t>(4, n - j);
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (std::uint64_t i = begin; i < end; ++i) {
            const float* column = a.data() + i * m;
            float w[4] = {};
            for (std::uint64_t q = 0; q < columns; ++q) w[q] = b[(j + q) * k + i];
            float* s = sum.data();
            for (std::uint64_t r = 0; r < m; ++r) {
                s[r] += column[r] * w[0];
                s[m + r] += column[r] * w[1];
                s[2 * m + r] += column[r] * w[2];
                s[3 * m + r] += column[r] * w[3];
            }
        }
        for (std::uint64_t q = 0; q < columns; ++q)
            for (std::uint64_t r = 0; r < m; ++r) put(j + q, r, sum[q * m + r]);
    }
}

// An element of d from the sum of its products.
void put_result(const MatmulProduct& p, std::int32_t batch, std::uint64_t column, std::uint64_t row, float sum) {
    const float alpha = p.alpha_at ? *p.alpha_at : p.alpha, beta = p.beta_at ? *p.beta_at : p.beta;
    float x = alpha * sum;
    if (beta != 0)
        x += beta * element(of_batch(p.c, p.lc, batch), p.lc.type, column * static_cast<std::uint64_t>(p.lc.ld) + row);
    if (p.desc.epilogue == CUBLASLT_EPILOGUE_BIAS) x += element(p.desc.bias, p.ld.type, row);
    put_element(of_batch(p.d, p.ld, batch), p.ld.type, column * static_cast<std::uint64_t>(p.ld.ld) + row, x);
}

constexpr std::size_t counter_bytes = 256;

// Where the sums of a split begin.
float* sums_of(const MatmulProduct& p, std::int32_t batch, int split) {
    return reinterpret_cast<float*>(p.workspace) +
           static_cast<std::uint64_t>(batch * p.splits + split) * p.sizes.m * p.sizes.n;
}

void whole(const MatmulProduct& p) {
    for (std::int32_t batch = 0; batch < p.ld.batch; ++batch)
        multiply(p, batch, 0, p.sizes.k,
                 [&](std::uint64_t column, std::uint64_t row, float sum) { put_result(p, batch, column, row, sum); });
}
std::uint64_t begin_of(const MatmulProduct& p, int split) {
    return p.sizes.k * static_cast<std::uint64_t>(split) / static_cast<std::uint64_t>(p.splits);
}
void fill_splits(const MatmulProduct& p) {
    for (std::int32_t batch = 0; batch < p.ld.batch; ++batch)
        for (int split = 0; split < p.splits; ++split)
            multiply(p, batch, begin_of(p, split), begin_of(p, split + 1),
                     [&](std::uint64_t column, std::uint64_t row, float sum) {
                         sums_of(p, batch, split)[column * p.sizes.m + row] = sum;
                     });
}
// d is what it was, then each sum is added to it: rounded to its type every time.
void add_in_place(const MatmulProduct& p) {
    for (std::int32_t batch = 0; batch < p.ld.batch; ++batch)
        for (int split = 0; split < p.splits; ++split)
            multiply(p, batch, begin_of(p, split), begin_of(p, split + 1),
                     [&](std::uint64_t column, std::uint64_t row, float sum) {
                         if (split == 0) return put_result(p, batch, column, row, sum);
                         std::byte* const d = of_batch(p.d, p.ld, batch);
                         const std::uint64_t at = column * static_cast<std::uint64_t>(p.ld.ld) + row;
                         const float alpha = p.alpha_at ? *p.alpha_at : p.alpha;
                         put_element(d, p.ld.type, at, element(d, p.ld.type, at) + alpha * sum);
                     });
}
void add_splits(const MatmulProduct& p) {
    for (std::int32_t batch = 0; batch < p.ld.batch; ++batch)
        for (std::uint64_t i = 0; i < p.sizes.m * p.sizes.n; ++i) {
            float sum = 0;
            for (int split = 0; split < p.splits; ++split) sum += sums_of(p, batch, split)[i];
            put_result(p, batch, i / p.sizes.m, i % p.sizes.m, sum);
        }
}

// Workspaces of products that have begun and not ended.
struct Held {
    const std::byte *begin, *end;
};
std::mutex mutex;
std::vector<Held> held;

void take(const MatmulProduct& p) {
    const Held mine{p.workspace, p.workspace + p.workspace_bytes};
    {
        const std::lock_guard lock(mutex);
        const auto meets = [&](const Held& other) { return mine.begin < other.end && other.begin < mine.end; };
        if (std::any_of(held.begin(), held.end(), meets))
            report(Kind::bad_call, "cublasLt: a product of " + p.ld.text() +
                                       " begins in a workspace that one on another stream still works in; each stream "
                                       "needs its own");
        held.push_back(mine);
    }
    fill_poison(p.workspace, p.workspace_bytes, config().poison);  // nobody relies on what is in it
}
void give_back(const MatmulProduct& p) {
    const std::lock_guard lock(mutex);
    held.erase(std::find_if(held.begin(), held.end(), [&](const Held& h) { return h.begin == p.workspace; }));
}

}  // namespace

std::size_t workspace_of(const MatmulSizes& sizes, std::int32_t batch, int splits, cublasLtReductionScheme_t scheme) {
    if (splits == 1) return 0;
    if (scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE) return counter_bytes;
    return sizeof(float) * sizes.m * sizes.n * static_cast<std::uint64_t>(batch * splits);
}

void submit_product(cudaStream_t stream, const MatmulProduct& p) {
    const bool in_place = p.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE;
    if (p.workspace_bytes > 0)
        submit(stream, [p, in_place] {
            take(p);
            if (p.splits > 1 && !in_place) fill_splits(p);
            return true;
        });
    submit(stream, [p, in_place] {
        p.splits == 1 ? whole(p) : in_place ? add_in_place(p) : add_splits(p);
        if (p.workspace_bytes > 0) give_back(p);
        return true;
    });
}

}  // namespace sim
