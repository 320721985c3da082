// engine/parallel/cluster.h: a cluster as the simulator sees it (simulate.h): devices, and the wires between them.
//
// Ranks are numbered tp, cp, dp, pp, fastest first, and fill one node after the other, so where a group's members stand
// follows from its stride and size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace keel {

struct Cluster {
    std::string device;
    std::int64_t gpus, per_node;
    double tflops;     // dense bf16 peak of one device, 10^12 FLOP/s
    double memory_gb;  // of one device, 10^9 bytes
    double hbm_gb;     // its memory bandwidth, 10^9 bytes/s, read and write together
    double nvlink_gb;  // to the other devices of its node, 10^9 bytes/s in each direction
    double ib_gb;      // to other nodes, 10^9 bytes/s in each direction, per device
    double gemm;       // share of the peak that large matrix products reach: the one number that is fitted

    double attention;  // share of the peak that attention kernels reach, forward and backward together, as published

    // What the other rates come down to in practice. Counted, not fitted: docs/parallelism.md.
    static constexpr double memory_share = 0.85;  // of hbm_gb in kernels that only move data
    static constexpr double wire_share = 0.8;     // of nvlink_gb and ib_gb in collectives
    static constexpr double latency_s = 1e-5;     // of one collective or message

    // Bytes per second that each member of a group of `size` ranks, `stride` apart, can send and receive at once.
    double wire(std::int64_t stride, std::int64_t size) const;
    double peak() const { return tflops * 1e12; }                   // FLOP/s
    double matmul() const { return peak() * gemm; }                 // FLOP/s
    double memory() const { return hbm_gb * 1e9 * memory_share; }   // bytes/s
};

// a100, h100, h200: SXM modules, eight to a node, by their datasheets.
std::vector<Cluster> known_devices();

// "gpus=3072,device=a100" and any of per_node, tflops, memory, hbm, nvlink, ib, gemm and attention to change. Fails
// naming the word.
Cluster parse_cluster(const std::string& text);

}  // namespace keel
