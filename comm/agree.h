// comm/agree.h: ranks compare what they are before they work together.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"

namespace keel {

// What every rank brought, by rank; the same on all ranks. For start-up: it allocates.
std::vector<std::string> gather_strings(Group& group, const std::string& own);

// Every rank brings the same names, such as build, configuration hash, data hash and device, in the same order, with
// its values. Fails on every rank, with a message that says which ranks have which value, if one name is not of one
// value.
void expect_agreement(Group& group, std::span<const std::pair<std::string, std::string>> facts);

}  // namespace keel
