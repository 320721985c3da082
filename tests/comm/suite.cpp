#include "tests/comm/suite.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "comm/agree.h"
#include "kernels/base/random.h"

namespace keel::comm_suite {
namespace {

constexpr std::int64_t sizes[] = {1, 7, 8, 17, 1000, 65537};

std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Element i of what a rank brings: of very different magnitudes, so that another order of summation gives other bits.
template <class T> T value(int rank, std::int64_t i) {
    const std::uint64_t h = mix(static_cast<std::uint64_t>(i) * 1024 + static_cast<std::uint64_t>(rank) + 1);
    if constexpr (std::is_same_v<T, std::int64_t>) return static_cast<std::int64_t>(h);
    else {
        const double x = std::ldexp(static_cast<double>(h >> 11), static_cast<int>(h % 24) - 65) - std::ldexp(1.0, -13);
        return static_cast<T>(static_cast<float>(x));
    }
}

template <class T> Numbers<T> values(int rank, std::int64_t n) {
    Numbers<T> x(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) x[static_cast<std::size_t>(i)] = value<T>(rank, i);
    return x;
}

template <class T> View<T> view(Numbers<T>& x) { return View<T>(x.data(), {static_cast<std::int64_t>(x.size())}); }

template <class T> T sum_of(int ranks, std::int64_t i) {
    if constexpr (std::is_same_v<T, std::int64_t>) {
        std::uint64_t sum = 0;
        for (int r = 0; r < ranks; ++r) sum += static_cast<std::uint64_t>(value<T>(r, i));
        return static_cast<std::int64_t>(sum);
    } else {
        using W = std::conditional_t<sizeof(T) == 2, float, T>;
        W sum = static_cast<W>(value<T>(0, i));
        for (int r = 1; r < ranks; ++r) sum += static_cast<W>(value<T>(r, i));
        return static_cast<T>(sum);
    }
}

template <class T> bool same_bits(const T& a, const T& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

template <class T> void sum_one(Group& g, Stream& stream, std::int64_t n) {
    auto x = values<T>(g.rank(), n);
    g.all_reduce(stream, view(x));
    stream.synchronize();
    for (std::int64_t i = 0; i < n; ++i)
        require(same_bits(x[static_cast<std::size_t>(i)], sum_of<T>(g.size(), i)), "all_reduce of element ", i, " of ",
                n);
}

void sums_are_formed_in_the_order_of_ranks(World& world) {
    const auto g = world.everyone();
    for (const int threads : {1, 3}) {
        const Worker stream(threads);
        for (const std::int64_t n : sizes) {
            sum_one<float>(*g, stream, n);
            sum_one<double>(*g, stream, n);
            sum_one<bf16>(*g, stream, n);
            if (world.transport() != std::string("nccl")) sum_one<f16>(*g, stream, n);  // a type of the CPU's
            sum_one<std::int64_t>(*g, stream, n);
        }
    }
}

void maximum_is_the_largest_and_nan_wins(World& world) {
    const auto g = world.everyone();
    const Worker stream(1);
    for (const std::int64_t n : sizes) {
        auto x = values<float>(g->rank(), n);
        Numbers<std::int64_t> k = values<std::int64_t>(g->rank(), n);
        if (g->rank() == g->size() / 2) x[0] = std::numeric_limits<float>::quiet_NaN();
        g->all_reduce_max(stream, view(x));
        g->all_reduce_max(stream, view(k));
        stream.synchronize();
        require(std::isnan(x[0]), "a NaN of one rank is everybody's");
        for (std::int64_t i = 0; i < n; ++i) {
            float largest = value<float>(0, i);
            std::int64_t most = value<std::int64_t>(0, i);
            for (int r = 1; r < g->size(); ++r) {
                largest = std::max(largest, value<float>(r, i));
                most = std::max(most, value<std::int64_t>(r, i));
            }
            require(i == 0 || x[static_cast<std::size_t>(i)] == largest, "largest float ", i);
            require(k[static_cast<std::size_t>(i)] == most, "largest int64 ", i);
        }
    }
}

template <class T> void reduce_scatter_one(Group& g, Stream& stream, std::int64_t part) {
    const std::int64_t n = part * g.size(), first = part * g.rank();
    for (const bool in_place : {false, true}) {
        auto x = values<T>(g.rank(), n);
        const auto before = x;
        Numbers<T> apart(static_cast<std::size_t>(part));
        const View<T> shard = in_place ? view(x).rows(first, part) : view(apart);
        g.reduce_scatter(stream, shard, view(x));
        stream.synchronize();
        for (std::int64_t i = 0; i < part; ++i)
            require(same_bits(shard[i], sum_of<T>(g.size(), first + i)), "reduce_scatter of element ", i, " of ", part);
        for (std::int64_t i = 0; i < n; ++i)
            require((in_place && i >= first && i < first + part) ||
                        same_bits(x[static_cast<std::size_t>(i)], before[static_cast<std::size_t>(i)]),
                    "reduce_scatter leaves the rest of x: ", i);
    }
}

void reduce_scatter_gives_each_rank_its_part_in_place_or_apart(World& world) {
    const auto g = world.everyone();
    const Worker stream(2);
    for (const std::int64_t part : sizes) {
        reduce_scatter_one<float>(*g, stream, part);
        reduce_scatter_one<bf16>(*g, stream, part);
    }
    reduce_scatter_one<double>(*g, stream, 100);
    reduce_scatter_one<std::int64_t>(*g, stream, 100);
}

void all_gather_puts_the_parts_in_the_order_of_ranks(World& world) {
    const auto g = world.everyone();
    const Worker stream(2);
    for (const std::int64_t part : sizes)
        for (const bool in_place : {false, true}) {
            Numbers<float> x(static_cast<std::size_t>(part * g->size()), -1.0f);
            auto apart = values<float>(g->rank(), part);
            const View<float> own = view(x).rows(part * g->rank(), part);
            if (in_place) std::copy(apart.begin(), apart.end(), own.data());
            g->all_gather(stream, view(x), in_place ? own : view(apart));
            stream.synchronize();
            for (int r = 0; r < g->size(); ++r)
                for (std::int64_t i = 0; i < part; ++i)
                    require(x[static_cast<std::size_t>(r * part + i)] == value<float>(r, i), "all_gather of rank ", r,
                            ", ", i);
        }
}

void broadcast_gives_everybody_what_the_root_has(World& world) {
    const auto g = world.everyone();
    const Worker stream(1);
    for (int root = 0; root < g->size(); ++root)
        for (const std::int64_t n : sizes) {
            Numbers<std::byte> x(static_cast<std::size_t>(n));
            for (std::size_t i = 0; i < x.size(); ++i)
                x[i] = static_cast<std::byte>(mix(i) + static_cast<unsigned>(g->rank()));
            g->broadcast(stream, view(x), root);
            stream.synchronize();
            for (std::size_t i = 0; i < x.size(); ++i)
                require(x[i] == static_cast<std::byte>(mix(i) + static_cast<unsigned>(root)), "broadcast of byte ", i);
        }
}

void all_to_all_turns_the_parts(World& world) {
    const auto g = world.everyone();
    const Worker stream(2);
    for (const std::int64_t part : sizes) {
        auto in = values<std::int64_t>(g->rank(), part * g->size());
        Numbers<std::int64_t> out(in.size());
        g->all_to_all(stream, view(out), view(in));
        stream.synchronize();
        for (int r = 0; r < g->size(); ++r)
            for (std::int64_t i = 0; i < part; ++i)
                require(out[static_cast<std::size_t>(r * part + i)] == value<std::int64_t>(r, g->rank() * part + i),
                        "all_to_all of rank ", r, ", ", i);
    }
}

void votes_are_unanimous(World& world) {
    const auto g = world.everyone();
    for (int who = -1; who < g->size(); ++who) {
        const bool self = who == g->rank();
        require(g->any(self) == (who >= 0), "any");
        require(g->all(!self) == (who < 0), "all");
        g->barrier();
    }
}

void nothing_is_a_legal_amount(World& world) {
    const auto g = world.everyone();
    const Worker stream(1);
    Numbers<float> x, y;
    float unused = 1;
    const View<float> none(&unused, {0});
    g->all_reduce(stream, none);
    g->all_reduce_max(stream, none);
    g->reduce_scatter(stream, none, none);
    g->all_gather(stream, none, none);
    g->broadcast(stream, none, g->size() - 1);
    g->all_to_all(stream, view(y), view(x));
    stream.synchronize();
    if (g->size() > 1) {
        const int next = (g->rank() + 1) % g->size(), last = (g->rank() + g->size() - 1) % g->size();
        Ticket ticket = g->send(stream, none, next, 0);
        g->receive(stream, none, last, 0);
        stream.synchronize();
        g->wait(stream, ticket);
    }
    require(unused == 1.0f && g->traffic().total() == 0, "nothing was moved");
    require(g->all(true), "and the group goes on");
}

void messages_of_a_channel_keep_their_order_and_channels_are_apart(World& world) {
    if (world.size() == 1) return;
    const auto g = world.everyone();
    const Worker stream(2);
    const int next = (g->rank() + 1) % g->size(), last = (g->rank() + g->size() - 1) % g->size();
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{300000}}) {
        std::vector<Numbers<float>> sent;
        for (int m = 0; m < 6; ++m) sent.push_back(values<float>(g->rank() * 10 + m, n));
        std::vector<Ticket> tickets;  // message m on channel m % 2, all before anything is received
        for (int m = 0; m < 6; ++m)
            tickets.push_back(g->send(stream, view(sent[static_cast<std::size_t>(m)]), next, m % 2));
        Numbers<float> x(static_cast<std::size_t>(n));
        for (const int m : {1, 3, 0, 5, 2, 4}) {
            g->receive(stream, view(x), last, m % 2);
            stream.synchronize();
            for (std::int64_t i = 0; i < n; ++i)
                require(x[static_cast<std::size_t>(i)] == value<float>(last * 10 + m, i), "message ", m, ", element ",
                        i);
        }
        for (Ticket& ticket : tickets) g->wait(stream, ticket);
        g->wait(stream, tickets[0]);  // nothing
        stream.synchronize();         // what was sent may go only when it has been taken
    }
    const std::int64_t sent = 6 * 4 * (1 + 1000 + 300000);
    require(g->traffic().send == sent, "bytes sent are counted");
}

void pairs_exchange_both_ways_at_once(World& world) {
    const auto g = world.everyone();
    const Worker stream(1);
    Numbers<double> mine = values<double>(g->rank(), 20000), theirs(mine.size());
    for (int distance = 1; distance < g->size(); ++distance) {
        const int to = (g->rank() + distance) % g->size(), from = (g->rank() + g->size() - distance) % g->size();
        Ticket ticket = g->send(stream, view(mine), to, 7);
        g->receive(stream, view(theirs), from, 7);
        g->wait(stream, ticket);
        stream.synchronize();  // what was sent may go only when it has been taken
        require(theirs[19999] == value<double>(from, 19999), "what the peer ", from, " sent");
    }
}

void traffic_is_the_formula(World& world) {
    const auto g = world.everyone();
    const Worker stream(1);
    const std::int64_t n = g->size();
    Numbers<float> x(static_cast<std::size_t>(100 * n)), y(x.size());
    g->all_reduce(stream, view(x));
    g->all_reduce_max(stream, view(x));
    g->reduce_scatter(stream, view(x).rows(0, 100), view(y));
    g->all_gather(stream, view(y), view(x).rows(0, 100));
    g->broadcast(stream, view(x), 0);
    g->all_to_all(stream, view(y), view(x));
    stream.synchronize();
    g->any(true);
    g->barrier();
    const Traffic& t = g->traffic();
    require(t.all_reduce == 2 * 2 * (n - 1) * 400, "all_reduce: 2 (n-1)/n of x, twice");
    require(t.reduce_scatter == (n - 1) * 400 && t.all_gather == (n - 1) * 400, "(n-1)/n of x");
    require(t.broadcast == (g->rank() == 0 ? (n - 1) * n * 400 : 0), "broadcast: the root sends n-1 times x");
    require(t.all_to_all == (n - 1) * 400 && t.send == 0, "all_to_all");
    require(g->collectives() == 8, "collectives are numbered, votes too");
}

void groups_have_their_own_ranks_and_order(World& world) {
    const int n = world.size(), self = world.rank();
    std::vector<int> backwards, same_parity;
    for (int r = n - 1; r >= 0; --r) backwards.push_back(r);
    for (int r = self % 2; r < n; r += 2) same_parity.push_back(r);
    const auto reversed = world.group("reversed", backwards);
    const auto half = world.group("half", same_parity);
    require(reversed->rank() == n - 1 - self && reversed->size() == n, "rank in a reversed group");
    require(half->rank() == self / 2 && half->members() == same_parity, "rank in every second");
    const Worker stream(1);
    Numbers<float> x = values<float>(reversed->rank(), 1000);
    reversed->all_reduce(stream, view(x));
    stream.synchronize();
    for (std::int64_t i = 0; i < 1000; ++i)
        require(same_bits(x[static_cast<std::size_t>(i)], sum_of<float>(n, i)), "the order is the group's, element ",
                i);
    double count = 1;
    half->all_reduce(stream, View<double>(&count, {1}));
    stream.synchronize();
    require(count == static_cast<double>(same_parity.size()), "the other half is not in it");
}

void two_threads_of_a_rank_use_two_groups_at_once(World& world) {
    const auto a = world.everyone("main"), b = world.everyone("overlapped");
    const auto work = [](Group& g, std::int64_t n) {
        const Worker stream(1);
        for (int i = 0; i < 30; ++i) {
            sum_one<float>(g, stream, n);
            reduce_scatter_one<bf16>(g, stream, 100 + i);
            require(g.all(true), "vote");
        }
    };
    std::string failed;
    std::thread other([&] {
        try {
            begin_thread(world.rank());
            work(*b, 3000);
        } catch (const std::exception& e) {
            failed = e.what();
            b->abort(failed);
        }
    });
    try {
        work(*a, 5000);
    } catch (...) {
        other.join();
        throw;
    }
    other.join();
    require(failed.empty(), "the other thread: ", failed);
}

void any_sequence_of_collectives_works(World& world) {
    const auto g = world.everyone();
    const Worker stream(1);
    for (std::uint64_t step = 0; step < 300; ++step) {
        const std::uint64_t h = mix(step + 99);
        const auto n = static_cast<std::int64_t>(mix(h) % 40);
        switch (h % 6) {
            case 0: sum_one<float>(*g, stream, n); break;
            case 1: sum_one<double>(*g, stream, n); break;
            case 2: reduce_scatter_one<float>(*g, stream, n); break;
            case 3: require(g->any(g->rank() == 0), "any"); break;
            case 4: require(g->all(true), "all"); break;
            case 5: g->barrier(); break;
        }
    }
}

void what_cannot_be_divided_is_refused_and_the_group_goes_on(World& world) {
    const auto g = world.everyone();
    const Worker stream(1);
    Numbers<float> x(static_cast<std::size_t>(3 * g->size() + 1)), y(3);
    const auto refused = [&](auto&& call, const char* text) {
        try {
            call();
        } catch (const Error& e) {
            require(std::string(e.what()).find(text) != std::string::npos, "message is: ", e.what());
            return;
        }
        require(false, "not refused: ", text);
    };
    refused([&] { g->reduce_scatter(stream, view(y), view(x)); }, "parts of 3; pad it");
    refused([&] { g->all_gather(stream, view(x), view(y)); }, "parts of 3; pad it");
    refused([&] { g->broadcast(stream, view(x), g->size()); }, "root is");
    refused([&] { (void)g->send(stream, view(x), g->rank(), 0); }, "the rank itself");
    refused([&] { g->receive(stream, view(x), -1, 0); }, "is not in 0");
    View<float> strided = View<float>(x.data(), {2, 1});
    Numbers<float> square(16);
    strided = View<float>(square.data(), {4, 4}).columns(0, 2);
    refused([&] { g->all_reduce(stream, strided); }, "contiguous");
    if (g->size() > 1) {
        refused([&] { (void)g->send(stream, view(x), (g->rank() + 1) % g->size(), Group::max_channels); }, "channel");
        Numbers<float> parts(static_cast<std::size_t>(2 * g->size()));
        const View<float> wrong = view(parts).rows(1, 2);
        refused([&] { g->all_gather(stream, view(parts), wrong); }, "overlaps");
        refused([&] { g->all_to_all(stream, view(parts), view(parts)); }, "overlap");
    }
    require(g->all(true), "and the group goes on");
}

void ranks_agree_or_are_told_who_differs(World& world) {
    const auto g = world.everyone();
    using Facts = std::vector<std::pair<std::string, std::string>>;
    expect_agreement(*g, Facts{{"build", "keel 0.1 for native"}, {"device", "cpu"}});
    const std::vector<std::string> names =
        gather_strings(*g, concat("host", std::string(static_cast<std::size_t>(g->rank()), 'x')));
    for (std::size_t r = 0; r < names.size(); ++r)
        require(names[r] == "host" + std::string(r, 'x'), "string of rank ", r);
    if (g->size() == 1) return;
    const bool odd = g->rank() == g->size() - 1;
    try {
        expect_agreement(*g, Facts{{"build", "same"}, {"data", odd ? "b2" : "a1"}});
        require(false, "not refused");
    } catch (const Error& e) {
        const std::string text = e.what();
        for (const std::string& part :
             {std::string("data"), std::string("a1"), std::string("b2"), concat("rank ", g->size() - 1)})
            require(text.find(part) != std::string::npos, "message is: ", text);
        require(text.find("build:") == std::string::npos, "message is: ", text);
    }
}

void groups_that_make_no_sense_are_refused(World& world) {
    const auto refused = [&](std::vector<int> members, const char* text) {
        try {
            (void)world.group("odd", members);
        } catch (const Error& e) {
            require(std::string(e.what()).find(text) != std::string::npos, "message is: ", e.what());
            return;
        }
        require(false, "not refused: ", text);
    };
    refused({}, "no members");
    refused({world.rank(), world.rank()}, "twice");
    refused({world.rank(), world.size()}, "is not in 0");
    if (world.size() > 1) refused({(world.rank() + 1) % world.size()}, "is no member");
}

}  // namespace

const std::vector<Case>& cases() {
#define KEEL_CASE(name) {#name, name}
    static const std::vector<Case> all = {
        KEEL_CASE(sums_are_formed_in_the_order_of_ranks),
        KEEL_CASE(maximum_is_the_largest_and_nan_wins),
        KEEL_CASE(reduce_scatter_gives_each_rank_its_part_in_place_or_apart),
        KEEL_CASE(all_gather_puts_the_parts_in_the_order_of_ranks),
        KEEL_CASE(broadcast_gives_everybody_what_the_root_has),
        KEEL_CASE(all_to_all_turns_the_parts),
        KEEL_CASE(votes_are_unanimous),
        KEEL_CASE(nothing_is_a_legal_amount),
        KEEL_CASE(messages_of_a_channel_keep_their_order_and_channels_are_apart),
        KEEL_CASE(pairs_exchange_both_ways_at_once),
        KEEL_CASE(traffic_is_the_formula),
        KEEL_CASE(groups_have_their_own_ranks_and_order),
        KEEL_CASE(two_threads_of_a_rank_use_two_groups_at_once),
        KEEL_CASE(any_sequence_of_collectives_works),
        KEEL_CASE(what_cannot_be_divided_is_refused_and_the_group_goes_on),
        KEEL_CASE(ranks_agree_or_are_told_who_differs),
        KEEL_CASE(groups_that_make_no_sense_are_refused),
    };
#undef KEEL_CASE
    return all;
}

}  // namespace keel::comm_suite
