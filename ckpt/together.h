// ckpt/together.h: steps that every rank takes and all leave with one answer. Between the sources of ckpt only.
//
// With a group of one these are the step itself and no more. Texts travel in host memory, so `group` is one of ranks
// that reach each other's: threads or MPI.
#pragma once

#include <functional>
#include <string>

#include "comm/group.h"

namespace keel {

// Rank 0's text, on every rank.
std::string text_of_rank_0(Group& group, const std::string& text);

// Runs `work`, which calls no collective, on every rank, and returns when all are done. If it threw somewhere, all
// throw one Error that says `what`, on which ranks, and why.
void together(Group& group, const std::string& what, const std::function<void()>& work);

}  // namespace keel
