#include "kernels/products.h"

namespace keel {

namespace on_cuda {
std::string chosen_products();
void prefer_products(const std::string& chosen);
}  // namespace on_cuda
namespace on_cudasim {
std::string chosen_products();
void prefer_products(const std::string& chosen);
}  // namespace on_cudasim

std::string chosen_products([[maybe_unused]] Device device) {
#if KEEL_CUDA
    if (device == Device::cuda) return on_cuda::chosen_products();
#endif
#if KEEL_CUDASIM
    if (device == Device::cudasim) return on_cudasim::chosen_products();
#endif
    return {};
}

void prefer_products([[maybe_unused]] Device device, [[maybe_unused]] const std::string& chosen) {
#if KEEL_CUDA
    if (device == Device::cuda) on_cuda::prefer_products(chosen);
#endif
#if KEEL_CUDASIM
    if (device == Device::cudasim) on_cudasim::prefer_products(chosen);
#endif
}

}  // namespace keel
