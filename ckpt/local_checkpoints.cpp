#include "ckpt/local_checkpoints.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "ckpt/checkpoint_tensors.h"
#include "ckpt/draft.h"
#include "ckpt/manifest.h"
#include "ckpt/strict_json.h"
#include "ckpt/together.h"
#include "ckpt/transfer.h"
#include "comm/agree.h"
#include "kernels/base/error.h"
#include "kernels/base/stream.h"

namespace keel {
namespace fs = std::filesystem;
namespace {

// One part that one rank found on its node.
struct Entry {
    std::int64_t step;
    std::string save;  // tells two saves of one step apart
    int owner, holder;
    std::string kind;  // "part" or "copy": where the holder has it
    bool operator==(const Entry&) const = default;
};

std::string entries_text(const std::vector<Entry>& entries) {
    Json list = Json::array();
    for (const Entry& e : entries) list.push_back({e.step, e.save, e.owner, e.holder, e.kind});
    return list.dump();
}

std::vector<Entry> parse_entries(const std::string& text) {
    std::vector<Entry> entries;
    for (const Json& e : Json::parse(text)) entries.push_back({e[0], e[1], e[2], e[3], e[4]});
    return entries;
}

std::string part_state(const std::string& save, int rank, int ranks, const std::string& state) {
    return Json{{"save", save}, {"rank", rank}, {"ranks", ranks}, {"state", state}}.dump() + "\n";
}

// Of a later save it is greater, as far as clocks can be believed.
std::string save_id() {
    const std::string now = std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
    return std::string(now.size() < 20 ? 20 - now.size() : 0, '0') + concat(now, "-", ::getpid());
}

// What a part says of itself.
Json parse_part_state(const CheckpointInfo& info) {
    const std::string where = (info.path / state_name).string();
    Json state = parse_strict_json(info.state, where);
    if (!state.contains("save") || !state.contains("rank") || !state.contains("ranks") || !state.contains("state"))
        fail(where, " is not that of a local checkpoint");
    return state;
}

// Whether the pieces stored in a part are the ones owned, no more and no less.
void check_owned(const CheckpointInfo& info, std::span<const TensorPiece> owned) {
    using Place =
        std::tuple<std::string, std::vector<std::int64_t>, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
    std::set<Place> here, wanted;
    const CheckpointTensors stored(info, CheckpointTensors::Coverage::part);
    for (const auto& [tensor, t] : stored.tensors())
        for (const CheckpointTensors::Piece& p : t.pieces)
            here.insert({tensor, t.shape, p.rect.row, p.rect.rows, p.rect.col, p.rect.cols});
    for (const TensorPiece& p : owned)
        if (!p.rect().empty()) wanted.insert({p.name, p.shape, p.row, p.rows, p.col, p.cols});
    if (here != wanted)
        fail(info.path.string(), " holds ", here.size(), " pieces, but this rank owns ", wanted.size(),
             here.size() == wanted.size() ? " others" : "", "; it was saved under another layout");
}

// Of one run, told from others that share the storage.
fs::path folder_of(const fs::path& dir, const fs::path& checkpoint_root) {
    std::error_code error;
    const fs::path root = fs::weakly_canonical(fs::absolute(checkpoint_root), error);
    return dir / hash_of(error ? checkpoint_root.string() : root.string()).substr(0, 16);
}

fs::path part_in(const fs::path& folder, const char* kind, int rank, int ranks) {
    std::array<char, 48> name{};
    std::snprintf(name.data(), name.size(), "%s-%05d-of-%05d", kind, rank, ranks);
    return folder / name.data();
}

fs::path path_in(const fs::path& folder, const Entry& e, int ranks) {
    return part_in(folder, e.kind.c_str(), e.owner, ranks) / step_folder_name(e.step);
}

// Everything on this node that is a part of some rank, with its sizes right; hashes are looked at when one is chosen. What is
// no part, and should be, goes into `doubts`, a line each.
std::vector<Entry> entries_here(const fs::path& folder, int ranks, int holder, std::string& doubts) {
    std::vector<Entry> found;
    for (int owner = 0; owner < ranks; ++owner)
        for (const char* kind : {"part", "copy"}) {
            std::vector<StepFolder> steps;
            try {
                steps = step_folders(part_in(folder, kind, owner, ranks));
            } catch (const Error& e) {
                doubts += concat(e.what(), "\n");
            }
            for (const StepFolder& step : steps) try {
                    const CheckpointInfo info = open_checkpoint(step.path);
                    const Json state = parse_part_state(info);
                    if (state.at("rank") != owner || state.at("ranks") != ranks)
                        fail(step.path.string(), " says that it is another rank's");
                    found.push_back({info.step, state.at("save").get<std::string>(), owner, holder, kind});
                } catch (const std::exception& e) {
                    doubts += concat(e.what(), "\n");
                }
        }
    return found;
}

// Removes all steps but one, good or bad, older or of a history that was left.
void keep_only(const fs::path& root, std::int64_t step) {
    std::error_code ignored;
    for (const StepFolder& folder : step_folders(root))
        if (folder.step != step) fs::remove_all(folder.path, ignored);
}

// Steps of one save for which every rank's part is known, the newest first. Of each part the holder: its own rank, or
// else the lowest that has it.
using Whole = std::vector<Entry>;  // by owner
std::optional<Whole> newest_whole(const std::vector<Entry>& entries, int ranks) {
    std::map<std::pair<std::int64_t, std::string>, std::map<int, Entry>> saves;
    for (const Entry& e : entries) {
        const auto [at, fresh] = saves[{e.step, e.save}].emplace(e.owner, e);
        const auto better = [](const Entry& a, const Entry& b) {
            return std::pair(a.holder != a.owner, a.holder) < std::pair(b.holder != b.owner, b.holder);
        };
        if (!fresh && better(e, at->second)) at->second = e;
    }
    for (auto at = saves.rbegin(); at != saves.rend(); ++at) {
        if (static_cast<int>(at->second.size()) != ranks) continue;
        Whole whole;
        for (const auto& [owner, e] : at->second) whole.push_back(e);
        return whole;
    }
    return std::nullopt;
}

}  // namespace

LocalCheckpoints::LocalCheckpoints(Group& world, const fs::path& dir, const fs::path& checkpoint_root, int distance)
    : ranks_(world.size()), distance_(distance > 0 ? distance : world.size() / 2) {
    if (distance < 0 || (distance >= ranks_ && ranks_ > 1))
        fail_usage("a partner ", distance, " ranks away is none of ", ranks_,
                   "; give less, such as the number of ranks per node");
    if (ranks_ == 1) distance_ = 0;
    folder_ = folder_of(dir, checkpoint_root);
    together(world, "preparing local checkpoints", [&] {
        prepare_checkpoint_root(part("part", world.rank()));
        if (distance_ != 0) prepare_checkpoint_root(part("copy", (world.rank() + ranks_ - distance_) % ranks_));
    });
}

fs::path LocalCheckpoints::part(const char* kind, int rank) const { return part_in(folder_, kind, rank, ranks_); }

fs::path LocalCheckpoints::save(Group& world, std::int64_t step, const std::string& state,
                                std::span<const TensorPiece> owned) {
    const std::string what = concat("the local checkpoint of step ", step);
    const int rank = world.rank(), n = world.size();
    const std::string save = text_of_rank_0(world, save_id());
    const std::string shared_state = text_of_rank_0(world, state);
    const fs::path mine = part("part", rank);
    CheckpointInfo info;
    together(world, what, [&] {
        Draft draft(mine, step);
        for (const TensorKind kind : {TensorKind::weights, TensorKind::optimizer})
            for (CheckpointFile& file : write_tensor_file(draft.path(), kind, rank, n, owned))
                draft.add(std::move(file));
        draft.write_text(state_name, part_state(save, rank, n, shared_state));
        info = {.path = draft.publish(), .step = step, .state = {}, .files = draft.files()};
        std::erase_if(info.files, [](const CheckpointFile& f) { return f.name == manifest_name; });
    });
    const int to = distance_ == 0 ? -1 : (rank + distance_) % n,
              from = distance_ == 0 ? -1 : (rank + n - distance_) % n;
    const fs::path copies = distance_ == 0 ? fs::path() : part("copy", from);
    const std::string problem = distance_ == 0 ? std::string() : transfer(world, info, to, copies, from);
    together(world, what, [&] {
        if (!problem.empty()) fail(problem);
    });
    keep_only(mine, step);
    if (distance_ != 0) keep_only(copies, step);
    return info.path;
}

std::optional<LocalCheckpoints::Found> LocalCheckpoints::find_newest(Group& world, std::span<const TensorPiece> owned,
                                                                     const WarningSink& warn) {
    const int rank = world.rank();
    const auto tell = [&](const std::string& text) {
        if (warn && rank == 0) warn("passing over a local checkpoint: " + text);
    };
    std::string doubts;
    const std::vector<Entry> mine = entries_here(folder_, ranks_, rank, doubts);
    std::vector<Entry> entries;
    for (const std::string& text : gather_strings(world, entries_text(mine)))
        for (Entry& e : parse_entries(text)) entries.push_back(std::move(e));
    std::set<std::string> told;  // ranks of one node say the same
    for (const std::string& text : gather_strings(world, doubts))
        for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1)
            if (const std::string line = text.substr(at, text.find('\n', at) - at); told.insert(line).second)
                tell(line);
    const auto path_of = [&](const Entry& e) { return path_in(folder_, e, ranks_); };

    while (const auto whole = newest_whole(entries, ranks_)) {
        // Each holder reads what it is to give; an entry that is bad is struck from the list, and the choice made
        // again.
        std::vector<std::string> problems(static_cast<std::size_t>(ranks_));
        for (const Entry& e : *whole) {
            if (e.holder != rank) continue;
            try {
                verify_checkpoint(path_of(e));
            } catch (const std::exception& error) {
                problems[static_cast<std::size_t>(e.owner)] = error.what();
            }
        }
        const auto strike = [&] {  // whether there was something to strike
            bool struck = false;
            for (const std::string& text :
                 gather_strings(world, Json(problems).dump(-1, ' ', false, Json::error_handler_t::replace))) {
                const auto reasons = Json::parse(text).get<std::vector<std::string>>();
                for (std::size_t owner = 0; owner < reasons.size(); ++owner) {
                    if (reasons[owner].empty()) continue;
                    struck = true;
                    tell(reasons[owner]);
                    const Entry& bad = (*whole)[owner];
                    std::erase_if(entries, [&](const Entry& e) { return e == bad; });
                }
            }
            return struck;
        };
        if (strike()) continue;
        // Lost parts come home, one after the other.
        fs::path home = path_of((*whole)[static_cast<std::size_t>(rank)]);
        for (const Entry& e : *whole) {
            if (e.holder == e.owner || (rank != e.holder && rank != e.owner)) continue;
            std::optional<CheckpointInfo> given;
            if (rank == e.holder) given = open_checkpoint(path_of(e));
            const std::string problem = rank == e.holder ? transfer(world, given, e.owner, {}, -1)
                                                         : transfer(world, given, -1, part("part", rank), e.holder);
            if (!problem.empty()) problems[static_cast<std::size_t>(e.owner)] = problem;
            if (rank == e.owner) home = part("part", rank) / step_folder_name(e.step);
        }
        if (strike()) continue;
        std::optional<Found> found;
        try {
            together(world, concat("step ", whole->front().step), [&] {
                const CheckpointInfo info = open_checkpoint(home);
                check_owned(info, owned);
                found = {info.step, parse_part_state(info).at("state").get<std::string>(), home};
            });
            return found;
        } catch (const Error& e) {
            if (e.code() == ExitCode::peer) throw;
            tell(e.what());
            std::erase_if(entries, [&](const Entry& entry) {
                return entry.step == whole->front().step && entry.save == whole->front().save;
            });
        }
    }
    return std::nullopt;
}

void LocalCheckpoints::load(Group& world, const Found& found, std::span<const TensorPiece> owned) {
    together(world, "loading " + found.path.string(), [&] {
        const CheckpointInfo info = verify_checkpoint(found.path);
        check_owned(info, owned);
        const CheckpointTensors stored(info, CheckpointTensors::Coverage::part);
        for (const TensorPiece& p : owned)
            if (!p.rect().empty()) stored.read(p);
    });
}

std::optional<std::int64_t> LocalCheckpoints::newest_here(const fs::path& dir, const fs::path& checkpoint_root, int ranks) {
    const fs::path folder = folder_of(dir, checkpoint_root);
    std::string doubts;
    std::vector<Entry> entries = entries_here(folder, ranks, 0, doubts);
    while (const auto whole = newest_whole(entries, ranks)) {
        const auto before = entries.size();
        for (const Entry& e : *whole) try {
                verify_checkpoint(path_in(folder, e, ranks));
            } catch (const Error&) {
                std::erase(entries, e);
            }
        if (entries.size() == before) return whole->front().step;
    }
    return std::nullopt;
}

void LocalCheckpoints::discard_after(Group& world, std::int64_t step) {
    together(world, "discarding local checkpoints", [&] {
        std::error_code ignored;  // ranks of one node find the same ones
        for (fs::directory_iterator part(folder_, ignored), end; part != end; part.increment(ignored))
            for (const StepFolder& folder : step_folders(part->path()))
                if (folder.step > step) fs::remove_all(folder.path, ignored);
    });
}

}  // namespace keel
