// ckpt/foreign/readers.h: the readers behind ckpt/foreign_model.h, one per form, each in the file of its name.
#pragma once

#include <filesystem>
#include <string_view>

#include "ckpt/foreign_model.h"

namespace keel {

bool is_meta_folder(const std::filesystem::path& folder);
ForeignModel open_meta(const std::filesystem::path& folder, const ForeignOptions& options);

// By Meta's names, which llama2.c has too: one table per rank.
void place_meta_weights(ForeignModel& model);

bool is_megatron_folder(const std::filesystem::path& folder);
ForeignModel open_megatron(const std::filesystem::path& folder, const ForeignOptions& options);

// `start` holds the first 1024 bytes of the file, or all of it.
bool is_llmc_model(std::string_view start);
ForeignModel open_llmc(const std::filesystem::path& file, const ForeignOptions& options);

bool is_llama2c_model(std::string_view start, std::int64_t file_size_bytes);
ForeignModel open_llama2c(const std::filesystem::path& file, const ForeignOptions& options);

}  // namespace keel
