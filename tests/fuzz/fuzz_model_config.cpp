// Any text as config.json: refused with Error, or a shape whose own config.json reads as the same shape.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ckpt/model_config.h"
#include "ckpt/model_folder.h"
#include "kernels/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    keel::ModelShape shape;
    try {
        shape = keel::parse_model_config({reinterpret_cast<const char*>(data), size}, "input");
    } catch (const keel::Error&) {  // the one exception a file may cause
        return 0;
    }
    // What was accepted must be expressible: an Error from here on is a finding.
    const std::string text = keel::model_config_text(shape);
    if (keel::model_config_text(keel::parse_model_config(text, "own output")) != text) std::abort();
    if (shape.layers < 64 && keel::parameter_count(shape) <= 0) std::abort();
    return 0;
}
