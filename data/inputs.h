// data/inputs.h: the files that people mean: names as they are, folders, patterns and lists, in one order for
// everybody.
//
//   book.txt       itself, also if it has * or ? in its name
//   corpus/        every file below the folder; hidden ones and those below hidden folders are left out
//   'c/**/*.md'    patterns: * ? [ ] within a name, ** any number of folders (at the end every file below); hidden names only where the pattern says
//   so
//   @list.txt      a name, folder or pattern per line; relative to the folder of the list; blank lines and # are
//   skipped
//
// What a folder or pattern stands for is sorted by the bytes of its path. A name that stands for nothing is a usage
// error, and so is a file that is meant twice.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace keel {

// `endings`: which files of a folder are meant, by the ends of their names (".tok"); none given means all.
std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& inputs,
                                                 const std::vector<std::string>& endings = {});

}  // namespace keel
