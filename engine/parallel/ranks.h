// engine/parallel/ranks.h: the groups one rank belongs to. Made once, handed in, owned by whoever made them (a Mesh, or
// SoloRanks for the only rank there is).
#pragma once

#include "comm/group.h"
#include "engine/parallel/layout.h"
#include "engine/parallel/mesh.h"

namespace keel {

struct Ranks {
    RankPlace place;
    Group& world;
    Group& tp;        // share every matrix
    Group& cp;        // share every sequence
    Group& pp;        // share the layers
    Group& replicas;  // dp x cp: hold the same parameters, share their optimizer state
    Group& beside;    // the same ranks again, for the thread that communicates while others compute
    Group& embedding; // first and last stage, where they share a tied embedding; else this rank alone
};

// Of the thread that runs the loop, in collectives and waiting for messages. `beside` is another thread's.
inline double communication_seconds(const Ranks& r) {
    return r.world.seconds() + r.tp.seconds() + r.cp.seconds() + r.pp.seconds() + r.replicas.seconds() + r.embedding.seconds();
}

inline Ranks ranks_of(const Mesh& mesh) {
    const Coordinates& at = mesh.at();
    return {{at.tp, at.cp, at.dp, at.pp}, mesh.world(), mesh.tp(), mesh.cp(), mesh.pp(), mesh.dp_cp(), mesh.beside(), mesh.embd()};
}

// Of a GPU, to the groups whose collectives are made on one stream, one after another.
inline void lend(const Ranks& r, View<std::byte> memory) {
    for (Group* group : {&r.tp, &r.cp, &r.replicas, &r.embedding}) group->lend(memory);
}

// The only rank of a run.
struct SoloRanks {
    SoloGroup world{"world"}, tp{"tp"}, cp{"cp"}, pp{"pp"}, replicas{"dp_cp"}, beside{"dp_cp beside"}, embedding{"embd"};
    Ranks ranks() { return {{}, world, tp, cp, pp, replicas, beside, embedding}; }
};

}  // namespace keel
