// ckpt/params.h: the engine's parameters, looked up by name. Between the sources of model_folder only.
#pragma once

#include <map>
#include <span>
#include <string>

#include "ckpt/model_folder.h"

namespace keel {

using ParamMap = std::map<std::string, const NamedTensor*>;

// Refuses unless `params` are exactly param_specs(shape), in any order.
ParamMap check_params(const ModelShape& shape, std::span<const NamedTensor> params);

}  // namespace keel
