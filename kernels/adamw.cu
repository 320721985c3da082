// The CUDA body of kernels/adamw.h: four elements a thread, the last few one by one; 28 bytes read or written an
// element and the parameter's own, nothing twice.
#include "kernels/adamw.h"
#include "kernels/cuda_ops.h"
#include "kernels/flat.cuh"

namespace keel::KEEL_DEVICE {
namespace {

struct Scalars {
    float keep_m, take_m, keep_v, take_v, correct_m, correct_v, lr, eps, decay, grad_scale;
};

// Without `separate`, master is the parameter.
template <class T, int n>
KEEL_INLINE void update(T* param, float* master, float* m, float* v, const float* grad, const Scalars& s,
                        bool separate) {
    const Pack<float, n> g = load<n>(grad);
    Pack<float, n> m_new = load<n>(m), v_new = load<n>(v), w = load<n>(master);
    Pack<T, n> p;
#pragma unroll
    for (int k = 0; k < n; ++k) {
        const float scaled = g.at[k] * s.grad_scale;
        m_new.at[k] = m_new.at[k] * s.keep_m + scaled * s.take_m;
        v_new.at[k] = v_new.at[k] * s.keep_v + scaled * scaled * s.take_v;
        const float step = m_new.at[k] * s.correct_m / (sqrtf(v_new.at[k] * s.correct_v) + s.eps) + w.at[k] * s.decay;
        w.at[k] -= step * s.lr;
        p.at[k] = from_float<T>(w.at[k]);
    }
    store<n>(m, m_new);
    store<n>(v, v_new);
    store<n>(master, w);
    if (separate) store<n>(param, p);
}

template <class T, int n>
__global__ void __launch_bounds__(flat_threads) adamw_kernel(T* param, float* master, float* m, float* v, const float* grad,
                                                        std::int64_t size, Scalars s, bool separate) {
    const std::int64_t i = flat_element(n);
    if (i + n <= size)
        update<T, n>(param + i, master + i, m + i, v + i, grad + i, s, separate);
    else
        for (std::int64_t k = i; k < size; ++k)
            update<T, 1>(param + k, master + k, m + k, v + k, grad + k, s, separate);
}

template <class T>
void adamw_any(Stream& stream, const Adamw<T>& a) {
    using K = in_kernel<T>;
    const std::int64_t size = a.param.dim(0);
    if (size == 0) return;
    const Scalars s{.keep_m = a.beta1,
                    .take_m = static_cast<float>(1.0 - static_cast<double>(a.beta1)),
                    .keep_v = a.beta2,
                    .take_v = static_cast<float>(1.0 - static_cast<double>(a.beta2)),
                    .correct_m = adamw_correction(a.beta1, a.step),
                    .correct_v = adamw_correction(a.beta2, a.step),
                    .lr = a.lr,
                    .eps = a.eps,
                    .decay = a.weight_decay,
                    .grad_scale = a.grad_scale};
    const bool separate = static_cast<const void*>(a.param.data()) != a.master.data();
    const auto go = [&](auto* kernel, int n) {
        launch(stream, flat_shape(size, n), kernel, kernel_pointer(a.param), a.master.data(), a.m.data(), a.v.data(), a.grad.data(), size, s,
               separate);
    };
    bool vectors = in_vectors_of(4, a.param.data(), 0);
    for (const float* p : {static_cast<const float*>(a.master.data()), static_cast<const float*>(a.m.data()),
                           static_cast<const float*>(a.v.data()), a.grad.data()})
        vectors &= in_vectors_of(4, p, 0);
    if (vectors)
        go(adamw_kernel<K, 4>, 4);
    else
        go(adamw_kernel<K, 1>, 1);
}

}  // namespace

template <>
void run(Stream& stream, const Adamw<float>& args) {
    adamw_any(stream, args);
}
template <>
void run(Stream& stream, const Adamw<bf16>& args) {
    adamw_any(stream, args);
}

}  // namespace keel::KEEL_DEVICE
