#include "engine/model/head.h"

#include <algorithm>
#include <type_traits>

#include "kernels/copy.h"
#include "kernels/cross_entropy.h"
#include "kernels/linear.h"

namespace keel {
namespace {

// The three numbers of each token, over the vocabulary of all ranks.
void join(Stream& s, const TensorParallel& tp, View<float> max, View<float> sum, View<float> target, View<float> common) {
    copy<float>(s, common, max);
    tp.group.all_reduce_max(s, common);
    cross_entropy_merge(s, {.sum = sum, .max = max, .common = common});
    copy<float>(s, max, common);
    tp.group.all_reduce(s, sum);
    tp.group.all_reduce(s, target);
}

}  // namespace

template <class T>
void head_loss(Stream& s, const TensorParallel& tp, const HeadBuffers<T>& b, const HeadLoss<T>& a) {
    const std::int64_t tokens = a.labels.dim(0);
    const View<const T> norm = enter_forward<T>(s, tp, a.norm, b.whole_norm ? b.whole_norm->rows(0, tokens) : View<T>(nullptr, {0}));
    std::optional<View<T>> partial;  // gradient of `norm`, summed over the ranks at the end
    if (a.dnorm) partial = tp.sequence ? b.whole_dnorm->rows(0, tokens) : *a.dnorm;
    for (std::int64_t begin = 0; begin < tokens; begin += b.chunk) {
        const std::int64_t n = std::min(b.chunk, tokens - begin);
        const View<float> logits = b.logits.rows(0, n), max = b.max.rows(0, n), sum = b.sum.rows(0, n), target = b.target.rows(0, n);
        const View<const std::int32_t> labels = a.labels.rows(begin, n);
        const View<float> loss = a.loss.rows(begin, n);
        /*1*/ linear_forward<T, float>(s, {.y = logits, .x = norm.rows(begin, n), .w = a.w});
        /*2*/ cross_entropy_stats(s, {.max = max, .sum = sum, .target = target, .logits = logits, .labels = labels, .vocab_begin = a.vocab_begin});
              if (b.common) join(s, tp, max, sum, target, b.common->rows(0, n));
        if (!partial) {
            cross_entropy_loss(s, {.loss = loss, .labels = labels, .max = max, .sum = sum, .target = target});
            continue;
        }
        View<T> dlogits(nullptr, {0});
        if constexpr (std::is_same_v<T, float>) dlogits = logits;
        else dlogits = b.dlogits->rows(0, n);
        /*2*/ cross_entropy_grad<T>(s, {.loss = loss, .dlogits = dlogits, .logits = logits, .labels = labels, .max = max, .sum = sum,
                                        .target = target, .vocab_begin = a.vocab_begin, .z_loss = a.z_loss, .scale = a.scale});
        /*1*/ linear_dgrad<T>(s, {.dx = partial->rows(begin, n), .dy = dlogits, .w = a.w});
              linear_wgrad<T>(s, {.dw = *a.dw, .dy = dlogits, .x = norm.rows(begin, n), .accumulate = a.accumulate || begin > 0});
    }
    if (a.dnorm) enter_backward<T>(s, tp, *a.dnorm, *partial);
}

template void head_loss<float>(Stream&, const TensorParallel&, const HeadBuffers<float>&, const HeadLoss<float>&);
template void head_loss<bf16>(Stream&, const TensorParallel&, const HeadBuffers<bf16>&, const HeadLoss<bf16>&);
template void head_loss<f16>(Stream&, const TensorParallel&, const HeadBuffers<f16>&, const HeadLoss<f16>&);

}  // namespace keel
