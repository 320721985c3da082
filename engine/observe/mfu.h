// engine/observe/mfu.h: model FLOPs utilisation: useful work (flops.h) over what the devices could have done in the
// time.
//
//     MFU = FLOPs / (seconds of training · ranks · peak of one device)
//
// Chowdhery et al. 2022, arXiv:2204.02311, but for the FLOPs, which are counted from ΣL and ΣL². Recomputed and padded
// work is no useful work. Peaks are dense: a sparse one is twice as high and nobody reaches it.
#pragma once

#include <string>

#include "engine/config.h"
#include "engine/observe/flops.h"

namespace keel {

// FLOP/s of one rank's device by its datasheet, from config.observe.device_peak; 0: not known. Throws for one that is
// neither a known device nor a number; datasheets of known devices are for bf16.
double device_peak(const Config& config);

// "MFU = FLOPs / seconds / peak, …", a line with formula and peaks. `measured`: FLOP/s of all ranks together, 0: not known.
// `sheet`: of one rank's device by its datasheet, 0: not known.
std::string mfu_text(const Config& config, double flops, double seconds, int ranks, double measured, double sheet);

}  // namespace keel
