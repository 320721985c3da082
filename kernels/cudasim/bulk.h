// kernels/cudasim/bulk.h: bulk copies of boxes of tensors (cp.async.bulk.tensor, TMA): one thread starts one, and
// nobody's registers take part. A load says by an mbarrier that it has landed; stores are waited for in groups by their
// thread.
//
// A load lands when it is issued (Async::early), or when nothing else can run (Async::late); until then its place holds
// poison. A store reads shared memory when it is issued, or when its group is waited for.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/cudasim/findings.h"
#include "kernels/cudasim/tensor_map.h"

namespace sim {

// Element (c0, c1, …) of the tensor is the box's first; what lies outside of the tensor is zero. All the box's bytes
// count at the mbarrier.
void load_box(void* shared, const cuda::CUtensorMap* map, std::uint64_t* barrier,
              std::initializer_list<std::int32_t> at, const Site& site);
// What lies outside of the tensor is not written.
void store_box(const cuda::CUtensorMap* map, const void* shared, std::initializer_list<std::int32_t> at,
               const Site& site);
void commit_stores();
void wait_stores(unsigned groups_left);  // all but the last groups have read shared memory

}  // namespace sim
