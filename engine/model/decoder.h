// engine/model/decoder.h: next-token logits with a KV cache: what `keel generate` runs.
//
// Shares the block's launches with training (engine/model/block.h). Keys and values of the tokens seen so far stay in the
// cache; a call appends any number more (a long one goes through in pieces) and returns the logits of the last. One sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/config.h"
#include "engine/model/model.h"
#include "kernels/base/stream.h"

namespace keel {

class Decoder {
public:
    virtual ~Decoder() = default;
    virtual std::int64_t length() const = 0;    // tokens in the cache
    virtual std::int64_t capacity() const = 0;  // tokens it can hold
    virtual void clear() = 0;                   // forgets the sequence
    // Appends `ids`; returns [vocab], the logits after the last of them, valid until the next call.
    virtual View<const float> append(std::span<const std::int32_t> ids) = 0;
};

// Reads the parameters of `model`, which must outlive it. Throws if `capacity` tokens of cache do not fit.
std::unique_ptr<Decoder> make_decoder(const Config& config, Stream& stream, Model& model, std::int64_t capacity);

}  // namespace keel
